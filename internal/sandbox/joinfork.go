package sandbox

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process with several threads cannot join a user name space (setns(2)), and a Go program always has several. So the process that
// becomes the command is forked here by hand, and joins before it executes the command's file: between the two it has one thread,
// which may do nothing but make system calls, as in the standard library's syscall.forkAndExecInChild. It also means that nothing
// of sconce is executed among the image's files.

// These stop the runtime from disturbing a fork. The runtime keeps them for programs like this one: see their comments in
// runtime/proc.go.

//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

//go:linkname runtimeAfterForkInChild syscall.runtime_AfterForkInChild
func runtimeAfterForkInChild()

// joinPlan is all that the child needs, in the kernel's form: it cannot make anything itself.
type joinPlan struct {
	options JoinOptions
	tried   []string

	spaces  []uintptr // file descriptors
	drop    []uintptr // capabilities
	workDir *byte
	files   []*byte // that may be the command
	argv    []*byte
	envv    []*byte
	closed  []closeRange
	pass    []uintptr // file descriptors
	parent  uintptr
	status  uintptr // file descriptor of the pipe for what failed
	said    [3]int32
}

// closeRange is a range of file descriptors that the command does not get.
type closeRange struct{ first, last uintptr }

func planJoin(o JoinOptions) (*joinPlan, error) {
	p := &joinPlan{options: o, tried: searchFor(o.Args[0], o.Env), parent: uintptr(os.Getpid()), closed: except(o.Pass)} //nolint:gosec // a process id
	for _, f := range o.Spaces {
		p.spaces = append(p.spaces, f.Fd())
	}
	for _, fd := range o.Pass {
		p.pass = append(p.pass, uintptr(fd)) //nolint:gosec // a file descriptor
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if droppedCapability(c, o.UserNS) {
			p.drop = append(p.drop, uintptr(c))
		}
	}
	dir := o.WorkDir
	if dir == "" {
		dir = "/"
	}
	var err error
	if p.workDir, err = unix.BytePtrFromString(dir); err != nil {
		return nil, failed("change to the working directory", err)
	}
	for _, list := range []struct {
		to   *[]*byte
		from []string
	}{{&p.files, p.tried}, {&p.argv, o.Args}, {&p.envv, o.Env}} {
		for _, text := range list.from {
			b, err := unix.BytePtrFromString(text)
			if err != nil {
				return nil, failed("start the command", err)
			}
			*list.to = append(*list.to, b)
		}
	}
	p.argv, p.envv = append(p.argv, nil), append(p.envv, nil)
	return p, nil
}

// except returns the ranges of file descriptors above the standard streams that leave out some.
func except(pass []int) []closeRange {
	var ranges []closeRange
	next := uintptr(3)
	for _, fd := range slices.Sorted(slices.Values(pass)) {
		if fd < int(next) { //nolint:gosec // a small number
			continue
		}
		if uintptr(fd) > next {
			ranges = append(ranges, closeRange{next, uintptr(fd) - 1})
		}
		next = uintptr(fd) + 1
	}
	return append(ranges, closeRange{next, math.MaxUint32})
}

// start forks, and returns when the command's file has been executed or could not be. The caller's goroutine is bound to its thread
// from then on.
func (p *joinPlan) start() (pid int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, failed("make a pipe", err)
	}
	defer r.Close()
	p.status = w.Fd()
	runtime.LockOSThread()
	syscall.ForkLock.Lock()
	n, errno := p.fork()
	syscall.ForkLock.Unlock()
	w.Close()
	runtime.KeepAlive(p.options.Spaces)
	if errno != 0 {
		return 0, failed("start a process", errno)
	}
	pid = int(n) //nolint:gosec // a process id
	said := make([]byte, unsafe.Sizeof(p.said))
	if _, err := io.ReadFull(r, said); err != nil {
		return pid, nil //nolint:nilerr // nothing was said: the pipe was closed by executing
	}
	waitFor(pid)
	word := func(i int) int32 { return int32(binary.NativeEndian.Uint32(said[4*i:])) } //nolint:gosec // as it was written
	return 0, explainJoin(p.options, p.tried, word(0), word(1), unix.Errno(word(2)))   //nolint:gosec // an error number
}

// fork makes the child. In it this function does not return. Nothing here may grow the stack or allocate after the fork.
//
//go:noinline
//go:norace
//go:nocheckptr
func (p *joinPlan) fork() (uintptr, syscall.Errno) { //nolint:gocognit // a list of calls, which cannot be taken apart: a function would be one more frame
	var (
		pid                 uintptr
		errno, why, missing syscall.Errno
		part                int32
		index, i            int
	)
	runtimeBeforeFork()
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		runtimeAfterFork()
		return pid, errno
	}
	runtimeAfterForkInChild()

	part = joinSpaces
	for i = 0; i < len(p.spaces); i++ {
		if _, _, errno = syscall.RawSyscall(unix.SYS_SETNS, p.spaces[i], 0, 0); errno != 0 {
			goto failed
		}
	}
	// After the user name space: joining that takes it back.
	part = joinParent
	if _, _, errno = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0, 0); errno != 0 {
		goto failed
	}
	if pid, _, _ = syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); pid != p.parent {
		goto failed // who would read it is gone
	}
	part = joinCapabilities
	for i = 0; i < len(p.drop); i++ {
		_, _, errno = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, p.drop[i], 0, 0, 0, 0)
		if errno != 0 && errno != syscall.EINVAL { // EINVAL: older kernel
			goto failed
		}
	}
	part = joinPrivileges
	if _, _, errno = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		goto failed
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_UMASK, 0o022, 0, 0)
	part = joinWorkDir
	if _, _, errno = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(p.workDir)), 0, 0); errno != 0 {
		goto failed
	}
	for i = 0; i < len(p.closed); i++ {
		_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, p.closed[i].first, p.closed[i].last, unix.CLOSE_RANGE_CLOEXEC)
	}
	part, why = joinMissing, syscall.ENOENT
	for i = 0; i < len(p.pass); i++ {
		_, _, _ = syscall.RawSyscall(unix.SYS_FCNTL, p.pass[i], unix.F_SETFD, 0)
	}
	for i = 0; i < len(p.files); i++ {
		_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(p.files[i])), uintptr(unsafe.Pointer(&p.argv[0])), uintptr(unsafe.Pointer(&p.envv[0])))
		if errno == syscall.ENOENT || errno == syscall.ENOTDIR {
			// Is it the file that is not there, or its interpreter?
			if _, _, missing = syscall.RawSyscall6(unix.SYS_FACCESSAT, atFDCWD, uintptr(unsafe.Pointer(p.files[i])), 0, 0, 0, 0); missing != 0 {
				continue
			}
		}
		part, index, why = joinExec, i, errno
		if errno != syscall.EACCES { // past which execvp(3) goes on
			break
		}
	}
	errno = why
failed:
	p.said[0], p.said[1], p.said[2] = part, int32(index), int32(errno) //nolint:gosec // small numbers
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, p.status, uintptr(unsafe.Pointer(&p.said)), unsafe.Sizeof(p.said))
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, codeNotMade, 0, 0)
	}
}

// atFDCWD is AT_FDCWD as an argument of a system call.
var atFDCWD = ^uintptr(99) // -100
