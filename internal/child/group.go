package child

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// guard is a shell script that runs a program, its arguments, with a guard beside it: a process of the same group, but not a
// child of the program, which would wonder about it. The guard reads a pipe whose other end only this process has, and kills
// the whole group when that is closed, which the end of this process does too. The program does not get the pipe.
const guard = `( ( trap "" INT TERM HUP; read -r _ <&3; kill -KILL -$$ ) < /dev/null > /dev/null 2>&1 & ) ; exec "$0" "$@" 3<&-`

// Group is Run for a program whose own children shall end too: cmd gets a session and a process group of its own, to which cancelling
// sends a signal. What is left of the group when the program has ended is killed, and so is all of it when this process ends. The session
// has no terminal: a program that would ask there for a password fails instead, and is not stopped for it as one in the background would
// be (SIGTTIN). cmd must not have ExtraFiles or a Cancel of its own.
func Group(cmd *exec.Cmd, cancel syscall.Signal) error { return Watched(cmd, cancel, 0, nil) }

// Watched is Group that calls look with the group's number every so often while the program runs.
func Watched(cmd *exec.Cmd, cancel syscall.Signal, every time.Duration, look func(group int)) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	defer r.Close()
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"/bin/sh", "-c", guard, cmd.Path}, cmd.Args[1:]...)
	cmd.ExtraFiles = []*os.File{r}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if cmd.Cancel != nil { // there is a context
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, cancel) }
	}
	if look == nil {
		return run(cmd, nil)
	}
	return run(cmd, func(over <-chan struct{}) {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				look(cmd.Process.Pid)
			}
		}
	})
}
