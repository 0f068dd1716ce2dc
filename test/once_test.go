package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// onceEnv is set in the process in which [TestOnceHelper] does something: "skip" or "fail".
const onceEnv = "SCONCE_TEST_ONCE"

// Where the maker of what tests stand on is skipped, they are; where it fails, they fail. Each says which test tried.
func TestOnce(t *testing.T) {
	begin(t)
	for how, want := range map[string]string{
		"skip": "--- SKIP: TestOnceHelper/user",
		"fail": "--- FAIL: TestOnceHelper/user",
	} {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestOnceHelper$", "-test.v")
		cmd.Env = append(os.Environ(), onceEnv+"="+how)
		out, err := cmd.CombinedOutput()
		if failed := err != nil; failed != (how == "fail") {
			t.Errorf("%s: %v\n%s", how, err, out)
		}
		if said := string(out); !strings.Contains(said, want) || !strings.Contains(said, "TestOnceHelper/maker ") {
			t.Errorf("%s: the output lacks %q, or who was to make it:\n%s", how, want, said)
		}
	}
}

// TestOnceHelper is the other process of [TestOnce].
func TestOnceHelper(t *testing.T) {
	how := os.Getenv(onceEnv)
	if how == "" {
		t.Skip("only as part of TestOnce")
	}
	var thing once[int]
	get := func(t *testing.T) {
		thing.get(t, func(t *testing.T) int {
			if how == "fail" {
				t.Fatal("it broke")
			}
			t.Skip("a tool is missing")
			return 0
		})
	}
	t.Run("maker", get)
	t.Run("user", get)
}
