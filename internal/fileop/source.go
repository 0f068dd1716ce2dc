package fileop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/pathwalk"
	"sconce.dev/sconce/internal/store"
)

const dirType = layer.Dir

// Files is where files come from: a build context or the tree of an image.
type Files interface {
	// top returns the root directory.
	top(ctx context.Context) (*node, error)
	// missing explains that nothing stands at p, which err says.
	missing(p string, err error) error
}

// node is a file of a source. Its Path is relative to the source's root; its Type is never HardLink.
type node struct {
	layer.Entry
	name string
	file any // the same for all names of a file that has several, else nil
	open layer.Content
	load func() ([]*node, error) // what a directory holds, by name

	refused error // why it cannot be copied, nil when it can

	mu     sync.Mutex
	loaded bool
	below  []*node
	hash   store.Digest // of the content, once it is known
}

// children returns what a directory holds, by name.
func (n *node) children() ([]*node, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.loaded || n.load == nil {
		return n.below, nil
	}
	below, err := n.load()
	if err != nil {
		return nil, err
	}
	n.below, n.loaded = below, true
	return below, nil
}

func (n *node) child(name string) (*node, error) {
	all, err := n.children()
	if err != nil {
		return nil, err
	}
	i, ok := slices.BinarySearchFunc(all, name, func(c *node, name string) int { return strings.Compare(c.name, name) })
	if !ok {
		return nil, nil
	}
	return all[i], nil
}

// walk calls visit for n and everything below it, each directory before what it holds. fs.SkipDir leaves a directory's content
// out.
func (n *node) walk(p string, visit func(n *node, p string) error) error {
	err := visit(n, p)
	if errors.Is(err, fs.SkipDir) {
		return nil
	}
	if err != nil || n.Type != dirType {
		return err
	}
	all, err := n.children()
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := c.walk(path.Join(p, c.name), visit); err != nil {
			return err
		}
	}
	return nil
}

// find returns what p refers to. Symlinks are followed below the root, and the last one only with follow; ".." at the root
// stays there. The error wraps fs.ErrNotExist, syscall.ENOTDIR or syscall.ELOOP.
func (n *node) find(p string, follow bool) (*node, error) {
	at := []*node{n}
	w := pathwalk.Begin(p)
	for part, ok := w.Next(); ok; part, ok = w.Next() {
		dir := at[len(at)-1]
		switch {
		case part == ".":
			continue
		case part == "..":
			at = at[:max(1, len(at)-1)]
			continue
		case dir.Type != dirType:
			return nil, &fs.PathError{Op: "find", Path: p, Err: syscall.ENOTDIR}
		}
		c, err := dir.child(part)
		switch {
		case err != nil:
			return nil, err
		case c == nil:
			return nil, &fs.PathError{Op: "find", Path: p, Err: fs.ErrNotExist}
		case c.Type != layer.Symlink || !follow && w.AtEnd():
			at = append(at, c)
			continue
		}
		fromRoot, err := w.Follow(c.Link)
		if err != nil {
			return nil, &fs.PathError{Op: "find", Path: p, Err: err}
		}
		if fromRoot {
			at = at[:1]
		}
	}
	return at[len(at)-1], nil
}

// wayOut returns the symlink on the way to p that leads out of the root, where this machine would follow it; nil when none does. Here
// it is followed below the root.
func (n *node) wayOut(p string) *node {
	at := []*node{n}
	var link *node
	w := pathwalk.Begin(p)
	for part, ok := w.Next(); ok; part, ok = w.Next() {
		if part == "." {
			continue
		}
		if part == ".." {
			if len(at) == 1 && link != nil {
				return link
			}
			at = at[:max(1, len(at)-1)]
			continue
		}
		c, err := at[len(at)-1].child(part)
		if err != nil || c == nil {
			return nil
		}
		if c.Type != layer.Symlink {
			at = append(at, c)
			continue
		}
		link = c
		if fromRoot, err := w.Follow(c.Link); fromRoot || err != nil {
			return c
		}
	}
	return nil
}

// FromTree returns the files of an image: with their owners, modes, times and extended attributes.
func FromTree(t *image.Tree) Files { return treeFiles{tree: t} }

// FromStep returns the files of the layer of one step. What the step wrote, which is the newest there, has no time: when that was
// depends on what the step stood on.
func FromStep(t *image.Tree) Files { return treeFiles{t, t.Newest()} }

type treeFiles struct {
	tree    *image.Tree
	undated time.Time // files of this time have none
}

func (f treeFiles) top(context.Context) (*node, error) { return f.node(f.tree.Root()), nil }

func (f treeFiles) missing(p string, err error) error {
	return fmt.Errorf("the image has no %s: %w", quote("/"+p), cause(err))
}

func (f treeFiles) node(n *image.Node) *node {
	c := &node{Entry: n.Entry, name: n.Name()}
	if !f.undated.IsZero() && n.ModTime.Equal(f.undated) {
		c.ModTime = time.Time{}
	}
	switch n.Type {
	case layer.Dir:
		c.load = func() ([]*node, error) {
			list, err := f.tree.ReadDir(n.Path)
			below := make([]*node, len(list))
			for i, b := range list {
				below[i] = f.node(b)
			}
			return below, err
		}
	case layer.Regular:
		c.open = func() (io.ReadCloser, error) { return f.tree.Open(n) }
		if n.Links > 1 {
			c.file = treeFile{f.tree, n.Inode}
		}
	}
	return c
}

// treeFile names a file of an image, whatever its name.
type treeFile struct {
	tree  *image.Tree
	inode int
}

// cause returns what a path's error says beside the path.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
