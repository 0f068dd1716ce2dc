package sandbox

import (
	_ "embed"
	"os/exec"
	"testing"
)

//go:embed testdata/forbidden.c
var forbiddenSource string

// A step has no hand on the keys and the terminal of whoever builds.
func TestForbiddenCalls(t *testing.T) {
	layer := compile(t, "forbidden", forbiddenSource)
	wantOutput(t, stepOf(t, "forbidden", layer), "keyctl is refused\nadd_key is refused\nioctl is refused\ngetpid works\n")
	// What a user runs may, as far as there is a key and a terminal.
	o := shell(t, "forbidden | grep -c refused || true", layer)
	wantOutput(t, o, "0\n")
}

// What the processor may speculate in a step is what it may outside: a filter must not make builds slow.
func TestSpeculation(t *testing.T) {
	const lines = "grep '^Speculation' /proc/self/status || true"
	outside, err := exec.Command("sh", "-c", lines).Output()
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, stepOf(t, lines, busyboxLayer(t)), string(outside))
}
