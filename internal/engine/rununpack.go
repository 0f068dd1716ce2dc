package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/imagefs"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

// A command in an image whose layers are not unpacked yet begins at once, on the layers as they are. When it has run for some time,
// they are unpacked for the next one, by a process of this program that takes only what nobody else wants of processors and disk.
// It ends with the command, and what is unpacked by then is kept layer by layer.

// unpackAfter is how long a command has the machine to itself. Most of what a program reads, it reads when it starts; and what ends
// before starts fast enough without unpacked layers.
const unpackAfter = 15 * time.Second

// chooseUnpack decides when layers are unpacked.
func (r *running) chooseUnpack() error {
	r.Unpack = cmp.Or(r.Unpack, config.UnpackBehind)
	if !slices.Contains(config.UnpackModes, r.Unpack) {
		return fault.Usage(fmt.Errorf("--unpack %q: it is one of %s", r.Unpack, strings.Join(config.UnpackModes, ", ")))
	}
	return nil
}

// useLayers calls use with a root file system that is read from the layers, if that can be and is worth it.
func (r *running) useLayers(ctx context.Context, s *Session, im *image.Image, use func(*Session, *Root) error) (done bool, err error) {
	root, err := s.RootFromLayers(ctx, im)
	if err != nil || root == nil {
		return false, err
	}
	err = fuse.Check() // here already, while what is done instead can be shown
	if err == nil {
		if r.Unpack == config.UnpackBehind {
			defer unpackBehind(s, root, r.caller.Unpack, unpackAfter)()
		}
		r.caller.Keep(imagefs.KeptBytes())
		err = use(s, root)
		if !errors.Is(err, sandbox.ErrNoFUSE) {
			return true, err
		}
	}
	progress.Notef(ctx, fmt.Sprintf("%s is unpacked first, since its files cannot be read from its layers here: %v", r.Image, err))
	return false, nil
}

// unpackBehind has the layers of a root file system unpacked after a while, until stop is called, by this program with the arguments
// for a store and an image.
func unpackBehind(s *Session, root *Root, arguments func(store string, image store.Digest) []string, after time.Duration) (stop func()) {
	digest, ok := s.ToUnpack(root)
	if !ok {
		return func() {}
	}
	ended := make(chan struct{})
	timer := time.AfterFunc(after, func() {
		if stdin, err := startIdle(unpacking(arguments(s.Store.Dir(), digest))); err == nil {
			<-ended
			stdin.Close()
		}
	})
	return func() {
		timer.Stop()
		close(ended)
	}
}

// unpacking is this program again.
func unpacking(arguments []string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", arguments...)
	cmd.Args[0] = "sconce" // what a list of processes shows
	return cmd
}

// startIdle starts a command that gets only what nobody else wants of processors and disk. It is to end when its standard input does,
// as it also does when this process is killed.
func startIdle(cmd *exec.Cmd) (stdin io.Closer, err error) {
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	started := make(chan error)
	go func() {
		// Priorities are a thread's, and a new process has those of the thread that made it. This one ends with the goroutine.
		runtime.LockOSThread()
		beIdle()
		started <- cmd.Start() //nolint:forbidigo // package child knows no priorities; the pipe ends it with this process
	}()
	if err := <-started; err != nil {
		pipe.Close()
		return nil, err
	}
	go func() { _ = cmd.Wait() }()
	return pipe, nil
}

// beIdle makes this thread one that gets only what nobody else wants (sched(7)).
func beIdle() {
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
	host.StepBackThread(0)
}
