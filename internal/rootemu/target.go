package rootemu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// process is the thread that made a call and waits for the answer.
type process struct {
	*supervisor
	*notification
	short bool // its user and group ids have 16 bits
}

// id reads an id from an argument; -1, in whichever width, is [keep].
func (p *process) id(arg uint64) uint32 {
	if p.short {
		if uint16(arg) == 0xffff {
			return keep
		}
		return uint32(uint16(arg))
	}
	return uint32(arg)
}

const pageSize = 4096 // reads that stay within one succeed or fail as a whole; larger pages are multiples of it

// text reads a path from the process's memory.
func (p *process) text(addr uint64) (string, error) {
	buf := p.pathText[:]
	for n := 0; n < len(buf); {
		part := buf[n:min(len(buf), n+pageSize-int((addr+uint64(n))%pageSize))]
		if err := p.copyMemory(unix.ProcessVMReadv, addr+uint64(n), part); err != nil {
			return "", err
		}
		if end := bytes.IndexByte(part, 0); end >= 0 {
			name := string(buf[:n+end])
			if waiting := p.pending.Load(); waiting != nil {
				waiting.path.Store(&name)
			}
			return name, nil
		}
		n += len(part)
	}
	return "", unix.ENAMETOOLONG
}

func (p *process) read(addr uint64, b []byte) error {
	return p.copyMemory(unix.ProcessVMReadv, addr, b)
}

func (p *process) write(addr uint64, b []byte) error {
	if err := p.alive(p.notification); err != nil {
		return err
	}
	return p.copyMemory(unix.ProcessVMWritev, addr, b)
}

func (p *process) copyMemory(way func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := way(int(p.pid), local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err != nil {
		return err
	}
	if n != len(b) {
		return unix.EFAULT
	}
	return nil
}

// openOwn opens an entry of the process's directory in /proc: its root, its working directory, one of its files.
func (p *process) openOwn(entry string) (int, error) {
	dir, err := p.procDir(int(p.pid))
	if err != nil {
		return -1, err
	}
	return unix.Openat(p.proc, dir+"/"+entry, unix.O_PATH|unix.O_CLOEXEC, 0)
}

// openFD names what a file descriptor of the process is open on.
func (p *process) openFD(fd int) (int, error) {
	if fd < 0 {
		return -1, unix.EBADF
	}
	own, err := p.openOwn("fd/" + strconv.Itoa(fd))
	if errors.Is(err, unix.ENOENT) {
		err = unix.EBADF
	}
	return own, err
}

// openDir opens where relative paths of the process start.
func (p *process) openDir(dirfd int) (int, error) {
	if dirfd == unix.AT_FDCWD {
		return p.openOwn("cwd")
	}
	return p.openFD(dirfd)
}

// find opens what the process calls name, with O_PATH and flags. Links are followed as they would be for the process: below
// its root, which it may have changed, from its working directory.
func (p *process) find(dirfd int, name string, flags uint64) (int, error) {
	if fd, ok := p.magicFD(name); ok && flags&unix.O_NOFOLLOW == 0 {
		return p.openFD(fd)
	}
	root, err := p.openOwn("root")
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	dir := root
	if !strings.HasPrefix(name, "/") {
		if dir, err = p.openDir(dirfd); err != nil {
			return -1, err
		}
		defer unix.Close(dir)
	}
	if err := p.alive(p.notification); err != nil {
		return -1, err
	}
	if !p.isRoot(root) {
		defer p.goHome()
		p.enter(root)
	}
	// The magic links of /proc are those of the supervisor here, not of the process.
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	return unix.Openat2(dir, name, how)
}

// isRoot reports whether a directory is this process's own root.
func (s *supervisor) isRoot(fd int) bool {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &st)
	return err == nil && st.Mnt_id == s.mount && st.Ino == s.rootIno
}

// enter makes root this thread's root.
func (s *supervisor) enter(root int) {
	err := unix.Fchdir(root)
	if err == nil {
		err = unix.Chroot(".")
	}
	if err != nil {
		panic(err) // in the wrong root no further call could be answered
	}
}

