package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/searchpath"
)

// JoinOptions says what to run in a sandbox that another process holds.
type JoinOptions struct {
	Spaces  []*os.File // see [Held.Spaces]
	UserNS  bool       // see [Held.UserNS]
	Args    []string   // as in [Options]
	Env     []string
	WorkDir string
	Pass    []int // file descriptors of this process that the command gets beside its standard streams, under their numbers
}

// Join runs a command in a sandbox that another process holds, and returns its exit code as [Run] does. The command is a child of this
// process, with its standard streams, terminal, limits, processors and control group, and ends with it. Signals that this process gets
// are passed on to the command. What the command has left running goes on until the sandbox ends.
func Join(ctx context.Context, o JoinOptions) (int, error) {
	if len(o.Args) == 0 || o.Args[0] == "" {
		return codeNotMade, &Error{What: "no command to run: the image names none, so one must be given", Code: codeNotMade}
	}
	if err := noDirectory(os.Stdin, os.Stdout, os.Stderr); err != nil { //nolint:forbidigo // they are the command's, and nothing is written
		return codeNotMade, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	p, err := startJoined(o)
	if err != nil {
		return codeOf(err), err
	}
	cancelled, kill := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case sig := <-signals:
			forwardTo(p.pid, sig)
		case <-cancelled:
			_ = unix.Kill(p.pid, unix.SIGTERM)
			cancelled, kill = nil, time.After(grace)
		case <-kill:
			_ = unix.Kill(p.pid, unix.SIGKILL)
		case code := <-p.ended:
			if ctx.Err() != nil {
				return code, context.Cause(ctx)
			}
			return code, nil
		}
	}
}

// joined is a command that has been started.
type joined struct {
	pid   int
	ended chan int // gets its exit code
}

// startJoined starts the command, and a goroutine that waits for its end on the thread that forked: the kernel ends the command with
// that thread.
func startJoined(o JoinOptions) (*joined, error) {
	plan, err := planJoin(o)
	if err != nil {
		return nil, err
	}
	p := &joined{ended: make(chan int, 1)}
	started := make(chan error)
	go func() {
		var err error
		if p.pid, err = plan.start(); err != nil {
			started <- err
			return
		}
		close(started)
		p.ended <- waitFor(p.pid)
	}()
	return p, <-started
}

// waitFor waits for a child of this process to end.
func waitFor(pid int) int {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if err == nil {
			return exitCode(status)
		}
		if !errors.Is(err, unix.EINTR) {
			return codeNotMade
		}
	}
}

// searchFor returns the files that may be the command, in the order in which they are tried.
func searchFor(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var files []string
	for dir := range strings.SplitSeq(searchpath.Of(env), ":") {
		if dir == "" || dir == "." {
			files = append(files, "./"+name)
		} else {
			files = append(files, path.Join("/", dir, name))
		}
	}
	return files
}

// The parts of starting a command in a sandbox that is held, by which the child says where it failed.
const (
	joinSpaces = iota
	joinParent
	joinCapabilities
	joinPrivileges
	joinFilter
	joinWorkDir
	joinExec
	joinMissing
)

// explainJoin makes an error of what the child has said.
func explainJoin(o JoinOptions, tried []string, part, index int32, err error) error {
	switch part {
	case joinSpaces:
		return failed("join the sandbox of this job step", err)
	case joinCapabilities:
		return failed("drop capabilities", err)
	case joinPrivileges:
		return failed("forbid new privileges", err)
	case joinFilter:
		return failed("install the filter of system calls", err)
	case joinWorkDir:
		return failed("change to the working directory "+o.WorkDir, err)
	case joinMissing:
		if strings.Contains(o.Args[0], "/") {
			return &Error{What: fmt.Sprintf("command %q is not in the image", o.Args[0]), Code: codeNotFound}
		}
		dirs := make([]string, len(tried))
		for i, file := range tried {
			dirs[i] = path.Dir(file)
		}
		return notFound(o.Args[0], strings.Join(slices.Compact(dirs), ":"), o.Env)
	case joinExec:
		file := tried[index]
		if errors.Is(err, unix.EACCES) {
			return &Error{What: fmt.Sprintf("command %s is not executable", file), Errno: unix.EACCES, Code: codeNotExecutable, Fix: "is it a directory? Else chmod +x it where the image is built"}
		}
		return notExecutable(file, err)
	}
	return failed("start the command", err)
}
