// Package imagefs shows the files of an image to a sandbox without unpacking its layers: the merged tree, as a file system that
// package fuse serves, whose contents are decompressed when they are read.
//
// It can be had of layers that sconce has made: see layer.SeekableIndex and, after a pull, layer.FindChunks. In an image that has others too, these are unpacked, and the rest
// is served to an overlay that puts them together.
//
//	imagefs.go  layers as a tree      stack.go  which layers of an image are served      below.go  what layers hide of others
package imagefs

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// KeptBytes is how much of what was decompressed is kept. The kernel keeps what was read, and all of long files; this is for what lies
// beside it, in the order of names: the modules of a package are read together.
func KeptBytes() int64 {
	return min(max(leastKept, host.AvailableMemory().Available/keptShare), mostKept)
}

const (
	leastKept = 128 << 20
	mostKept  = 512 << 20 // more than an import of PyTorch comes back to
	keptShare = 64        // of the memory that there is
)

// Open returns the tree of an image's layers, lowest first, as they would be seen if they were unpacked that way. It is nil if one
// of the layers cannot be read from anywhere.
//
// It differs from unpacked layers in one thing that only a build step needs: there is no note of what unpacking without owners took
// from a file, see layer.Original.
func Open(st *store.Store, layers []layer.Descriptor, as layer.UnpackOptions) (fuse.Node, error) {
	indexes, err := seekable(st, layers)
	if err != nil || slices.Contains(indexes, nil) {
		return nil, err
	}
	tree, err := newTree(indexes, nil, as, layer.NewPieces(KeptBytes()))
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// seekable returns the indexes of layers that can be read from anywhere, nil for each of the others.
func seekable(st *store.Store, layers []layer.Descriptor) ([]*layer.Index, error) {
	indexes := make([]*layer.Index, len(layers))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, d := range layers {
		g.Go(func() (err error) {
			indexes[i], err = layer.SeekableIndex(st, d)
			return err
		})
	}
	return indexes, g.Wait()
}

// newTree returns the tree of layers that stand on others, or on nothing. It uses up the entries of the indexes.
func newTree(indexes []*layer.Index, on below, as layer.UnpackOptions, pieces *layer.Pieces) (*file, error) {
	merge := image.TreeOf
	if len(on) > 0 {
		merge = image.UpperTreeOf
	}
	tree, err := merge(indexes)
	if err != nil {
		return nil, err
	}
	for _, ix := range indexes {
		ix.Entries = nil // the nodes hold what is needed of them
	}
	fs := &fileSystem{indexes: indexes, root: tree.Root(), on: on, as: as, pieces: pieces}
	if fs.xattrs, err = fs.anyXattrs(tree); err != nil {
		return nil, err
	}
	return &file{fs, tree.Root()}, nil
}

// fileSystem is what all files share.
type fileSystem struct {
	indexes []*layer.Index
	root    *image.Node
	on      below
	as      layer.UnpackOptions
	pieces  *layer.Pieces
	xattrs  bool // some file has extended attributes
}

func (fs *fileSystem) anyXattrs(tree *image.Tree) (bool, error) {
	found := errors.New("found")
	err := tree.Walk(func(n *image.Node) error {
		if len(fs.xattrsOf(n)) > 0 {
			return found
		}
		return nil
	})
	if errors.Is(err, found) {
		return true, nil
	}
	return len(fs.xattrsOf(tree.Root())) > 0, err
}

// xattrsOf returns the extended attributes of a file: those that it would have unpacked, and what an overlay looks for.
func (fs *fileSystem) xattrsOf(n *image.Node) map[string]string {
	if n.Hides != image.EverythingBelow {
		if len(n.Xattrs) == 0 {
			return nil
		}
		return fs.as.ShownXattrs(n.Entry)
	}
	all := fs.as.ShownXattrs(n.Entry)
	all[opaque] = "y"
	return all
}

// shows reports whether a file is there for who looks. Overlay lists the whiteouts of a directory that is in one layer alone, so one
// that hides nothing must not be there.
func (fs *fileSystem) shows(n *image.Node) bool {
	if n.Hides == image.NameBelow {
		return fs.on.has(fs.root, n.Path)
	}
	return fs.as.Unpacks(n.Entry)
}

// file is a file of the tree.
type file struct {
	fs *fileSystem
	n  *image.Node
}

func (f file) Attr() fuse.Attr {
	e := f.fs.as.Shown(f.n.Entry)
	a := fuse.Attr{
		Ino: uint64(f.n.Inode), Mode: e.Type.Bits() | e.Mode, Links: uint32(f.n.Links),
		UID: uint32(e.UID), GID: uint32(e.GID), Major: e.Major, Minor: e.Minor, Size: e.Size, ModTime: e.ModTime,
	}
	if e.Type == layer.Symlink {
		a.Size = int64(len(e.Link))
	}
	return a
}

func (f file) Lookup(name string) (fuse.Node, error) {
	n, err := f.n.Child(name)
	if err != nil {
		return nil, err
	}
	if !f.fs.shows(n) {
		return nil, unix.ENOENT
	}
	return file{f.fs, n}, nil
}

func (f file) ReadDir() ([]fuse.Entry, error) {
	children := f.n.Children()
	list := make([]fuse.Entry, 0, len(children))
	for _, n := range children {
		if f.fs.shows(n) {
			list = append(list, fuse.Entry{
				Name: n.Name(), Ino: uint64(n.Inode), Mode: n.Type.Bits(),
				Node: func() (fuse.Node, error) { return file{f.fs, n}, nil },
			})
		}
	}
	return list, nil
}

func (f file) Readlink() (string, error) {
	if f.n.Type != layer.Symlink {
		return "", unix.EINVAL
	}
	return f.n.Link, nil
}

func (f file) Content() (io.ReaderAt, error) {
	switch f.n.Type {
	case layer.Regular:
	case layer.Dir:
		return nil, unix.EISDIR
	default:
		return nil, unix.EINVAL
	}
	if f.n.Size == 0 {
		return bytes.NewReader(nil), nil
	}
	from, at := f.n.Content()
	c, err := f.fs.indexes[from].ReaderAt(at, f.fs.pieces)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (f file) Xattrs() (map[string]string, error) {
	if !f.fs.xattrs {
		return nil, errors.ErrUnsupported
	}
	return f.fs.xattrsOf(f.n), nil
}
