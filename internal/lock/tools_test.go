package lock_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

func uvRun(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("uv", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("uv %s: %v\n%s", args[0], err, out)
	}
}

// uvFails runs uv, which must fail, and returns what it says.
func uvFails(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("uv", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err == nil {
		t.Fatalf("uv %s does not fail", args[0])
	}
	return strings.TrimSpace(stderr.String())
}
