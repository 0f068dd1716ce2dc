package sandbox

import (
	_ "embed"
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
