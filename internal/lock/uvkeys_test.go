package lock

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/tooltest"
)

// Every setting that uv knows is decided on: a new release's are refused until somebody has looked at them, and seen here.
func TestEverySettingIsDecidedOn(t *testing.T) {
	program := tooltest.Path(t, "uv")
	file := filepath.Join(t.TempDir(), "uv.toml")
	if err := os.WriteFile(file, []byte("no-such-key = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config-file", file, "python", "find")
	cmd.Dir = "/"
	said, _ := cmd.CombinedOutput()
	_, list, ok := strings.Cut(string(said), "expected one of ")
	if !ok {
		t.Fatalf("uv does not list its settings: %s", said)
	}
	known := 0
	for _, m := range lazyregexp.New("`([a-z-]+)`").Regexp().FindAllStringSubmatch(list, -1) {
		if _, ok := uvKeys[m[1]]; !ok {
			t.Errorf("%s: it is neither taken, passed over nor refused", m[1])
		}
		known++
	}
	if known < 40 {
		t.Errorf("uv lists %d settings: %s", known, said)
	}
}

// Lines are those of the file, for keys of tables and of arrays of tables too.
func TestKeyLines(t *testing.T) {
	lines := keyLines([]byte("a = 1\n\n[pip]\n# x\npython = \"\"\"\n\n\"\"\"\nb.c = 1\n[[index]]\nurl = \"\"\n[tool.uv]\nd = { e = 1 }\n"))
	for key, want := range map[string]int{"a": 1, "pip": 3, "pip.python": 5, "pip.b": 8, "pip.b.c": 8, "index": 9, "index.url": 10, "tool.uv.d": 12, "none": 0} {
		if lines[key] != want {
			t.Errorf("%s is in line %d, want %d", key, lines[key], want)
		}
	}
}
