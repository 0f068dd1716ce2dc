package fileop

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/layer"
)

// Serve returns the file or directory p of the context, for who mounts it without a copy. It shows what a copy would be: the same names,
// permissions and owner, every time of a file as when, and an error where a file is another than it was when the context was read.
// Symlinks on the way to p, and p itself, are followed inside the context.
func (c *Context) Serve(p string, when time.Time) (fuse.Node, error) {
	n, err := c.kept.find(p, true)
	if err != nil {
		return nil, c.missing(p, err)
	}
	t := &servedTree{when: when, numbers: map[any]uint64{}}
	return &served{t, n}, nil
}

// servedTree is what holds for all files of a tree that is served.
type servedTree struct {
	when time.Time

	mu      sync.Mutex
	numbers map[any]uint64
}

// number returns the number of a file, the same for all of its names.
func (t *servedTree) number(n *node) uint64 {
	id := n.file
	if id == nil {
		id = n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.numbers[id]; !known {
		t.numbers[id] = uint64(len(t.numbers)) + 1
	}
	return t.numbers[id]
}

// served is a file of a context as [fuse] serves it.
type served struct {
	tree *servedTree
	node *node
}

func (s *served) Attr() fuse.Attr {
	n := s.node
	a := fuse.Attr{Ino: s.tree.number(n), Mode: kindOf(n) | n.Mode, Links: 1, Size: n.Size, ModTime: s.tree.when}
	switch {
	case n.Type == layer.Dir, n.file != nil: // programs that copy look for other names of a file when it has two
		a.Links = 2
	case n.Type == layer.Symlink:
		a.Size = int64(len(n.Link))
	}
	return a
}

func kindOf(n *node) uint32 {
	switch n.Type {
	case layer.Dir:
		return unix.S_IFDIR
	case layer.Symlink:
		return unix.S_IFLNK
	case layer.Fifo:
		return unix.S_IFIFO
	}
	return unix.S_IFREG
}

func (s *served) Lookup(name string) (fuse.Node, error) {
	child, err := s.node.child(name)
	switch {
	case err != nil:
		return nil, err
	case child == nil:
		return nil, fs.ErrNotExist
	}
	return s.of(child)
}

func (s *served) of(n *node) (fuse.Node, error) {
	if n.refused != nil {
		return nil, n.refused
	}
	return &served{s.tree, n}, nil
}

func (s *served) ReadDir() ([]fuse.Entry, error) {
	all, err := s.node.children()
	if err != nil {
		return nil, err
	}
	list := make([]fuse.Entry, len(all))
	for i, n := range all {
		list[i] = fuse.Entry{Name: n.name, Ino: s.tree.number(n), Mode: kindOf(n), Node: func() (fuse.Node, error) { return s.of(n) }}
	}
	return list, nil
}

func (s *served) Readlink() (string, error) { return s.node.Link, nil }

func (s *served) Content() (io.ReaderAt, error) { return servedContent{s.node.open}, nil }

func (s *served) Xattrs() (map[string]string, error) { return nil, errors.ErrUnsupported }

// servedContent opens a file for each piece that is read: the kernel forgets files late, and a context may have more than a process
// can have open.
type servedContent struct{ open layer.Content }

func (c servedContent) ReadAt(p []byte, offset int64) (int, error) {
	f, err := c.open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.(io.ReaderAt).ReadAt(p, offset)
}
