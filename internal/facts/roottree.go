package facts

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"syscall"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

// treeRoot is the [Root] of an image in a store.
type treeRoot struct {
	ctx    context.Context
	tree   *image.Tree
	copies *copies
	pages  *pages
}

func (r *treeRoot) Resolve(name string) (string, error) {
	n, err := r.tree.Lookup(name)
	if err != nil {
		return "", err
	}
	return absolute(n.Path), nil
}

// absolute is the name in a [Root] of a path that is relative to it.
func absolute(p string) string {
	if p == "." || p == "" {
		return "/"
	}
	return "/" + p
}

func (r *treeRoot) Open(name string) (elfx.Handle, error) {
	n, err := r.tree.Lookup(name)
	if err != nil {
		return nil, err
	}
	if n.Type != layer.Regular {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if n.Size == 0 {
		return emptyHandle{}, nil
	}
	return &pagedFile{pages: r.pages, id: idOf(n), size: n.Size, open: func() (elfx.Handle, bool, error) {
		return openNode(r.ctx, r.tree, n, r.copies)
	}}, nil
}

// openNode opens a regular file that is not empty: as a copy, which is slow, where it cannot be read in any order where it lies.
func openNode(ctx context.Context, tree *image.Tree, n *image.Node, c *copies) (h elfx.Handle, slow bool, err error) {
	at, err := tree.OpenAt(n)
	if err != nil {
		return nil, false, err
	}
	if at != nil {
		return sizedHandle{at, n.Size}, false, nil
	}
	h, err = c.open(ctx, idOf(n), n.Size, func() (io.ReadCloser, error) { return tree.Open(n) })
	return h, true, err
}

func idOf(n *image.Node) contentID {
	number, at := n.Content()
	return contentID{number, place{at.Offset, at.Sparse}}
}

type sizedHandle struct {
	layer.RandomReader
	size int64
}

func (h sizedHandle) Size() int64 { return h.size }

// emptyHandle is an open file of no bytes.
type emptyHandle struct{}

func (emptyHandle) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(nil).ReadAt(p, off)
}
func (emptyHandle) Close() error { return nil }
func (emptyHandle) Size() int64  { return 0 }

func (r *treeRoot) ReadDir(name string) ([]string, error) {
	nodes, err := r.tree.ReadDir(name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name()
	}
	return names, nil
}

func (r *treeRoot) Stat(name string) (Info, error) {
	n, err := r.tree.Lookup(name)
	if err != nil {
		return Info{}, err
	}
	return nodeInfo(n), nil
}

func (r *treeRoot) All(visit func(Info) error) error {
	return r.tree.Walk(func(n *image.Node) error { return visit(nodeInfo(n)) })
}

func nodeInfo(n *image.Node) Info {
	info := Info{
		Path: n.Path, Type: n.Type, Mode: n.Mode, UID: n.UID, GID: n.GID, Size: n.Size, Link: n.Link, ModTime: n.ModTime,
	}
	if n.Type != layer.Regular {
		info.Size = 0
	}
	if n.Type != layer.Symlink {
		info.Link = ""
	}
	if n.Links > 1 {
		info.Inode = n.Inode + 1 // which counts from 0
	}
	if info.ModTime.IsZero() {
		info.ModTime = layer.DefaultModTime
	}
	return info
}

// notDir is the error of a path through something that is no directory.
func notDir(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: syscall.ENOTDIR} }
