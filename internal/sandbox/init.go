package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/rootemu"
)

// Init must be the first call of main. In a process that was started as the init of a sandbox, or by one to start a command,
// it never returns; in every other process it does nothing.
func Init() {
	if len(os.Args) > 0 && os.Args[0] == starterName {
		os.Exit(runStarter())
	}
	if len(os.Args) == 0 || os.Args[0] != initName {
		return
	}
	runtime.LockOSThread() // capabilities and no_new_privs belong to a thread, and the command is forked from this one
	in := &initProcess{
		control: os.NewFile(controlFD, "control"),
		status:  json.NewEncoder(os.NewFile(statusFD, "status")),
	}
	if err := in.run(); err != nil {
		e := failed("set up the sandbox", err)
		_ = in.tell(message{Failure: e})
		os.Exit(e.Code)
	}
	os.Exit(0)
}

// initProcess is the first process of a sandbox.
type initProcess struct {
	spec    spec
	control *os.File // the spec, then nothing until the caller is gone
	said    sync.Mutex
	status  *json.Encoder // with said held
	signals chan os.Signal
	starter *os.File          // the socket to it, if root is emulated
	upper   int               // the upper layer of the root, -1 unless root is emulated
	owners  rootemu.Owners    // what root would have given files
	mounted []*rootemu.Owners // the same of files of each mount
	foreign int               // keeps the emulator of another architecture registered
	keys    chan os.Signal    // takes, for nobody, what keys of the terminal send as long as init is in the caller's group

	mu   sync.Mutex
	live map[int]int // processes that were started and not yet reaped, by pid: their index
}

// spares is how many threads init keeps for what it may have to do while a command uses up all processes.
const spares = 16

// spareThreads has the Go runtime make n threads, which it keeps. The threads of init count among the processes of the sandbox: when a
// command has used them up, none can be made, and a Go program that needs one then is ended by its runtime, and the sandbox with it.
func spareThreads(n int) {
	var made, free sync.WaitGroup
	release := make(chan struct{})
	made.Add(n)
	for range n {
		free.Go(func() {
			runtime.LockOSThread() // so that each waits on a thread of its own
			defer runtime.UnlockOSThread()
			made.Done()
			<-release
		})
	}
	made.Wait()
	close(release)
	free.Wait()
}

func (in *initProcess) run() error {
	spareThreads(spares)
	in.signals = make(chan os.Signal, 64)
	signal.Notify(in.signals, unix.SIGCONT, unix.SIGWINCH, unix.SIGHUP, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	in.keys = make(chan os.Signal, 1)
	signal.Notify(in.keys, keySignals...)
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return failed("ask to end with the caller", err)
	}
	if err := json.NewDecoder(in.control).Decode(&in.spec); err != nil {
		return failed("read what to run", err)
	}
	if err := keepOnlyStreams(); err != nil {
		return failed("close what the caller had open", err)
	}
	go in.endWithCaller()
	go in.beat()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return failed("open /dev/null", err)
	}
	if in.spec.ofHostRoot() {
		limitPIDs(in.spec.Limit)
	}
	if err := in.registerForeign(); err != nil {
		return err
	}
	if in.spec.Emulate {
		if err := in.startStarter(); err != nil {
			return err
		}
	}
	if in.upper, err = setup(&in.spec, in.warn); err != nil || in.spec.Probe {
		return in.started(err)
	}
	if in.spec.Shared {
		if err := hide(); err != nil {
			return err
		}
		if err := in.started(nil); err != nil {
			return err
		}
		select {} // until endWithCaller
	}
	if err := in.spawnAll(); err != nil {
		return err
	}
	in.leaveGroup()
	in.letGo(null)
	if err := in.started(nil); err != nil {
		return err
	}
	go in.forward()
	if err := in.reap(); err != nil {
		return err
	}
	return in.tellOwners()
}

func (in *initProcess) tell(m message) error {
	in.said.Lock()
	defer in.said.Unlock()
	return in.status.Encode(m)
}

func (in *initProcess) warn(text string) { _ = in.tell(message{Warning: text}) }

func (in *initProcess) started(err error) error {
	if err != nil {
		return err
	}
	return in.tell(message{Started: true})
}

// endWithCaller ends the sandbox when the other end of the control pipe is closed, which a caller that was killed does
// as well as one that ended.
func (in *initProcess) endWithCaller() {
	_, _ = io.Copy(io.Discard, in.control)
	os.Exit(128 + int(unix.SIGKILL))
}

// keepOnlyStreams makes sure that the command inherits its standard streams and nothing else: neither what is ours, nor
// what the caller got from its own caller.
func keepOnlyStreams() error {
	err := unix.CloseRange(controlFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	open, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= controlFD {
			unix.CloseOnExec(fd)
		}
	}
	return err
}

// spawnAll starts the spec's processes.
func (in *initProcess) spawnAll() error {
	if err := in.spec.dropRights(); err != nil {
		return err
	}
	pids, err := in.launch()
	in.live = byNumber(pids)
	return err
}

func (in *initProcess) launch() ([]int, error) {
	if in.spec.Emulate {
		return in.launchEmulated()
	}
	return launch(&in.spec)
}

// letGo closes what belongs to the command, so that its ends of pipes close when it closes them.
func (in *initProcess) letGo(null *os.File) {
	for fd := range 3 {
		_ = unix.Dup3(int(null.Fd()), fd, 0)
	}
	null.Close()
	if in.spec.Piped {
		for i := range 2 * in.spec.Count {
			unix.Close(firstPipeFD + i)
		}
	}
}

// leaveGroup leaves the caller's process group, so that what a key of the terminal sends reaches the command once and not a
// second time through init. What came before then has reached the command as well; the caller passes nothing on until it
// has heard that the command was started. Stop returns when all that came has been taken.
func (in *initProcess) leaveGroup() {
	_ = unix.Setpgid(0, 0)
	signal.Stop(in.keys)
	signal.Notify(in.signals, keySignals...)
}

// forward passes on the signals that the caller sends.
func (in *initProcess) forward() {
	for s := range in.signals {
		in.mu.Lock()
		for pid := range in.live {
			_ = unix.Kill(pid, s.(syscall.Signal))
		}
		in.mu.Unlock()
	}
}

// reap collects every process that ends, the orphans that the kernel gives to pid 1 too, until the last of those that
// were asked for has ended. What they left running dies with init.
func (in *initProcess) reap() error {
	for len(in.live) > 0 {
		pid, status, err := in.waitAny()
		if err != nil {
			return failed("wait for the command", err)
		}
		i, ours := in.live[pid]
		if !ours {
			continue
		}
		in.mu.Lock()
		delete(in.live, pid)
		in.mu.Unlock()
		if err := in.tell(message{Exit: &exit{Index: i, Code: exitCode(status)}}); err != nil {
			return err
		}
	}
	return nil
}

// waitAny waits for a process to end and reaps it. The lock keeps forward from signalling a pid that is being reaped.
func (in *initProcess) waitAny() (int, syscall.WaitStatus, error) {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("waitid: %w", err)
		}
		in.mu.Lock()
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		in.mu.Unlock()
		if err == nil && pid > 0 {
			return pid, status, nil
		}
	}
}
