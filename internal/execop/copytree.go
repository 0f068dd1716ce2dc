package execop

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rootemu"
)

// treeCopier lays files of an image down in a directory.
type treeCopier struct {
	ctx    context.Context
	tree   *image.Tree
	prefix string // of the paths in the image
	root   *os.Root
	kept   *rootemu.Owners // takes the owners of files, nil where they can be given to them
	first  map[int]string  // by the number of a file with several names: the one that is there
}

// copyTree copies what is in the directory source of an image to the empty directory dir. The files are given to their owners, or
// with kept, by who cannot do that, these are recorded there. Setuid bits come along only without it; devices and fifos do not.
func copyTree(ctx context.Context, tree *image.Tree, source, dir string, kept *rootemu.Owners) error {
	from, err := tree.Lookup(path.Join("/", source))
	if err != nil {
		return err
	}
	if from.Type != layer.Dir {
		return fmt.Errorf("%s in the image: %w", path.Join("/", source), errNotDir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	c := &treeCopier{ctx: ctx, tree: tree, prefix: from.Path, root: root, kept: kept, first: map[int]string{}}
	return c.dir(from)
}

// name returns the name of a file in the directory.
func (c *treeCopier) name(n *image.Node) string {
	if c.prefix == "." {
		return n.Path
	}
	return strings.TrimPrefix(strings.TrimPrefix(n.Path, c.prefix), "/")
}

func (c *treeCopier) dir(d *image.Node) error {
	children, err := c.tree.ReadDir("/" + d.Path)
	if err != nil {
		return err
	}
	for _, n := range children {
		if err := c.copy(n); err != nil {
			return fmt.Errorf("copy /%s: %w", n.Path, err)
		}
	}
	return nil
}

func (c *treeCopier) copy(n *image.Node) error {
	name := c.name(n)
	switch n.Type {
	case layer.Dir:
		if err := c.root.Mkdir(name, 0o700); err != nil {
			return err
		}
		if err := c.dir(n); err != nil {
			return err
		}
	case layer.Symlink:
		if err := c.root.Symlink(n.Link, name); err != nil {
			return err
		}
	case layer.Regular:
		if first, ok := c.first[n.Inode]; ok {
			return c.root.Link(first, name)
		}
		c.first[n.Inode] = name
		if err := c.file(n, name); err != nil {
			return err
		}
	default:
		return nil
	}
	return c.attributes(n, name)
}

func (c *treeCopier) file(n *image.Node, name string) error {
	f, err := c.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	from, err := c.tree.Open(n)
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := io.Copy(f, ctxio.Reader(c.ctx, from)); err != nil {
		return err
	}
	return f.Close()
}

func (c *treeCopier) attributes(n *image.Node, name string) error {
	if err := c.give(n, name); err != nil {
		return err
	}
	if n.Type == layer.Symlink {
		return nil
	}
	if err := c.root.Chmod(name, c.mode(n)); err != nil {
		return err
	}
	when := n.ModTime
	if when.IsZero() {
		when = layer.DefaultModTime
	}
	return c.root.Chtimes(name, when, when)
}

func (c *treeCopier) give(n *image.Node, name string) error {
	if c.kept == nil {
		return c.root.Lchown(name, n.UID, n.GID)
	}
	return recordOwner(c.kept, filepath.Join(c.root.Name(), name), n.UID, n.GID)
}

// mode returns the permissions of a file's copy. Who is not root must be able to read it.
func (c *treeCopier) mode(n *image.Node) os.FileMode {
	mode := os.FileMode(n.Mode & 0o777)
	if n.Mode&unix.S_ISVTX != 0 {
		mode |= os.ModeSticky
	}
	switch {
	case c.kept == nil:
		if n.Mode&unix.S_ISUID != 0 {
			mode |= os.ModeSetuid
		}
		if n.Mode&unix.S_ISGID != 0 {
			mode |= os.ModeSetgid
		}
	case n.Type == layer.Dir:
		mode |= 0o700
	default:
		mode |= 0o400
	}
	return mode
}
