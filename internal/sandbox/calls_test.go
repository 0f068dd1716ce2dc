package sandbox

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed testdata/forbidden.c
var forbiddenSource string

// Nothing that runs in an image has a hand on the keys and the terminal of its user.
func TestForbiddenCalls(t *testing.T) {
	const refused = "keyctl is refused\nadd_key is refused\nrequest_key is refused\nTIOCSTI is refused\nTIOCLINUX is refused\nname space of control groups is refused\ngetpid works\n"
	layer := compile(t, "forbidden", forbiddenSource)
	wantOutput(t, stepOf(t, "forbidden | grep -v measuring", layer), refused)
	wantOutput(t, shell(t, "forbidden | grep -v measuring", layer), refused)

	out := filepath.Join(t.TempDir(), "said")
	write(t, out, "")
	o := shell(t, "", layer)
	o.ScratchDir, o.Binds = "", []Bind{{Source: out, Target: "/said"}}
	if code, err := holdAndJoin(t, o, "forbidden | grep -v measuring > /said"); err != nil || code != 0 {
		t.Fatalf("code %d, %v", code, err)
	}
	if said, err := os.ReadFile(out); err != nil || string(said) != refused {
		t.Errorf("a task: output %q, %v, want %q", said, err, refused)
	}
}

// A build cannot measure the kernel. A user can who debugs what runs in an image, as far as the machine lets him.
func TestMeasuringCalls(t *testing.T) {
	layer := compile(t, "forbidden", forbiddenSource)
	wantOutput(t, stepOf(t, "forbidden | grep measuring", layer), "measuring by perf_event_open is refused\nmeasuring by bpf is refused\nmeasuring by userfaultfd is refused\n")
	// The kernel itself may refuse the others to who is not root.
	wantOutput(t, shell(t, "forbidden | grep perf", layer), "measuring by perf_event_open fails otherwise\n")
}

// What the host's root runs can make no user name space, in which it could mount the host's control groups.
func TestNoUserNamespaceOfRoot(t *testing.T) {
	if !ownsFiles() {
		t.Skip("an ordinary user's command may make user name spaces: nobody but the user is in them")
	}
	const script = "busybox unshare -U true 2> /dev/null || echo refused; busybox nsenter -U/proc/self/ns/user true 2> /dev/null || echo refused; sh -c '(true) && echo forks'"
	for _, o := range []Options{stepOf(t, script, busyboxLayer(t)), shell(t, script)} {
		wantOutput(t, o, "refused\nrefused\nforks\n")
	}
}

// Nothing can make writable what is read-only, whoever runs it: the control groups of its user below /sys. See TestForbiddenCalls as well.
func TestControlGroupsStayReadOnly(t *testing.T) {
	const script = "busybox mount -o remount,bind,rw /sys 2> /dev/null || echo refused"
	const want = "refused\n"
	wantOutput(t, stepOf(t, script, busyboxLayer(t)), want)
	wantOutput(t, shell(t, script), want)
	out := filepath.Join(t.TempDir(), "said")
	write(t, out, "")
	o := shell(t, "")
	o.ScratchDir, o.Binds = "", []Bind{{Source: out, Target: "/said"}}
	if code, err := holdAndJoin(t, o, "{ "+script+"; } > /said"); err != nil || code != 0 {
		t.Fatalf("code %d, %v", code, err)
	}
	if said, err := os.ReadFile(out); err != nil || string(said) != want {
		t.Errorf("a task: output %q, %v, want %q", said, err, want)
	}
}

// What is typed comes from the keyboard alone, on a terminal too.
func TestNothingIsTyped(t *testing.T) {
	out, code := terminal(t, shell(t, "forbidden; echo done", compile(t, "forbidden", forbiddenSource)))
	if !strings.Contains(out, "TIOCSTI is refused") || code != 0 {
		t.Errorf("exit code %d, terminal:\n%s", code, out)
	}
}

// holdAndJoin runs a script as a task of a job step does.
func holdAndJoin(t *testing.T, o Options, script string) (int, error) {
	t.Helper()
	h, err := Hold(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	return Join(t.Context(), JoinOptions{Spaces: h.Spaces(), UserNS: h.UserNS(), Args: []string{"sh", "-c", script}, Env: o.Env})
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
