package rootemu

import (
	"errors"
	"path"
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
	err := unix.Fchownat(fd, "", mapped(uid), mapped(gid), unix.AT_EMPTY_PATH)
	inImage := p.inImage(fd)
	if errors.Is(err, unix.EPERM) && !inImage {
		return nil // a file of the host's, such as /dev/null: nobody will ask for its owner
	}
	if err != nil || !inImage {
		return err
	}
	asked := IDs{Unset, Unset}
	if uid != keep {
		asked.UID = int(uid)
	}
	if gid != keep {
		asked.GID = int(gid)
	}
	return p.record(fd, func(f file) error { return p.owners.chown(f, asked) })
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

// mknodAt is mknodat(2) for device nodes.
func (p *process) mknodAt(dirfd int, addr uint64, mode uint32, dev uint64) error {
	name, err := p.text(addr)
	if err != nil {
		return err
	}
	if name == "" {
		return unix.ENOENT
	}
	dir, base := splitLast(name)
	umask, err := p.umask()
	if err != nil {
		return err
	}
	parent, err := p.find(dirfd, dir, unix.O_DIRECTORY)
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
	if !p.inImage(fd) {
		return nil
	}
	return p.record(fd, func(f file) error {
		return p.owners.mknod(f, mode&unix.S_IFMT, uint64(uint32(dev))) //nolint:gosec // the kernel cuts it as well
	})
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

// record records something of an open file of the image.
func (s *supervisor) record(fd int, change func(file) error) error {
	upper, name, err := s.openUpper(fd)
	if errors.Is(err, unix.ENOENT) {
		return nil // it has been removed: it will be in no layer
	}
	if err != nil {
		return err
	}
	defer unix.Close(upper)
	var st unix.Stat_t
	if err := unix.Fstat(upper, &st); err != nil {
		return err
	}
	return change(file{inode{st.Dev, st.Ino}, generation(upper, "", unix.AT_EMPTY_PATH), name})
}

// renames is how often a file may be renamed while it is looked for.
const renames = 100

// openUpper opens the file in the upper layer that is behind an open file of the overlay, and returns its path in both. The overlay keeps a file's
// path (directories are not redirected when an ordinary user mounts it) but not always its inode number.
func (s *supervisor) openUpper(fd int) (upper int, name string, err error) {
	link := s.self + "/fd/" + strconv.Itoa(fd)
	name, err = readLinkAt(s.proc, link)
	for range renames {
		if err != nil {
			return -1, "", err
		}
		how := &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		}
		upper, openErr := unix.Openat2(s.upper, "."+path.Clean(name), how)
		was := name
		if name, err = readLinkAt(s.proc, link); err == nil && name == was {
			return upper, name, openErr
		}
		if openErr == nil {
			unix.Close(upper)
		}
	}
	return -1, "", unix.EBUSY
}
