package rootemu

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// supervisor answers system calls in the kernel's place.
type supervisor struct {
	listener int
	sizes    sizes
	upper    int    // directory that is the overlay's upper layer
	proc     int    // /proc
	files    int    // /proc/self/fd
	root     int    // this process's root
	rootIno  uint64 // its inode
	mount    uint64 // id of the mount that it is on: the overlay
	self     string // this process, as /proc calls it
	foreign  bool   // /proc is that of another pid namespace

	owners     *Owners
	mounts     map[uint64]*Owners                                    // see Options
	original   func(name string, st *unix.Stat_t) (Attributes, bool) // see Options
	recorded   map[uint64]struct{}                                   // inode numbers, in the overlay, of files that may have a record
	identities *identities
	pids       map[int]string // by thread id: its directory in a foreign /proc
	pending    atomic.Pointer[pending]

	pathText [unix.PathMax]byte // where paths are read to
}

// notification is struct seccomp_notif of seccomp_unotify(2).
type notification struct {
	id     uint64
	pid    uint32
	_      uint32 // flags, none is defined
	number int32
	arch   uint32
	_      uint64 // instruction pointer
	args   [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// errKernel is what an answer may be besides a value and an error of the kernel.
var errKernel = errors.New("the kernel does it")

// serve answers until the last process has ended that could ask.
func (s *supervisor) serve() {
	// In words, for the alignment of 64-bit numbers, and as large as this kernel's structures are.
	in := make([]uint64, (max(int(s.sizes.notification), int(unsafe.Sizeof(notification{})))+7)/8)
	out := make([]uint64, (max(int(s.sizes.response), int(unsafe.Sizeof(response{})))+7)/8)
	n, r := (*notification)(unsafe.Pointer(&in[0])), (*response)(unsafe.Pointer(&out[0]))
	for {
		clear(in) // the kernel insists
		if _, errno := s.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n)); errno != 0 {
			if errno == unix.ENOENT { // the process was killed meanwhile
				if s.deserted() {
					return
				}
				continue
			}
			panic(errno) // ends the sandbox: better than calls that are never answered
		}
		value, err := s.answer(n)
		if errors.Is(err, errKernel) {
			*r = response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		} else {
			*r = response{id: n.id, value: value, errno: -int32(errnoOf(err))}
		}
		s.pending.Store(nil)
		_, _ = s.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(r)) // ENOENT: the process was killed meanwhile
	}
}

// deserted reports whether no process is left under the filter.
func (s *supervisor) deserted() bool {
	fds := []unix.PollFd{{Fd: int32(s.listener)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLHUP != 0
}

// ioctl makes a request of seccomp_unotify(2), again if it was interrupted: an answer that is not sent is waited for for ever.
func (s *supervisor) ioctl(request uintptr, arg unsafe.Pointer) (uintptr, unix.Errno) {
	for {
		value, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), request, uintptr(arg))
		if errno != unix.EINTR {
			return value, errno
		}
	}
}

// alive returns an error if the process that waits for the answer is gone. What was opened of a process, by its number, is
// that process's if it still waits afterwards.
func (s *supervisor) alive(n *notification) error {
	id := n.id
	if _, errno := s.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)); errno != 0 {
		return errno
	}
	return nil
}

func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return unix.EIO
}

// answer does what was called for.
func (s *supervisor) answer(n *notification) (int64, error) {
	c, ok := find(n.arch, uint32(n.number))
	if !ok {
		return 0, unix.ENOSYS
	}
	p := &process{supervisor: s, notification: n, short: c.short}
	s.pending.Store(&pending{id: n.id, call: c.call, pid: int(n.pid)})
	arg := func(i int) int { return int(int32(n.args[i])) }
	id := func(i int) uint32 { return p.id(n.args[i]) }
	switch c.call {
	case callChown:
		return 0, p.chownAt(unix.AT_FDCWD, n.args[0], id(1), id(2), 0)
	case callLchown:
		return 0, p.chownAt(unix.AT_FDCWD, n.args[0], id(1), id(2), unix.AT_SYMLINK_NOFOLLOW)
	case callFchown:
		return 0, p.chownFD(arg(0), id(1), id(2))
	case callFchownat:
		return 0, p.chownAt(arg(0), n.args[1], id(2), id(3), arg(4))
	case callMknod:
		return 0, p.mknodAt(unix.AT_FDCWD, n.args[0], uint32(n.args[1]), n.args[2])
	case callMknodat:
		return 0, p.mknodAt(arg(0), n.args[1], uint32(n.args[2]), n.args[3])
	}
	switch {
	case c.call >= callStat:
		return 0, p.stat(c.call, n.args)
	case c.call >= callAccess:
		return 0, p.access(c.call, n.args)
	case c.call >= callOpen:
		return p.create(c.call, n.args)
	}
	return p.identify(c.call, n.args)
}
