package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/usernet"
)

// session is the caller's side of one sandbox.
type session struct {
	spec           *spec
	trees          grove           // that are served
	owners         *rootemu.Owners // nil unless root is emulated
	scratch        string          // removed at the end, "" if there is none
	keep           string          // holds what the command changes, "" if that is not kept
	madeUpper      bool            // in keep, where nothing was before
	usage          *Usage
	stdin          io.Reader
	stdout, stderr io.Writer
	pipeEnds       []*os.File // the group's ends of its pipes

	cmd     *exec.Cmd
	control *os.File // open as long as the sandbox may live
	status  *os.File // what init tells, until its end
	server  *server  // of the tree, nil if there is none
	outside *outside // of its own network, nil if it has none
	ctx     context.Context
	done    chan struct{} // closed when everything is gone
	heard   chan struct{} // closed when init has told all it will

	attention attention
	cancelled atomic.Bool // ctx ended before the command did
	failed    atomic.Bool // the command was not started

	mu    sync.Mutex
	codes []int           // by process, valid once ended
	ended []chan struct{} // by process
	left  int             // processes that have not ended
}

// prepare checks the options and makes the directories that the command will write to.
func prepare(o Options, count int) (*session, error) {
	sp, err := newSpec(o, count)
	if err != nil {
		return nil, err
	}
	s := newSession(sp)
	s.usage = o.Usage
	s.trees, _ = treesOf(o)
	s.setForeign(foreignTo(o.Arch))
	s.emulate(o.Owners)
	if err := s.checkUser(); err != nil {
		return nil, err
	}
	if o.UpperDir != "" {
		sp.Scratch, sp.Keep = o.UpperDir, true
		if err := s.prepareUpper(o.UpperDir); err != nil {
			s.abandon()
			return nil, err
		}
		return s, nil
	}
	if o.ScratchDir == "" || o.ReadOnly {
		return s, nil
	}
	if s.scratch, err = os.MkdirTemp(o.ScratchDir, "sandbox-*"); err != nil {
		return nil, failed("make a directory for what the command writes", err)
	}
	for _, name := range []string{upperName, workName} {
		if err := os.Mkdir(filepath.Join(s.scratch, name), 0o755); err != nil {
			s.abandon()
			return nil, failed("make a directory for what the command writes", err)
		}
	}
	// The root of the image shows the mode of upper, which must not depend on the caller's umask.
	if err := os.Chmod(filepath.Join(s.scratch, upperName), 0o755); err != nil {
		s.abandon()
		return nil, failed("make a directory for what the command writes", err)
	}
	sp.Scratch = s.scratch
	return s, nil
}

func newSession(sp *spec) *session {
	s := &session{spec: sp, done: make(chan struct{}), heard: make(chan struct{}), left: sp.Count, codes: make([]int, sp.Count)}
	for range sp.Count {
		s.ended = append(s.ended, make(chan struct{}))
	}
	sp.UserNS, sp.Period = !mayMount(), waitingPeriod
	return s
}

// pipes makes the pipes of process i of a group.
func (s *session) pipes(i int) (*Process, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, failed("make a pipe", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return nil, failed("make a pipe", err)
	}
	s.spec.Piped = true
	s.pipeEnds = append(s.pipeEnds, inR, outW)
	return &Process{Stdin: inW, Stdout: outR, session: s, index: i}, nil
}

// abandon undoes prepare.
func (s *session) abandon() {
	for _, f := range s.pipeEnds {
		f.Close()
	}
	s.pipeEnds = nil
	s.failed.Store(true)
	s.discard()
}

// start starts init, sends it the spec and returns once the command runs.
func (s *session) start(ctx context.Context) error {
	if err := s.launch(ctx); err != nil {
		s.abandon()
		return err
	}
	messages := bufio.NewReader(s.status)
	if err := s.handshake(messages); err != nil {
		s.failed.Store(true)
		close(s.heard)
		s.kill()
		<-s.done
		s.status.Close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return explain(err)
	}
	go s.collect(messages)
	return nil
}

