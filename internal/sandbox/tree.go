package sandbox

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/squashfs"
)

// Squashfs returns the tree of a file system for Options.Tree. It shows what [Layers] would have unpacked: files have
// their owners and capabilities only for root, and for everybody else all files belong to root, which is the caller.
func Squashfs(r *squashfs.Reader) (fuse.Node, error) {
	root, err := r.Root()
	if err != nil {
		return nil, fmt.Errorf("read the root directory: %w", err)
	}
	t := &squashTree{owners: ownsFiles(), xattrs: !r.Info().NoXattrs}
	return &squashFile{tree: t, file: root}, nil
}

// squashTree is what holds for all files of a tree.
type squashTree struct {
	owners bool // files belong to those that the image says
	xattrs bool // some file has extended attributes
}

// squashFile is a file of a squashfs as [fuse] serves it.
type squashFile struct {
	tree *squashTree
	file *squashfs.File
}

func (s *squashFile) Attr() fuse.Attr {
	f := s.file
	a := fuse.Attr{
		Ino: uint64(f.Number), Mode: typeBits(f.Type) | uint32(f.Mode), Links: f.Links,
		Major: f.Major, Minor: f.Minor, Size: f.Size, ModTime: f.ModTime,
	}
	if s.tree.owners {
		a.UID, a.GID = f.UID, f.GID
	}
	return a
}

func (s *squashFile) Lookup(name string) (fuse.Node, error) {
	return s.node(s.file.Lookup(name))
}

func (s *squashFile) node(f *squashfs.File, err error) (fuse.Node, error) {
	if err != nil {
		return nil, err
	}
	return &squashFile{tree: s.tree, file: f}, nil
}

func (s *squashFile) ReadDir() ([]fuse.Entry, error) {
	names, err := s.file.ReadDir()
	if err != nil {
		return nil, err
	}
	list := make([]fuse.Entry, len(names))
	for i, e := range names {
		list[i] = fuse.Entry{
			Name: e.Name, Ino: uint64(e.Number), Mode: typeBits(e.Type),
			Node: func() (fuse.Node, error) { return s.node(e.Open()) },
		}
	}
	return list, nil
}

func (s *squashFile) Readlink() (string, error) { return s.file.Target, nil }

func (s *squashFile) Content() (io.ReaderAt, error) { return s.file.Content(), nil }

func (s *squashFile) Xattrs() (map[string]string, error) {
	if !s.tree.xattrs {
		return nil, errors.ErrUnsupported
	}
	all, err := s.file.Xattrs()
	if err != nil {
		return nil, err
	}
	shown := make(map[string]string, len(all))
	for name, value := range all {
		if s.tree.shows(name) {
			shown[name] = value
		}
	}
	return shown, nil
}

// shows reports whether an extended attribute is the image's to have, as for layers: not one that tells overlayfs to hide
// files, and none that the kernel would refuse to copy when the file is written to.
func (t *squashTree) shows(name string) bool {
	if name == "security.capability" {
		return t.owners
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// typeBits is the part of a mode that says what kind of file it is.
func typeBits(t squashfs.Type) uint32 {
	switch t {
	case squashfs.Dir:
		return unix.S_IFDIR
	case squashfs.Regular:
		return unix.S_IFREG
	case squashfs.Symlink:
		return unix.S_IFLNK
	case squashfs.Block:
		return unix.S_IFBLK
	case squashfs.Char:
		return unix.S_IFCHR
	case squashfs.Fifo:
		return unix.S_IFIFO
	case squashfs.Socket:
		return unix.S_IFSOCK
	}
	return 0
}
