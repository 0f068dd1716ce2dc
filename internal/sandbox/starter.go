package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/rootemu"
)

// Where root is emulated, init answers the calls of the command, and so cannot be who starts it: see package rootemu, "Two
// processes". It starts this program once more, as long as it still sees the host's files, which a program may need that is not
// static. When there is a root for the command the starter moves into it, puts itself under the filter, sends the listener up,
// starts the command and ends, which makes init the parent of what it started.

// starterName is the argv[0] by which the starter knows what it is.
const starterName = "sconce-sandbox-starter"

// started is what the starter has to tell in the end.
type started struct {
	Failure *Error `json:"failure,omitempty"`
	PIDs    []int  `json:"pids,omitempty"` // by index
}

// launch starts the spec's processes and returns their numbers.
func launch(s *spec) (pids []int, err error) {
	program, err := lookUp(s.Args[0], s.Env)
	if err != nil {
		return nil, err
	}
	trampoline, err := openTrampoline(firstPipeFD + 2*s.Count) // above what a child's files are moved to
	if err != nil {
		return nil, err
	}
	defer unix.Close(trampoline)
	for i := range s.Count {
		files := []uintptr{0, 1, 2}
		if s.Piped {
			files[0], files[1] = uintptr(firstPipeFD+2*i), uintptr(firstPipeFD+2*i+1)
		}
		pid, err := s.execute(trampoline, program, files)
		if err != nil {
			return pids, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// execute starts the command with files.
func (s *spec) execute(trampoline int, program string, files []uintptr) (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, failed("make a socket", err)
	}
	status := os.NewFile(uintptr(pair[0]), "status")
	defer status.Close()
	args := append([]string{trampolineArgument(len(files), program)}, s.Args...)
	files = append(files, uintptr(pair[1]))
	pid, err := syscall.ForkExec(fdPath(trampoline), args, &syscall.ProcAttr{Env: s.Env, Files: files, Sys: s.user()})
	unix.Close(pair[1])
	if err != nil {
		return 0, failed("start the command", err)
	}
	s.limit(pid)
	if _, err := status.Write([]byte{0}); err != nil {
		return 0, failed("start the command", err)
	}
	if err := heard(status); err != nil {
		waitFor(pid)
		return 0, s.Foreign.explain(notExecutable(program, err))
	}
	return pid, nil
}

// launchEmulated has the spec's processes started under root emulation, and begins to answer.
func (in *initProcess) launchEmulated() ([]int, error) {
	defer in.starter.Close()
	socket := int(in.starter.Fd())
	root, err := openPath("/")
	if err != nil {
		return nil, failed("open the root of the image", err)
	}
	err = sendFD(socket, root)
	unix.Close(root)
	if err == nil {
		err = json.NewEncoder(in.starter).Encode(in.spec)
	}
	if err != nil {
		return nil, failed("tell the starter what to start", err)
	}
	listener, rest, err := receiveFD(socket)
	if err != nil {
		return nil, failed("hear of the starter", err)
	}
	if listener >= 0 {
		if err := in.supervise(listener); err != nil {
			return nil, err
		}
	}
	var said started
	if err := json.NewDecoder(io.MultiReader(bytes.NewReader(rest), in.starter)).Decode(&said); err != nil {
		return nil, failed("start the command", fmt.Errorf("the process that starts it ended without a word: %w", err))
	}
	if said.Failure != nil {
		return nil, said.Failure
	}
	return said.PIDs, nil
}

// startStarter starts the starter with the command's files, and a socket as [controlFD].
func (in *initProcess) startStarter() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed("make a socket", err)
	}
	in.starter = os.NewFile(uintptr(pair[0]), "socket")
	const none = ^uintptr(0)
	files := []uintptr{0, 1, 2, uintptr(pair[1]), none}
	if in.spec.Piped {
		for i := range 2 * in.spec.Count {
			files = append(files, uintptr(firstPipeFD+i))
		}
	}
	_, err = syscall.ForkExec("/proc/self/exe", []string{starterName}, &syscall.ProcAttr{Env: initEnv, Files: files})
	unix.Close(pair[1]) // so that the starter's end is heard of
	if err != nil {
		return failed("start a process that starts the command", err)
	}
	if _, err := io.ReadFull(in.starter, make([]byte, len(starterRuns))); err != nil {
		return failed("start a process that starts the command", fmt.Errorf("it ended without a word: %w", err))
	}
	return nil
}

// starterRuns is what the starter says first. Init waits for it before it changes the mounts: a starter that is linked dynamically, as
// those of tests are, would not find its libraries any more.
const starterRuns = "\n"

// runStarter is all that the starter does.
func runStarter() int {
	runtime.LockOSThread()
	signal.Notify(make(chan os.Signal, 1), keySignals...)
	socket := os.NewFile(controlFD, "socket")
	if _, err := io.WriteString(socket, starterRuns); err != nil {
		return codeNotMade
	}
	pids, err := startEmulated(socket)
	said := started{PIDs: pids}
	if err != nil {
		said.Failure = failed("start the command", err)
	}
	if json.NewEncoder(socket).Encode(said) != nil {
		return codeNotMade
	}
	return 0
}

func startEmulated(socket *os.File) ([]int, error) {
	root, _, err := receiveFD(controlFD)
	if err != nil || root < 0 {
		return nil, failed("hear of the root of the image", err)
	}
	var s spec
	if err := json.NewDecoder(socket).Decode(&s); err != nil {
		return nil, failed("read what to start", err)
	}
	if err := keepOnlyStreams(); err != nil {
		return nil, failed("close what the command does not get", err)
	}
	if err := errors.Join(unix.Fchdir(root), unix.Chroot(".")); err != nil {
		return nil, failed("move into the image", err)
	}
	if err := (inRoot{root}).chdir(s.WorkDir); err != nil {
		return nil, err
	}
	if err := s.dropRights(); err != nil {
		return nil, err
	}
	listener, err := rootemu.Filter(s.UID != 0)
	if err != nil {
		return nil, cannotEmulate(err)
	}
	// Nothing that makes a call under the filter may come before this: nobody answers yet.
	err = sendFD(controlFD, listener)
	unix.Close(listener)
	if err != nil {
		return nil, failed("send the listener", err)
	}
	return launch(&s)
}

// sendFD sends a file descriptor, with white space that JSON can follow.
func sendFD(socket, fd int) error {
	return unix.Sendmsg(socket, []byte("\n"), unix.UnixRights(fd), nil, 0)
}

// receiveFD takes the first byte that comes, and the file descriptor with it; that is -1 if there is none. It is closed in what
// is started.
func receiveFD(socket int) (fd int, first []byte, err error) {
	first, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	var n, m int
	for {
		n, m, _, _, err = unix.Recvmsg(socket, first, rights, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return -1, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) == 0 {
		return -1, first[:n], err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, first[:n], err
	}
	return fds[0], first[:n], nil
}

// byNumber returns the index of each process, by its number.
func byNumber(pids []int) map[int]int {
	indexes := map[int]int{}
	for i, pid := range pids {
		indexes[pid] = i
	}
	return indexes
}