// launch starts init in its namespaces, and a goroutine that waits for its end.
func (s *session) launch(ctx context.Context) error {
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return failed("make a pipe", err)
	}
	defer controlR.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		controlW.Close()
		return failed("make a pipe", err)
	}
	defer statusW.Close()
	s.ctx, s.control, s.status = ctx, controlW, statusR
	s.cmd = s.command(ctx, controlR, statusW)
	if len(s.trees) > 0 {
		server, socket, err := newServer(s.trees, s.spec.owner())
		if err != nil {
			controlW.Close()
			statusR.Close()
			return failed("make a socket", err)
		}
		defer socket.Close()
		s.server = server
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, socket)
		server.start(ctx)
	}
	if s.spec.Outside {
		outside, socket, resolv, err := newOutside(s.spec.Resolv)
		if err != nil {
			controlW.Close()
			statusR.Close()
			s.stopServing()
			return failed("make a socket", err)
		}
		defer socket.Close()
		s.outside, s.spec.Resolv, s.spec.IPv6 = outside, resolv, usernet.HasIPv6()
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, socket)
		outside.start(ctx)
	}
	started := make(chan error)
	go s.supervise(started)
	if err := <-started; err != nil {
		controlW.Close()
		statusR.Close()
		s.stopServing()
		return explain(failed("start a process in new namespaces", err))
	}
	for _, f := range s.pipeEnds {
		f.Close()
	}
	s.pipeEnds = nil
	return nil
}

// initEnv is the environment of init: the caller's would be readable in the sandbox.
var initEnv = []string{"GOMAXPROCS=2"}

func (s *session) command(ctx context.Context, control, status *os.File) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{initName}
	cmd.Dir = "/"
	cmd.Env = initEnv
	cmd.Stdin, cmd.Stdout, cmd.Stderr = readOnce(s.stdin), writeOnly(s.stdout), writeOnly(s.stderr)
	cmd.ExtraFiles = append([]*os.File{control, status}, s.pipeEnds...)
	cmd.Cancel = func() error {
		s.cancelled.Store(true)
		return cmd.Process.Signal(unix.SIGTERM)
	}
	cmd.WaitDelay = grace
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: s.spec.spaces(),
		Pdeathsig:  unix.SIGKILL,
	}
	if s.spec.Loopback {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	if s.spec.UserNS {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		uid, gid := syscall.SysProcIDMap{HostID: os.Geteuid(), Size: 1}, syscall.SysProcIDMap{HostID: os.Getegid(), Size: 1}
		switch {
		case s.spec.AllIDs:
			uid, gid = allIDs, allIDs
			cmd.SysProcAttr.GidMappingsEnableSetgroups = true
		case s.spec.Self != nil:
			uid.ContainerID, gid.ContainerID = uid.HostID, gid.HostID
			cmd.SysProcAttr.AmbientCaps = knownCapabilities()
		}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{uid}, []syscall.SysProcIDMap{gid}
	}
	return cmd
}

// readOnce returns a reader that is copied to the command by a pipe when it is a file of the host, or nothing. A command can open what
// it has open once more (/proc/self/fd/0): for writing, and, of the host's /dev/null, to change its mode.
func readOnce(in io.Reader) io.Reader {
	if in == nil {
		return strings.NewReader("")
	}
	file, ok := in.(*os.File)
	if !ok {
		return in
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 || term.IsTerminal(int(file.Fd())) {
		return in
	}
	return struct{ io.Reader }{file}
}

// writeOnly does the same for what is written to nothing or to a device of the host.
func writeOnly(out io.Writer) io.Writer {
	if out == nil {
		return io.Discard
	}
	if file, ok := out.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 && !term.IsTerminal(int(file.Fd())) {
			return struct{ io.Writer }{file}
		}
	}
	return out
}

// noDirectory refuses a directory as a stream of a command: from there it could go to all files of the host.
func noDirectory(streams ...any) error {
	for _, s := range streams {
		file, ok := s.(*os.File)
		if !ok {
			continue
		}
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return &Error{What: "a standard stream of the command is a directory", Fix: "redirect it from a file, or from /dev/null", Code: codeNotMade}
		}
	}
	return nil
}

// allIDs maps every user or group to itself: ids go from 0 to 2³²-2 (user_namespaces(7)).
var allIDs = syscall.SysProcIDMap{Size: math.MaxUint32}

// spaces are the name spaces that init is started in, but for those of users and the network.
func (s *spec) spaces() uintptr {
	switch {
	case !s.Shared:
		return unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	case s.Hostname != "":
		return unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	}
	return unix.CLONE_NEWNS
}

