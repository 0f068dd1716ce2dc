package rootemu

import (
	"slices"

	"golang.org/x/sys/unix"
)

// To the kernel every process of the sandbox is root, who may do everything. Who has become somebody else is refused here
// what the owners and modes of files forbid, where programs ask for it or rely on it: see the page of this package.

// The permissions of access(2), which are those of a class in a file's mode.
const (
	mayExecute = 1
	mayWrite   = 2
	mayRead    = 4
)

// access answers access(2) and its kin.
func (p *process) access(c call, args [6]uint64) error {
	arg := func(i int) int { return int(int32(args[i])) }
	switch c {
	case callAccess:
		return p.accessAt(unix.AT_FDCWD, args[0], arg(1), 0)
	case callFaccessat:
		return p.accessAt(arg(0), args[1], arg(2), 0)
	case callFaccessat2:
		return p.accessAt(arg(0), args[1], arg(2), arg(3))
	}
	return unix.ENOSYS
}

func (p *process) accessAt(dirfd int, addr uint64, mode, flags int) error {
	i, err := p.identity()
	if err != nil {
		return errKernel
	}
	user, group := i.users.real, i.groups.real
	if flags&unix.AT_EACCESS != 0 {
		user, group = i.users.fs, i.groups.fs
	}
	if user == 0 || mode == 0 {
		return errKernel
	}
	fd, err := p.openAt(dirfd, addr, flags)
	if err != nil {
		return errKernel
	}
	defer unix.Close(fd)
	if p.keeps(fd) && !i.may(user, group, p.attributesOf(fd), uint32(mode)) {
		return unix.EACCES
	}
	return errKernel
}

// may tells whether a user may do to a file what its mode says in its three lowest bits (path_resolution(7), "Permissions").
func (i *identity) may(user, group uint32, a Attributes, what uint32) bool {
	class := a.Mode
	switch {
	case user == 0 || a.Mode&unix.S_IFMT == unix.S_IFLNK:
		return true
	case uint32(a.UID) == user:
		class >>= 6
	case uint32(a.GID) == group || slices.Contains(i.supplementary, uint32(a.GID)):
		class >>= 3
	}
	return what&^class&7 == 0
}

// attributesOf returns the attributes of an open file of the image, whoever knows them.
func (s *supervisor) attributesOf(fd int) Attributes {
	if a, known := s.attributes(fd); known {
		return a
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return Attributes{Mode: 0o777} // the kernel will say what is wrong
	}
	return Attributes{Mode: st.Mode}
}

// mayMakeIn tells whether a process may make files in a directory.
func (p *process) mayMakeIn(i *identity, dir int) bool {
	return i.keeps != "" || !p.keeps(dir) || i.may(i.users.fs, i.groups.fs, p.attributesOf(dir), mayWrite|mayExecute)
}

// mayOpen tells whether a process may open what is there with flags.
func (p *process) mayOpen(i *identity, dirfd int, addr uint64, flags uint32) bool {
	what := uint32(mayRead)
	switch flags & unix.O_ACCMODE {
	case unix.O_WRONLY:
		what = mayWrite
	case unix.O_RDWR:
		what = mayRead | mayWrite
	}
	if flags&unix.O_TRUNC != 0 {
		what |= mayWrite
	}
	if i.users.fs == 0 || i.keeps != "" || flags&unix.O_PATH != 0 {
		return true
	}
	follow := 0
	if flags&unix.O_NOFOLLOW != 0 {
		follow = unix.AT_SYMLINK_NOFOLLOW
	}
	fd, err := p.openAt(dirfd, addr, follow)
	if err != nil {
		return true // the kernel will say what is wrong
	}
	defer unix.Close(fd)
	return !p.keeps(fd) || i.may(i.users.fs, i.groups.fs, p.attributesOf(fd), what)
}
