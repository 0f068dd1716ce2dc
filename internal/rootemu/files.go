package rootemu

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// chownAt is fchownat(2).
func (p *process) chownAt(dirfd int, addr uint64, uid, gid uint32, flags int) error {
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return unix.EINVAL
	}
	name, err := p.text(addr)
	if err != nil {
		return err
	}
	if name == "" && flags&unix.AT_EMPTY_PATH != 0 {
		if dirfd == unix.AT_FDCWD {
			name = "."
		} else {
			return p.chownFD(dirfd, uid, gid)
		}
	}
	var how uint64
	if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		how = unix.O_NOFOLLOW
	}
	fd, err := p.find(dirfd, name, how)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return p.chown(fd, uid, gid)
}

// chownFD is fchown(2).
func (p *process) chownFD(fd int, uid, gid uint32) error {
	own, err := p.openFD(fd)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	return p.chown(own, uid, gid)
}

// chown does what can be done of a chown, and records the rest.
func (p *process) chown(fd int, uid, gid uint32) error {
	if err := p.alive(p.notification); err != nil {
		return err
	}
	asked, err := p.mayGive(fd, uid, gid)
	if err != nil {
		return err
	}
	err = unix.Fchownat(fd, "", mapped(uid), mapped(gid), unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EPERM) && !p.inImage(fd) {
		err = nil // a file of another user of the host, such as /dev/null
	}
	if err != nil || !p.keeps(fd) {
		return err
	}
	return p.record(fd, func(o *Owners, f file) error { return o.chown(f, asked) })
}

// mayGive checks whether the process, as who it believes to be, may give a file to uid and gid. Only root gives files to
// others; their owners may give them to groups that they are in (chown(2)).
func (p *process) mayGive(fd int, uid, gid uint32) (IDs, error) {
	i, err := p.identity()
	if err != nil {
		return IDs{}, err
	}
	if me := i.users.fs; me != 0 {
		a, _ := p.attributes(fd)
		nothing := uid == keep && gid == keep
		if !nothing && uint32(a.UID) != me || !oneOf(uid, me) || !oneOf(gid, i.groups.fs, uint32(a.GID)) && !slices.Contains(i.supplementary, gid) {
			return IDs{}, unix.EPERM
		}
	}
	return IDs{askedID(uid), askedID(gid)}, nil
}

func askedID(id uint32) int {
	if id == keep {
		return Unset
	}
	return int(id)
}

// mapped returns the id by which the kernel knows the one user or group there is, unless nothing is to change.
func mapped(id uint32) int {
	if id == keep {
		return -1
	}
	return 0
}

// inImage reports whether a file is on the overlay that is this process's root.
func (s *supervisor) inImage(fd int) bool {
	var st unix.Statx_t
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st) == nil && st.Mnt_id == s.mount
}

// keeps reports whether what is asked for a file is recorded: it is in the image, or on one of Options.Mounts.
func (s *supervisor) keeps(fd int) bool {
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st) != nil {
		return false
	}
	return st.Mnt_id == s.mount || s.mounts[st.Mnt_id] != nil
}

// mknodAt is mknodat(2).
func (p *process) mknodAt(dirfd int, addr uint64, mode uint32, dev uint64) error {
	kind := mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return p.makeOwned(dirfd, addr, func(parent int, base string, umask uint32) error {
			return unix.Mknodat(parent, base, mode&^umask, int(dev))
		})
	}
	parent, base, umask, err := p.findNew(dirfd, addr)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := unix.Mknodat(parent, base, unix.S_IFREG|mode&^unix.S_IFMT&^umask, 0); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !p.keeps(fd) {
		return nil
	}
	return p.record(fd, func(o *Owners, f file) error {
		return o.mknod(f, kind, uint64(uint32(dev)))
	})
}

// findNew finds the directory in which the process wants to make a file, and the file's name in it.
func (p *process) findNew(dirfd int, addr uint64) (parent int, base string, umask uint32, err error) {
	name, err := p.text(addr)
	if err != nil {
		return -1, "", 0, err
	}
	if name == "" {
		return -1, "", 0, unix.ENOENT
	}
	if umask, err = p.umask(); err != nil {
		return -1, "", 0, err
	}
	dir, base := splitLast(name)
	parent, err = p.find(dirfd, dir, unix.O_DIRECTORY)
	return parent, base, umask, err
}

// splitLast splits a path before its last element, which keeps a slash behind it: the kernel makes no file there.
func splitLast(name string) (dir, base string) {
	end := len(strings.TrimRight(name, "/"))
	if end == 0 {
		return "/", "." // exists
	}
	at := strings.LastIndexByte(name[:end], '/')
	dir = name[:at+1]
	if dir == "" {
		dir = "."
	}
	return dir, name[at+1:]
}

// record records something of an open file of the image or of a mount, where that is recorded.
func (s *supervisor) record(fd int, change func(*Owners, file) error) error {
	var sx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &sx); err != nil {
		return err
	}
	if owners := s.mounts[sx.Mnt_id]; owners != nil {
		f, err := fileOf(fd)
		if err != nil {
			return err
		}
		return change(owners, f)
	}
	var shown unix.Stat_t
	if err := unix.Fstat(fd, &shown); err != nil {
		return err
	}
	s.recorded[shown.Ino] = struct{}{}
	f, err := s.upperFile(fd)
	if errors.Is(err, unix.ENOENT) {
		return nil // it has been removed: it will be in no layer
	}
	if err != nil {
		return err
	}
	return change(s.owners, f)
}

// fileOf describes an open file.
func fileOf(fd int) (file, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return file{}, err
	}
	return file{inode{st.Dev, st.Ino}, generation(fd, "", unix.AT_EMPTY_PATH)}, nil
}

// upperFile finds the file in the upper layer that is behind an open file of the overlay.
func (s *supervisor) upperFile(fd int) (file, error) {
	upper, err := s.openUpper(fd)
	if err != nil {
		return file{}, err
	}
	defer unix.Close(upper)
	return fileOf(upper)
}

// renames is how often a file may be renamed while it is looked for.
const renames = 100

// openUpper opens the file in the upper layer that is behind an open file of the overlay. The overlay keeps a file's path
// (directories are not redirected when an ordinary user mounts it) but not always its inode number.
func (s *supervisor) openUpper(fd int) (int, error) {
	link := strconv.Itoa(fd)
	name, err := readLinkAt(s.files, link)
	for range renames {
		if err != nil {
			return -1, err
		}
		how := &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		}
		upper, openErr := unix.Openat2(s.upper, "."+path.Clean(name), how)
		was := name
		if name, err = readLinkAt(s.files, link); err == nil && name == was {
			return upper, openErr
		}
		if openErr == nil {
			unix.Close(upper)
		}
	}
	return -1, unix.EBUSY
}
