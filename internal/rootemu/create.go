package rootemu

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process that has become somebody else makes files that belong to that one. The supervisor makes them in its place, so
// that it knows which are new. What root makes is the kernel's affair.

// create answers the calls that make files.
func (p *process) create(c call, args [6]uint64) (int64, error) {
	arg := func(i int) uint32 { return uint32(args[i]) }
	dirfd := int(int32(args[0]))
	switch c {
	case callOpen:
		return p.open(unix.AT_FDCWD, args[0], arg(1), arg(2))
	case callOpenat:
		return p.open(dirfd, args[1], arg(2), arg(3))
	case callCreat:
		return p.open(unix.AT_FDCWD, args[0], unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, arg(1))
	case callMkdir:
		return 0, p.mkdirAt(unix.AT_FDCWD, args[0], arg(1))
	case callMkdirat:
		return 0, p.mkdirAt(dirfd, args[1], arg(2))
	case callSymlink:
		return 0, p.symlinkAt(args[0], unix.AT_FDCWD, args[1])
	case callSymlinkat:
		return 0, p.symlinkAt(args[0], int(int32(args[1])), args[2])
	}
	return 0, unix.ENOSYS
}

const permissions = 0o7777

func (p *process) mkdirAt(dirfd int, addr uint64, mode uint32) error {
	return p.makeOwned(dirfd, addr, func(parent int, base string, umask uint32) error {
		return unix.Mkdirat(parent, base, mode&permissions&^umask)
	})
}

func (p *process) symlinkAt(target uint64, dirfd int, addr uint64) error {
	return p.makeOwned(dirfd, addr, func(parent int, base string, _ uint32) error {
		text, err := p.text(target)
		if err != nil {
			return err
		}
		return unix.Symlinkat(text, parent, base)
	})
}

// makeOwned makes a file with the given function, and records that it belongs to who the process is.
func (p *process) makeOwned(dirfd int, addr uint64, create func(parent int, base string, umask uint32) error) error {
	owner, parent, base, umask, err := p.creator(dirfd, addr)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := create(parent, base, umask); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return p.record(fd, func(o *Owners, f file) error { return o.chown(f, owner) })
}

// creator tells to whom a file that the process makes will belong, and where that is. The error is errKernel if there is
// nothing to record.
func (p *process) creator(dirfd int, addr uint64) (owner IDs, parent int, base string, umask uint32, err error) {
	i, err := p.identity()
	if err != nil || i.users.fs == 0 && i.groups.fs == 0 {
		return owner, -1, "", 0, errKernel
	}
	if parent, base, umask, err = p.findNew(dirfd, addr); err != nil {
		return owner, -1, "", 0, errKernel // which says what is wrong
	}
	if !p.keeps(parent) {
		unix.Close(parent)
		return owner, -1, "", 0, errKernel
	}
	if !p.mayMakeIn(i, parent) {
		defer unix.Close(parent)
		var st unix.Stat_t
		if unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return owner, -1, "", 0, errKernel // which says that it is there, or opens it
		}
		return owner, -1, "", 0, unix.EACCES
	}
	owner = IDs{int(i.users.fs), int(i.groups.fs)}
	// With the setgid bit a directory gives its group to what is made in it.
	if a := p.attributesOf(parent); a.Mode&unix.S_ISGID != 0 {
		owner.GID = a.GID
	}
	return owner, parent, base, umask, nil
}

// open is openat(2) with the right to write, or O_CREAT.
func (p *process) open(dirfd int, addr uint64, flags, mode uint32) (int64, error) {
	if !mayChange(flags) {
		return p.openStatus(addr, flags)
	}
	if i, err := p.identity(); err == nil && !p.mayOpen(i, dirfd, addr, flags) {
		return 0, unix.EACCES
	}
	if flags&unix.O_CREAT == 0 {
		return 0, errKernel
	}
	owner, parent, base, umask, err := p.creator(dirfd, addr)
	if err != nil {
		return 0, err
	}
	defer unix.Close(parent)
	fd, err := unix.Openat(parent, base, int(flags)|unix.O_EXCL|unix.O_CLOEXEC, mode&permissions&^umask)
	if err != nil {
		return 0, errKernel // it is there already, or cannot be made
	}
	defer unix.Close(fd)
	if err := p.record(fd, func(o *Owners, f file) error { return o.chown(f, owner) }); err != nil {
		return 0, err
	}
	if flags&unix.O_EXCL == 0 {
		return 0, errKernel // opens the file that is there now
	}
	return p.hand(fd, flags&unix.O_CLOEXEC)
}

// mayChange reports whether open(2) with the given flags may change a file or make one.
func mayChange(flags uint32) bool { return flags&openingToChange != 0 }

// addFD is struct seccomp_notif_addfd of seccomp_unotify(2).
type addFD struct {
	id         uint64
	flags      uint32
	source     uint32
	target     uint32
	targetFlag uint32
}

// hand gives the process an open file, and returns its number there.
//
// SECCOMP_ADDFD_FLAG_SEND would do that and answer at once, but when it is interrupted the kernel (6.18 still) lets the process
// go with the answer 0: it takes its standard input for the new file. A signal may be blocked; that this process is stopped, or
// the machine suspended, cannot.
func (p *process) hand(fd int, flags uint32) (int64, error) {
	a := addFD{id: p.notification.id, source: uint32(fd), targetFlag: flags}
	given, errno := p.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a))
	if errno != 0 {
		return 0, errno
	}
	return int64(given), nil
}
