package clusterfile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
)

// byContent orders files as their contents lie in the layer.
func byContent(a, b *image.Node) int {
	_, x := a.Content()
	_, y := b.Content()
	return cmp.Or(cmp.Compare(x.Offset, y.Offset), cmp.Compare(x.Sparse, y.Sparse))
}

// created is when the image was made, as far as it says so.
func created(c v1.ConfigFile) time.Time {
	if t := c.Created.Time; t.Unix() > 0 {
		return t
	}
	return layer.DefaultModTime
}

// inodes turns the merged tree into that of a squashfs.
func (w *writer) inodes(tree *image.Tree) (*squashfs.Inode, error) {
	top, err := tree.Lookup(w.in.Root)
	if err != nil {
		return nil, err
	}
	root, err := w.inode(top)
	if err != nil {
		return nil, err
	}
	dirs := map[string]*squashfs.Inode{top.Path: root} // by path
	files := map[int]*squashfs.Inode{}                 // those with several names, by number
	err = w.walk(tree, func(n *image.Node) error {
		inode := files[n.Inode]
		if inode == nil {
			var err error
			if inode, err = w.inode(n); err != nil {
				return fmt.Errorf("%q: %w", n.Path, err)
			}
			if n.Links > 1 {
				files[n.Inode] = inode
			}
		}
		if n.Type == layer.Dir {
			dirs[n.Path] = inode
		}
		parent := dirs[path.Dir(n.Path)]
		parent.Entries = append(parent.Entries, squashfs.DirEntry{Name: n.Name(), Inode: inode})
		return w.ctx.Err()
	})
	return root, err
}

// inodeTypes are squashfs' names of the kinds of file system object.
var inodeTypes = map[layer.Type]squashfs.Type{
	layer.Regular: squashfs.Regular, layer.Dir: squashfs.Dir, layer.Symlink: squashfs.Symlink,
	layer.Char: squashfs.Char, layer.Block: squashfs.Block, layer.Fifo: squashfs.Fifo,
}

func (w *writer) inode(n *image.Node) (*squashfs.Inode, error) {
	if n.UID < 0 || n.GID < 0 || n.UID >= math.MaxUint32 || n.GID >= math.MaxUint32 {
		return nil, fmt.Errorf("a file system cannot hold its owner, %d:%d", n.UID, n.GID)
	}
	inode := &squashfs.Inode{
		Type: inodeTypes[n.Type], Mode: uint16(n.Mode & 0o7777), UID: uint32(n.UID), GID: uint32(n.GID),
		ModTime: n.ModTime, Xattrs: xattrs(n.Xattrs), Target: n.Link, Major: n.Major, Minor: n.Minor,
	}
	if inode.ModTime.IsZero() {
		inode.ModTime = layer.DefaultModTime
	}
	if n.Type == layer.Regular && n.Size > 0 {
		number, at := n.Content()
		if inode.Data = w.placed[placeOf(number, at)]; inode.Data == nil {
			return nil, errors.New("its content was not written")
		}
	}
	return inode, nil
}

// xattrNamespaces are those that the format can hold. Others, such as overlay's own, mean nothing outside of the machine
// that set them.
var xattrNamespaces = []string{"user.", "security.", "trusted."}

func xattrs(all map[string]string) map[string]string {
	var kept map[string]string
	for name, value := range all {
		for _, prefix := range xattrNamespaces {
			if strings.HasPrefix(name, prefix) && len(name) > len(prefix) {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[name] = value
			}
		}
	}
	return kept
}
