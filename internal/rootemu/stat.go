package rootemu

import (
	"encoding/binary"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attributes are those of a file that only root can give it.
type Attributes struct {
	IDs
	Mode uint32 // as st_mode
	Rdev uint64 // as st_rdev
}

// stat answers the calls that tell the attributes of a file. Most files belong to root and are what the kernel says: the
// kernel is left to say so, and to refuse whatever it refuses.
func (p *process) stat(c call, args [6]uint64) error {
	arg := func(i int) int { return int(int32(args[i])) }
	switch c {
	case callStat:
		return p.statAt(unix.AT_FDCWD, args[0], 0, func(fd int, a Attributes) error { return p.giveStat(fd, a, args[1]) })
	case callLstat:
		return p.statAt(unix.AT_FDCWD, args[0], unix.AT_SYMLINK_NOFOLLOW, func(fd int, a Attributes) error { return p.giveStat(fd, a, args[1]) })
	case callFstat:
		return p.statAt(arg(0), 0, unix.AT_EMPTY_PATH, func(fd int, a Attributes) error { return p.giveStat(fd, a, args[1]) })
	case callFstatat:
		return p.statAt(arg(0), args[1], arg(3), func(fd int, a Attributes) error { return p.giveStat(fd, a, args[2]) })
	case callStatx:
		return p.statAt(arg(0), args[1], arg(2), func(fd int, a Attributes) error {
			return p.giveStatx(fd, a, arg(2), int(uint32(args[3])), args[4])
		})
	}
	return unix.ENOSYS
}

// statAt calls give for a file that is not what the kernel says.
func (p *process) statAt(dirfd int, addr uint64, flags int, give func(fd int, a Attributes) error) error {
	fd, err := p.openAt(dirfd, addr, flags)
	if err != nil {
		return errKernel // which says what is wrong
	}
	defer unix.Close(fd)
	a, known := p.attributes(fd)
	if !known {
		return errKernel
	}
	return give(fd, a)
}

// openAt opens the file that a call of the *at family means, with O_PATH.
func (p *process) openAt(dirfd int, addr uint64, flags int) (int, error) {
	name := ""
	if addr != 0 {
		var err error
		if name, err = p.text(addr); err != nil {
			return -1, err
		}
	}
	if name == "" {
		if flags&unix.AT_EMPTY_PATH == 0 {
			return -1, unix.ENOENT
		}
		return p.openDir(dirfd)
	}
	var how uint64
	if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		how = unix.O_NOFOLLOW
	}
	return p.find(dirfd, name, how)
}

// attributes returns those of an open file of the image; known is false if they are what the kernel says.
func (s *supervisor) attributes(fd int) (a Attributes, known bool) {
	var sx unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &sx) != nil {
		return a, false
	}
	mounted := s.mounts[sx.Mnt_id]
	if sx.Mnt_id != s.mount && mounted == nil {
		return a, false
	}
	a = Attributes{Mode: uint32(sx.Mode), Rdev: unix.Mkdev(sx.Rdev_major, sx.Rdev_minor)}
	if mounted != nil { // of the host's users there are more than one
		a.IDs = IDs{int(sx.Uid), int(sx.Gid)}
	}
	// The supervisor's working directory is /proc/self/fd.
	if kind := sx.Mode & unix.S_IFMT; s.original != nil && (kind == unix.S_IFREG || kind == unix.S_IFDIR) {
		st := unix.Stat_t{Mode: uint32(sx.Mode)}
		st.Mtim.Sec = sx.Mtime.Sec
		if from, ok := s.original(strconv.Itoa(fd), &st); ok {
			a.IDs, a.Mode, known = from.IDs, from.Mode, true
		}
	}
	r, ok := s.recordOf(fd, sx.Ino, mounted)
	if !ok {
		return a, known
	}
	a.IDs = r.Owner(a.IDs)
	if r.Device != 0 {
		a.Mode, a.Rdev = a.Mode&^unix.S_IFMT|r.Device, r.Rdev
	}
	return a, true
}

// recordOf returns the record of an open file with the given inode number, which is on a mount that has records or else in the
// image.
func (s *supervisor) recordOf(fd int, ino uint64, mounted *Owners) (r Record, ok bool) {
	if mounted != nil {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || !mounted.mayKnow(inode{st.Dev, ino}) {
			return r, false
		}
		f, err := fileOf(fd)
		if err != nil {
			return r, false
		}
		return mounted.of(f)
	}
	if _, may := s.recorded[ino]; !may {
		return r, false
	}
	f, err := s.upperFile(fd)
	if err != nil {
		return r, false
	}
	return s.owners.of(f)
}

// giveStat writes struct stat.
func (p *process) giveStat(fd int, a Attributes, addr uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errKernel
	}
	st.Uid, st.Gid, st.Mode = uint32(a.UID), uint32(a.GID), a.Mode
	setRdev(&st, a.Rdev)
	if p.arch == unix.AUDIT_ARCH_I386 {
		return p.write(addr, stat64(&st))
	}
	return p.write(addr, unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)))
}

func setRdev(st *unix.Stat_t, rdev uint64) { st.Rdev = rdev }

// stat64 encodes struct stat64 of arch/x86/include/uapi/asm/stat.h.
func stat64(st *unix.Stat_t) []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(nil, st.Dev)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint32{uint32(st.Ino), st.Mode, uint32(st.Nlink), st.Uid, st.Gid} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, st.Rdev)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, uint64(st.Size))
	b = le.AppendUint32(b, uint32(st.Blksize))
	b = le.AppendUint64(b, uint64(st.Blocks))
	for _, t := range []unix.Timespec{st.Atim, st.Mtim, st.Ctim} {
		b = le.AppendUint32(b, uint32(t.Sec))
		b = le.AppendUint32(b, uint32(t.Nsec))
	}
	return le.AppendUint64(b, st.Ino)
}

// giveStatx writes struct statx.
func (p *process) giveStatx(fd int, a Attributes, flags, mask int, addr uint64) error {
	var sx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|flags&(unix.AT_STATX_FORCE_SYNC|unix.AT_STATX_DONT_SYNC), mask, &sx); err != nil {
		return errKernel
	}
	sx.Uid, sx.Gid, sx.Mode = uint32(a.UID), uint32(a.GID), uint16(a.Mode)
	sx.Rdev_major, sx.Rdev_minor = unix.Major(a.Rdev), unix.Minor(a.Rdev)
	return p.write(addr, unsafe.Slice((*byte)(unsafe.Pointer(&sx)), unsafe.Sizeof(sx)))
}
