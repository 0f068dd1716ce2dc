package host

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	lowest       = 19      // setpriority(2): runs when nobody else wants the core
	ioIdle       = 3 << 13 // ioprio_set(2): reads when nobody else wants the disk
	ioOneProcess = 1       // IOPRIO_WHO_PROCESS, which is a thread
)

// StepBack has this process yield cores and disk to all others: as nice -n 19 ionice -c 3 would. Where that is not allowed it
// stays as it is.
func StepBack() {
	threads, err := os.ReadDir("/proc/self/task") // the kernel keeps both for each thread; new ones inherit them
	if err != nil {
		return
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		StepBackThread(id)
	}
}

// StepBackThread is [StepBack] for one thread, 0 for the one that calls.
func StepBackThread(id int) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, id, lowest)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioOneProcess, uintptr(id), ioIdle)
}
