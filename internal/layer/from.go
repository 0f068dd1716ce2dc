package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
)

// FromDir makes a layer of everything below dir. Hard links inside dir, devices and the extended attributes that images carry
// (user.* and security.capability) are kept, sockets are not. Times later than o.ModTime become that. Owners are kept when
// root asks; for anybody else what belongs to the caller belongs to root in the layer. Directory dir itself has no entry:
// its permissions say more about the caller's umask than about the image.
func FromDir(ctx context.Context, st *store.Store, dir string, o Options) (Descriptor, error) {
	w, err := NewWriter(ctx, st, o)
	if err != nil {
		return Descriptor{}, err
	}
	defer w.Abort()
	d := dirReader{w: w, dir: dir, caller: os.Geteuid(), links: map[inode]string{}}
	if err := d.readDir("."); err != nil {
		return Descriptor{}, fmt.Errorf("make a layer of %s: %w", dir, err)
	}
	return w.Close()
}

// dirReader adds a directory to a layer.
type dirReader struct {
	w      *Writer
	dir    string
	caller int              // user who runs this process
	links  map[inode]string // first path of each file that has several
}

type inode struct{ dev, ino uint64 }

// readDir adds what lies in the directory p. os.ReadDir sorts by name, and a directory is read right after its entry is
// added: together that is the order of Less.
func (d *dirReader) readDir(p string) error {
	list, err := os.ReadDir(filepath.Join(d.dir, p))
	if err != nil {
		return err
	}
	for _, item := range list {
		if err := d.add(filepath.Join(p, item.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (d *dirReader) add(p string) error {
	full := filepath.Join(d.dir, p)
	var s unix.Stat_t
	if err := unix.Lstat(full, &s); err != nil {
		return &fs.PathError{Op: "lstat", Path: full, Err: err}
	}
	e := Entry{Path: p, Mode: s.Mode & 0o7777, UID: int(s.Uid), GID: int(s.Gid)}
	if d.caller != 0 && e.UID == d.caller {
		e.UID, e.GID = 0, 0
	}
	e.ModTime = clamp(unixTime(s.Mtim), d.w.opts.ModTime)
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return d.addFile(e, full, &s)
	case unix.S_IFDIR:
		e.Type = Dir
	case unix.S_IFLNK:
		e.Type = Symlink
		e.Mode = 0o777
		link, err := os.Readlink(full)
		if err != nil {
			return err
		}
		e.Link = link
	case unix.S_IFCHR, unix.S_IFBLK:
		e.Type = Char
		if s.Mode&unix.S_IFMT == unix.S_IFBLK {
			e.Type = Block
		}
		e.Major, e.Minor = unix.Major(s.Rdev), unix.Minor(s.Rdev)
	case unix.S_IFIFO:
		e.Type = Fifo
	default:
		return nil // a socket, which means nothing without the process that listens
	}
	var err error
	if e.Xattrs, err = readXattrs(full); err != nil {
		return err
	}
	if err := d.w.Add(e, nil); err != nil || e.Type != Dir {
		return err
	}
	return d.readDir(p)
}

func (d *dirReader) addFile(e Entry, full string, s *unix.Stat_t) error {
	if s.Nlink > 1 {
		id := inode{s.Dev, s.Ino}
		if first, ok := d.links[id]; ok {
			e.Type, e.Link = HardLink, first
			return d.w.Add(e, nil)
		}
		d.links[id] = e.Path
	}
	e.Size = s.Size
	var err error
	if e.Xattrs, err = readXattrs(full); err != nil {
		return err
	}
	return d.w.Add(e, func() (io.ReadCloser, error) {
		return os.OpenFile(full, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	})
}

// readXattrs returns the extended attributes of p that belong into an image.
func readXattrs(p string) (map[string]string, error) {
	names, err := listXattrs(p)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	var m map[string]string
	value := make([]byte, maxXattrBytes)
	for _, name := range names {
		if !inImage(name) {
			continue
		}
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr " + name, Path: p, Err: err}
		}
		if m == nil {
			m = map[string]string{}
		}
		m[name] = string(value[:n])
	}
	return m, nil
}

// listXattrs returns the names of all extended attributes of p, which is not followed.
func listXattrs(p string) ([]string, error) {
	size, err := unix.Llistxattr(p, nil)
	if errors.Is(err, unix.ENOTSUP) || size == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: p, Err: err}
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(p, list); err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: p, Err: err}
	}
	return strings.Split(strings.TrimSuffix(string(list[:size]), "\x00"), "\x00"), nil
}

// inImage reports whether an extended attribute is part of a file, not of the machine it lies on. What overlay notes for
// itself is not, and set by a hostile image it could lead the mount astray.
func inImage(name string) bool {
	return name == capability || strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, overlayXattrs) && name != originalXattr
}

const (
	capability    = "security.capability"
	overlayXattrs = "user.overlay."
)
