package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
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
// of sconce is executed among the image's files, but for the trampoline.

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
	filter  *unix.SockFprog
	workDir *byte
	how     unix.OpenHow // opens it
	files   [][]*byte    // that may be the command: the arguments of the trampoline
	envv    []*byte
	empty   *byte
	closed  []closeRange
	pass    []uintptr // file descriptors
	parent  uintptr

	trampoline uintptr // file descriptor
	status     uintptr // file descriptor of the pipe for what failed
	written    uintptr // what that is when the trampoline has it
	said       [2]int32
	errno      int32
}

// closeRange is a range of file descriptors that the command does not get.
type closeRange struct{ first, last uintptr }

func planJoin(o JoinOptions) (*joinPlan, error) {
	p := &joinPlan{options: o, tried: searchFor(o.Args[0], o.Env), parent: uintptr(os.Getpid()), closed: except(o.Pass)}
	mounts := false
	for _, f := range o.Spaces {
		p.spaces = append(p.spaces, f.Fd())
		kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
		if err != nil {
			return nil, failed("join the sandbox of this job step", err)
		}
		mounts = mounts || kind == unix.CLONE_NEWNS
	}
	if !mounts { // the command would be a program of the host
		return nil, failed("join the sandbox of this job step", errors.New("it has no mounts of its own"))
	}
	for _, fd := range o.Pass {
		p.pass = append(p.pass, uintptr(fd))
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
	// With the rights that the child has then, a magic link of /proc would lead out of the image.
	p.how = unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if p.filter, err = callFilter(false, !o.UserNS); err != nil {
		return nil, err
	}
	trampoline, err := openTrampoline(0)
	if err != nil {
		return nil, err
	}
	p.trampoline = uintptr(trampoline)
	if err := p.write(trampoline); err != nil {
		unix.Close(trampoline)
		return nil, err
	}
	return p, nil
}

// write puts what the trampoline gets into the kernel's form.
func (p *joinPlan) write(trampoline int) (err error) {
	status := 3
	for status == trampoline || slices.Contains(p.options.Pass, status) {
		status++
	}
	if status > maxStatus {
		return failed("start the command", fmt.Errorf("it would get more than %d files", maxStatus))
	}
	p.written = uintptr(status)
	for _, file := range p.tried {
		argv, err := pointers(append([]string{trampolineArgument(status, file)}, p.options.Args...))
		if err != nil {
			return err
		}
		p.files = append(p.files, argv)
	}
	p.empty, _ = unix.BytePtrFromString("")
	p.envv, err = pointers(p.options.Env)
	return err
}

// pointers makes of texts what execve(2) takes.
func pointers(texts []string) ([]*byte, error) {
	list := make([]*byte, 0, len(texts)+1)
	for _, text := range texts {
		b, err := unix.BytePtrFromString(text)
		if err != nil {
			return nil, failed("start the command", err)
		}
		list = append(list, b)
	}
	return append(list, nil), nil
}

// except returns the ranges of file descriptors above the standard streams that leave out some.
func except(pass []int) []closeRange {
	var ranges []closeRange
	next := uintptr(3)
	for _, fd := range slices.Sorted(slices.Values(pass)) {
		if fd < int(next) {
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
	defer unix.Close(int(p.trampoline))
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
	pid = int(n)
	var said [2]int32
	if err := binary.Read(r, binary.NativeEndian, &said); err != nil {
		return pid, nil // it was killed
	}
	if err := heard(r); err != nil {
		waitFor(pid)
		return 0, explainJoin(p.options, p.tried, said[0], said[1], err)
	}
	return pid, nil
}

// fork makes the child. In it this function does not return. Nothing here may grow the stack or allocate after the fork.
//
//go:noinline
//go:norace
//go:nocheckptr
func (p *joinPlan) fork() (uintptr, syscall.Errno) { //nolint:gocognit,gocyclo // a list of calls, which cannot be taken apart: a function would be one more frame
	var (
		pid, fd    uintptr
		errno, why syscall.Errno
		part       int32
		index, i   int
		st         syscall.Stat_t
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
	part = joinFilter
	for i = 0; i < len(filterFlags); i++ {
		_, _, errno = syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, filterFlags[i], uintptr(unsafe.Pointer(p.filter)))
		if errno == 0 {
			break
		}
	}
	if errno != 0 {
		goto failed
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_UMASK, 0o022, 0, 0)
	part = joinWorkDir
	fd, _, errno = syscall.RawSyscall6(unix.SYS_OPENAT2, atFDCWD, uintptr(unsafe.Pointer(p.workDir)), uintptr(unsafe.Pointer(&p.how)), unsafe.Sizeof(p.how), 0, 0)
	if errno != 0 {
		goto failed
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_FCHDIR, fd, 0, 0); errno != 0 {
		goto failed
	}
	for i = 0; i < len(p.closed); i++ {
		_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, p.closed[i].first, p.closed[i].last, unix.CLOSE_RANGE_CLOEXEC)
	}
	for i = 0; i < len(p.pass); i++ {
		_, _, _ = syscall.RawSyscall(unix.SYS_FCNTL, p.pass[i], unix.F_SETFD, 0)
	}
	// As execvp(3), which goes on past what is not there and what may not be executed.
	part, why = joinMissing, syscall.ENOENT
	for i = 0; i < len(p.files); i++ {
		_, _, errno = syscall.RawSyscall6(sysNewfstatat, atFDCWD, uintptr(unsafe.Pointer(p.files[i][0]))+1, uintptr(unsafe.Pointer(&st)), 0, 0, 0)
		if errno == syscall.ENOENT || errno == syscall.ENOTDIR {
			continue
		}
		part, index, why = joinExec, i, errno
		if errno != 0 && errno != syscall.EACCES {
			break
		}
		if errno == 0 && st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			if _, _, errno = syscall.RawSyscall(unix.SYS_FACCESSAT, atFDCWD, uintptr(unsafe.Pointer(p.files[i][0]))+1, unix.X_OK); errno == 0 {
				goto found
			}
		}
		why = syscall.EACCES
	}
	errno = why
	goto failed
found:
	p.said[0], p.said[1] = part, int32(index)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, p.status, uintptr(unsafe.Pointer(&p.said)), unsafe.Sizeof(p.said))
	_, _, _ = syscall.RawSyscall(unix.SYS_DUP3, p.status, p.written, unix.O_CLOEXEC) // which does nothing when they are one
	_, _, _ = syscall.RawSyscall(unix.SYS_FCNTL, p.written, unix.F_SETFD, 0)
	_, _, errno = syscall.RawSyscall6(unix.SYS_EXECVEAT, p.trampoline, uintptr(unsafe.Pointer(p.empty)), uintptr(unsafe.Pointer(&p.files[index][0])), uintptr(unsafe.Pointer(&p.envv[0])), unix.AT_EMPTY_PATH, 0)
	goto wrote
failed:
	p.said[0], p.said[1] = part, int32(index)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, p.status, uintptr(unsafe.Pointer(&p.said)), unsafe.Sizeof(p.said))
wrote:
	p.errno = -int32(errno)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, p.status, uintptr(unsafe.Pointer(&p.errno)), unsafe.Sizeof(p.errno))
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, codeNotMade, 0, 0)
	}
}

// atFDCWD is AT_FDCWD as an argument of a system call.
var atFDCWD = ^uintptr(99) // -100