// goHome makes this process's own root the thread's again, and /proc/self/fd its working directory.
func (s *supervisor) goHome() {
	s.enter(s.root)
	if err := unix.Fchdir(s.files); err != nil {
		panic(err)
	}
}

// magicFD takes a path that by a magic link leads to an open file of the process for what it is. Programs use them to call
// by path what they have open.
func (p *process) magicFD(name string) (int, bool) {
	for _, prefix := range []string{"/proc/self/fd/", "/proc/thread-self/fd/", fmt.Sprintf("/proc/%d/fd/", p.pid), "/dev/fd/"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			fd, err := strconv.Atoi(rest)
			return fd, err == nil
		}
	}
	for fd, std := range []string{"/dev/stdin", "/dev/stdout", "/dev/stderr"} {
		if name == std {
			return fd, true
		}
	}
	return 0, false
}

// umask returns the process's file mode creation mask.
func (p *process) umask() (uint32, error) {
	dir, err := p.procDir(int(p.pid))
	if err != nil {
		return 0, err
	}
	text, err := statusField(p.proc, dir, "Umask")
	if err != nil {
		return 0, err
	}
	mask, err := strconv.ParseUint(text, 8, 32)
	return uint32(mask), err
}

// procDir returns the directory of a thread in /proc. Where the kernel allows no new /proc, which is so in a container that
// covers parts of its own, the one that is there has other numbers.
func (s *supervisor) procDir(tid int) (string, error) {
	if !s.foreign {
		return strconv.Itoa(tid), nil
	}
	if dir, ok := s.pids[tid]; ok && s.numberOf(dir) == tid {
		return dir, nil
	}
	s.pids = map[int]string{}
	for _, dir := range s.tasks() {
		if n := s.numberOf(dir); n > 0 {
			s.pids[n] = dir
		}
	}
	if dir, ok := s.pids[tid]; ok {
		return dir, nil
	}
	return "", unix.ESRCH
}

// tasks lists the threads in a foreign /proc.
func (s *supervisor) tasks() []string {
	var tasks []string
	for _, pid := range numbersIn(s.proc, ".") {
		for _, tid := range numbersIn(s.proc, pid+"/task") {
			tasks = append(tasks, pid+"/task/"+tid)
		}
	}
	return tasks
}

// numberOf returns the number of a thread in this process's pid namespace, which is the child of that of a foreign /proc; 0
// for a thread that is not in it.
func (s *supervisor) numberOf(dir string) int {
	text, err := statusField(s.proc, dir, "NSpid")
	if err != nil {
		return 0
	}
	ids, own := strings.Fields(text), 0
	if self, err := statusField(s.proc, s.self, "NSpid"); err == nil {
		own = len(strings.Fields(self))
	}
	if own == 0 || len(ids) < own {
		return 0
	}
	n, err := strconv.Atoi(ids[own-1])
	if err != nil || !s.sameNamespace(dir) {
		return 0
	}
	return n
}

// sameNamespace reports whether a thread of a foreign /proc is within this process's pid namespace: it has this process
// among its ancestors there, or is one of its threads.
func (s *supervisor) sameNamespace(dir string) bool {
	for range 1 << 16 { // no chain of parents is longer
		tgid, err := statusField(s.proc, dir, "Tgid")
		if err != nil {
			return false
		}
		if tgid == s.self {
			return true
		}
		parent, err := statusField(s.proc, dir, "PPid")
		if err != nil || parent == "0" {
			return false
		}
		dir = parent
	}
	return false
}

// numbersIn lists the names in a directory of /proc that are numbers.
func numbersIn(proc int, name string) []string {
	fd, err := unix.Openat(proc, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var numbers []string
	for _, n := range names {
		if _, err := strconv.Atoi(n); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// statusField reads a line of a process's status, see proc_pid_status(5).
func statusField(proc int, dir, field string) (string, error) {
	fd, err := unix.Openat(proc, dir+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, pageSize)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(buf[:n])) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", unix.ENODATA
}

func readLinkAt(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// bytesOf shows a number array as memory.
func bytesOf[T uint16 | uint32](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}
