package sandbox

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/host"
)

// Usage is what the processes of a sandbox took.
type Usage struct {
	MaxRSS int64 // bytes of memory that the largest of them had at once, of those that somebody waited for
}

// DefaultProcesses is a limit on processes and threads that no build reaches and a machine survives. It is the same on all machines,
// as a command may write it down.
func DefaultProcesses() int { return 16384 }

// limit is a limit of getrlimit(2).
type limit struct {
	resource   int
	soft, hard uint64
}

// buildLimits are what the commands of a build find, whoever builds and where, as far as the caller's own hard limits allow: programs
// decide by them, and a command may write them down.
var buildLimits = []limit{
	// As systemd has them. Programs that want more than the first raise it; those that close all there may be take long with more.
	{unix.RLIMIT_NOFILE, 1024, 1 << 19},
	{unix.RLIMIT_CORE, 0, 0}, // it would be a file of the layer
	{unix.RLIMIT_STACK, 8 << 20, unix.RLIM_INFINITY},
	{unix.RLIMIT_MEMLOCK, 8 << 20, 8 << 20},    // the kernel's own
	{unix.RLIMIT_MSGQUEUE, 819200, 819200},     // likewise
	{unix.RLIMIT_SIGPENDING, 1 << 14, 1 << 14}, // the kernel's own depends on the machine's memory
	{unix.RLIMIT_NICE, 0, 0},
	{unix.RLIMIT_RTPRIO, 0, 0},
}

// limit gives a process that was started its limits. That of processes counts those of the user that this process is, in its own user
// namespace since Linux 5.14.
func (s *spec) limit(pid int) {
	var limits []limit
	if s.ofBuild() {
		limits = buildLimits
	}
	if s.Limit != 0 {
		limits = append(slices.Clone(limits), limit{unix.RLIMIT_NPROC, uint64(s.Limit), uint64(s.Limit)})
	}
	for _, l := range limits {
		if unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: l.soft, Max: l.hard}, nil) == nil {
			continue
		}
		var own unix.Rlimit // which only root can raise
		if unix.Prlimit(pid, l.resource, nil, &own) == nil {
			_ = unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: min(l.soft, own.Max), Max: min(l.hard, own.Max)}, nil)
		}
	}
}

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
