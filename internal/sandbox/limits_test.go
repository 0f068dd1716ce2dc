package sandbox

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// limitsIn returns what the kernel says of a command's limits, soft and hard, by name.
func limitsIn(t *testing.T, o Options) map[string]string {
	t.Helper()
	o.Args = []string{"grep", "^Max", "/proc/self/limits"} // which looks as soon as it runs
	_, out := run(t, o)
	found := map[string]string{}
	for line := range strings.Lines(out) {
		if len(line) >= 68 {
			found[strings.TrimSpace(line[:26])] = strings.Join(strings.Fields(line[26:68]), " ")
		}
	}
	return found
}

// A build's command finds the same limits everywhere, whatever its caller's are, of which only lower hard ones count. What a user runs
// has the user's.
func TestLimits(t *testing.T) {
	step := stepOf(t, "", busyboxLayer(t))
	step.MaxProcesses = DefaultProcesses()
	names := map[int]string{
		unix.RLIMIT_NOFILE: "Max open files", unix.RLIMIT_CORE: "Max core file size", unix.RLIMIT_STACK: "Max stack size", unix.RLIMIT_MEMLOCK: "Max locked memory",
		unix.RLIMIT_MSGQUEUE: "Max msgqueue size", unix.RLIMIT_SIGPENDING: "Max pending signals", unix.RLIMIT_NICE: "Max nice priority",
		unix.RLIMIT_RTPRIO: "Max realtime priority", unix.RLIMIT_NPROC: "Max processes",
	}
	text := func(n uint64) string {
		if n == unix.RLIM_INFINITY {
			return "unlimited"
		}
		return fmt.Sprint(n)
	}
	n := uint64(DefaultProcesses())
	got := limitsIn(t, step)
	for _, l := range append([]limit{{unix.RLIMIT_NPROC, n, n}}, buildLimits...) {
		soft, hard := l.soft, l.hard
		if !ownsFiles() || !hasCapability(unix.CAP_SYS_RESOURCE) {
			var own unix.Rlimit
			if err := unix.Getrlimit(l.resource, &own); err != nil {
				t.Fatal(err)
			}
			soft, hard = min(soft, own.Max), min(hard, own.Max)
		}
		if want := text(soft) + " " + text(hard); got[names[l.resource]] != want {
			t.Errorf("%s: %q, want %q", names[l.resource], got[names[l.resource]], want)
		}
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &own); err != nil {
		t.Fatal(err)
	}
	if got, want := limitsIn(t, shell(t, ""))["Max pending signals"], text(own.Cur)+" "+text(own.Max); got != want {
		t.Errorf("pending signals of what a user runs: %q, want %q", got, want)
	}
}
