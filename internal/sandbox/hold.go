package sandbox

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A sandbox can be made without a command, for several processes that each run theirs in it with [Join]: the tasks of a job step.
// Its first process does nothing then but keep the mounts. Options.Shared says what the commands share with the host.

// Held is a sandbox for others to join.
type Held struct {
	session *session
	spaces  []*os.File
}

// Hold makes the sandbox of o, whose Args and streams are not used. It ends with ctx, with this process, and by Close.
func Hold(ctx context.Context, o Options) (*Held, error) {
	o.Shared, o.Args = true, []string{"-"}
	s, err := prepare(o, 1)
	if err != nil {
		return nil, err
	}
	if f := s.spec.Foreign; f != nil && f.Emulator == "" { // who joins could not say why nothing runs
		s.abandon()
		return nil, f.refused(unix.ENOEXEC)
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	h := &Held{session: s}
	if h.spaces, err = s.openSpaces(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Spaces are the sandbox's name spaces, in the order in which they are joined. They are closed by Close.
func (h *Held) Spaces() []*os.File { return h.spaces }

// UserNS reports whether the first of them is a user name space in which root is not the host's.
func (h *Held) UserNS() bool { return !h.session.spec.ofHostRoot() }

// Close ends what still runs in the sandbox, and the sandbox.
func (h *Held) Close() {
	h.endAll()
	for _, f := range h.spaces {
		f.Close()
	}
	h.session.control.Close() // which ends the first process, see endWithCaller
	<-h.session.done
}

// openSpaces opens the name spaces that the sandbox does not share with this process.
func (s *session) openSpaces() ([]*os.File, error) {
	var names []string
	if s.spec.UserNS {
		names = append(names, "user") // first: it gives the right to join the others
	}
	names = append(names, "mnt")
	if s.spec.Hostname != "" {
		names = append(names, "uts")
	}
	if s.spec.Loopback {
		names = append(names, "net")
	}
	var open []*os.File
	for _, name := range names {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", s.cmd.Process.Pid, name))
		if err != nil {
			for _, f := range open {
				f.Close()
			}
			return nil, failed("open the name spaces of the sandbox", err)
		}
		open = append(open, f)
	}
	return open, nil
}

// endAll kills the processes that are in the sandbox: what commands have left running. There is no pid name space whose end
// would be theirs. All are stopped before any is killed, so that they make no others meanwhile.
func (h *Held) endAll() {
	first := h.session.cmd.Process.Pid
	kind := "mnt"
	if h.UserNS() {
		kind = "user" // which none can leave but for one below it, while mounts of its own it can make
	}
	own, err := os.Stat(fmt.Sprintf("/proc/%d/ns/%s", first, kind))
	if err != nil {
		return
	}
	for range 100 {
		found := false
		for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			for _, pid := range processes() {
				if pid != first && within(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), own) {
					found = true
					_ = unix.Kill(pid, sig)
				}
			}
		}
		if !found {
			return
		}
	}
}

// within reports whether a name space is own or, of those of users, below it.
func within(name string, own os.FileInfo) bool {
	space, err := os.Open(name)
	for err == nil {
		var at os.FileInfo
		if at, err = space.Stat(); err == nil && os.SameFile(at, own) {
			space.Close()
			return true
		}
		fd, noParent := unix.IoctlRetInt(int(space.Fd()), unix.NS_GET_PARENT)
		space.Close()
		if err = noParent; err == nil {
			space = os.NewFile(uintptr(fd), "name space")
		}
	}
	return false
}

// processes lists those that this process can see.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
