package sandbox

import (
	"os"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/host"
)

// Usage is what the processes of a sandbox took.
type Usage struct {
	MaxRSS int64 // bytes of memory that the largest of them had at once, of those that somebody waited for
}

// fixMounts takes from the command the capability to mount. One that makes a user namespace of its own gets it back there, where
// the kernel lets it undo nothing (mount_namespaces(7), "Restrictions on mount namespaces"). What is read-only stays so, whoever asks.
func (s *spec) fixMounts() error {
	readOnly := s.ReadOnly || slices.ContainsFunc(s.Binds, func(b Bind) bool { return b.ReadOnly }) ||
		slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.ReadOnly })
	if !s.NoMounts && !readOnly {
		return nil
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0); err != nil {
		return failed("drop the capability to mount", err)
	}
	return nil
}

// DefaultProcesses is a limit on processes and threads that no build reaches and a machine survives: a parallel build with as
// many threads in each of its processes as there are cores stays below.
func DefaultProcesses() int { return 4096 + 256*runtime.NumCPU() }

// pidMaxRelease is the first Linux release in which a pid namespace has a kernel.pid_max of its own. Before it the file is
// the whole machine's.
const pidMaxRelease = "6.14"

func pidMaxIsOurs() bool { return !host.ReleaseBefore(host.KernelRelease(), pidMaxRelease) }

// minPIDs is the least that kernel.pid_max can be set to, and some room.
const minPIDs = 512

// limitPIDs bounds how many processes there can be in this pid namespace, whoever they belong to. This is what holds the
// host's root, whom RLIMIT_NPROC does not concern; where the kernel has no such bound there is none.
func limitPIDs(n int) {
	if n == 0 || !pidMaxIsOurs() {
		return
	}
	_ = os.WriteFile("/proc/sys/kernel/pid_max", strconv.AppendInt(nil, int64(max(n, minPIDs)), 10), 0)
}

// limitProcesses bounds how many processes and threads there can be of the user that this process is, counted in its own user
// namespace since Linux 5.14. It holds for what is started until the returned function is called; that must be told each
// process that was started, so that it cannot lift the bound.
func limitProcesses(n int) func(pids ...int) {
	var own unix.Rlimit
	if n == 0 || unix.Getrlimit(unix.RLIMIT_NPROC, &own) != nil {
		return func(...int) {}
	}
	bound := unix.Rlimit{Cur: min(uint64(n), own.Cur), Max: own.Max}
	// This process keeps its own limit, lest it cannot go on when the command has used up all there is.
	_ = unix.Setrlimit(unix.RLIMIT_NPROC, &bound)
	return func(pids ...int) {
		_ = unix.Setrlimit(unix.RLIMIT_NPROC, &own)
		bound.Max = bound.Cur
		for _, pid := range pids {
			_ = unix.Prlimit(pid, unix.RLIMIT_NPROC, &bound, nil)
		}
	}
}