// supervise starts init, waits for its end and cleans up. The thread must live as long as init: the kernel sends
// the parent-death signal when the thread that forked ends, not the process.
func (s *session) supervise(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := s.cmd.Start() //nolint:forbidigo // it goes with this process by itself, see command
	started <- err
	if err != nil {
		return
	}
	gone, attended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(attended)
		s.attend(gone)
	}()
	_ = s.cmd.Wait() // how init ended is in ProcessState; with it every process of its pid namespace is gone
	if used, ok := s.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && s.usage != nil {
		s.usage.MaxRSS = used.Maxrss << 10 // of init, or the largest of those that it and its children have waited for
	}
	close(gone)
	<-attended // it may be warning
	s.control.Close()
	s.stopServing()
	<-s.heard
	s.discard()
	for i := range s.codes { // those that init could not tell of, because it was killed
		s.setCode(i, exitCode(s.cmd.ProcessState.Sys().(syscall.WaitStatus)))
	}
	close(s.done)
}

func (s *session) stopServing() {
	if s.server != nil {
		s.server.stop(s.givenUp() == nil)
	}
	if s.outside != nil {
		s.outside.stop()
	}
}

// handshake sends the spec and waits until the command has been started.
func (s *session) handshake(messages *bufio.Reader) error {
	if err := json.NewEncoder(s.control).Encode(s.spec); err != nil {
		return failed("tell the sandbox what to run", err)
	}
	for {
		m, err := s.readMessage(messages)
		switch {
		case err != nil && s.givenUp() != nil:
			return s.givenUp()
		case err != nil:
			return failed("set up the sandbox", errors.New("its first process ended without a word"))
		case m.Failure != nil:
			return m.Failure
		case m.Waiting != "":
			progress.Warn(s.ctx, m.Waiting, fixWaiting)
		case m.Warning != "":
			progress.Warn(s.ctx, m.Warning, "put the store on a local file system (SCONCE_STORE) if memory is short")
		case m.Started:
			s.attention.ready.Store(true)
			return nil
		}
	}
}

// collect takes the exit codes that init reports, until init is gone.
func (s *session) collect(messages *bufio.Reader) {
	defer close(s.heard)
	defer s.status.Close()
	for {
		m, err := s.readMessage(messages)
		if err != nil {
			return
		}
		if m.Failure != nil {
			s.giveUp(m.Failure)
		}
		if m.Waiting != "" {
			progress.Warn(s.ctx, m.Waiting, fixWaiting)
		}
		s.takeOwners(m)
		if m.Exit != nil && m.Exit.Index >= 0 && m.Exit.Index < len(s.codes) {
			s.setCode(m.Exit.Index, m.Exit.Code)
		}
	}
}

func (s *session) readMessage(r *bufio.Reader) (message, error) {
	var m message
	line, err := r.ReadBytes('\n')
	if err != nil {
		return m, err
	}
	s.attention.heard.Add(1)
	return m, json.Unmarshal(line, &m)
}

func (s *session) setCode(i, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended[i]:
	default:
		s.codes[i] = code
		s.left--
		close(s.ended[i])
	}
}

// exitCode turns the status of an ended process into what a shell would say.
func exitCode(w syscall.WaitStatus) int {
	if w.Signaled() {
		return 128 + int(w.Signal())
	}
	return w.ExitStatus()
}

// waitFor returns when process i has ended; for the last one, when the sandbox is gone.
func (s *session) waitFor(i int) {
	<-s.ended[i]
	s.mu.Lock()
	last := s.left == 0
	s.mu.Unlock()
	if last {
		<-s.done
	}
}

func (s *session) result(i int) (int, error) {
	if s.cancelled.Load() {
		return s.codes[i], context.Cause(s.ctx)
	}
	if err := s.givenUp(); err != nil {
		return codeOf(err), err
	}
	return s.codes[i], nil
}

func (s *session) kill() { _ = s.cmd.Process.Kill() }

// forward passes on a signal that this process got. Those that a key of the terminal sent have reached the command
// already, as it belongs to the terminal's foreground group with us.
func (s *session) forward(sig os.Signal) { forwardTo(s.cmd.Process.Pid, sig) }

func forwardTo(pid int, sig os.Signal) {
	if (sig == unix.SIGINT || sig == unix.SIGQUIT) && inForeground() {
		return
	}
	_ = unix.Kill(pid, sig.(syscall.Signal))
}

// inForeground reports whether this process's group is the one that its terminal sends signals to.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
