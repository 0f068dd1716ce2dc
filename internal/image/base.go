package image

import (
	"errors"
	"io"
	"io/fs"
	"syscall"

	"sconce.dev/sconce/internal/layer"
)

// Base shows the tree as that which a step ran on, for [layer.FromUpper].
func (t *Tree) Base() layer.Base { return treeBase{t} }

type treeBase struct{ tree *Tree }

func (b treeBase) Find(p string) (layer.BaseEntry, bool, error) {
	n, err := b.tree.Lstat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return layer.BaseEntry{}, false, nil
	case err != nil:
		return layer.BaseEntry{}, false, err
	case n.Path != p: // something above it is a symlink
		return layer.BaseEntry{}, false, nil
	}
	return layer.BaseEntry{Entry: n.Entry, Inode: n.Inode, Links: n.Links}, true, nil
}

func (b treeBase) Open(p string) (io.ReadCloser, error) {
	n, err := b.tree.Lstat(p)
	if err != nil {
		return nil, err
	}
	return b.tree.Open(n)
}
