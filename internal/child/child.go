// Package child runs programs that do not outlive this process.
//
// A program that goes on after its parent was killed writes into files that the next run believes to be its own, and holds
// what nobody waits for any more. So each program that sconce starts, but for those in a sandbox, which ends with sconce by
// itself, is started here.
//
// Where people work lie other people's files, of which many a program reads some of the directory that it starts in: a repository's configuration,
// an environment, modules. So a program starts in the root directory, unless it is told another one.
package child

import (
	"bytes"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Run runs cmd as [exec.Cmd.Run] does. When this process ends, however it does, the kernel kills the program: prctl(2),
// PR_SET_PDEATHSIG. Programs that cmd itself starts are its own to end, see [Group].
func Run(cmd *exec.Cmd) error { return run(cmd, nil) }

// run is Run with beside called, unless it is nil, once the program runs. It has to return when over is closed.
func run(cmd *exec.Cmd, beside func(over <-chan struct{})) error {
	// The kernel goes by the thread that forked, and not by the process: the thread must stay until the program has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if beside == nil {
		return cmd.Run()
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() { beside(over) })
	err := cmd.Wait()
	close(over)
	looking.Wait()
	return err
}

// Output is Run that returns what cmd prints. cmd.Stdout must not be set.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	err := Run(cmd)
	return out.Bytes(), err
}
