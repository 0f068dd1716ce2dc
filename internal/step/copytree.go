package step

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

// treeCopier lays files of an image down in a directory.
type treeCopier struct {
	ctx    context.Context
	tree   *image.Tree
	prefix string // of the paths in the image
	root   *os.Root
	owners bool
	first  map[int]string // by the number of a file with several names: the one that is there
}

// copyTree copies what is in the directory source of an image to the empty directory dir. Owners and setuid bits come along
// only with owners; devices and fifos do not.
func copyTree(ctx context.Context, tree *image.Tree, source, dir string, owners bool) error {
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
	c := &treeCopier{ctx: ctx, tree: tree, prefix: from.Path, root: root, owners: owners, first: map[int]string{}}
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
	if c.owners {
		if err := c.root.Lchown(name, n.UID, n.GID); err != nil {
			return err
		}
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

// mode returns the permissions of a file's copy. Who is not root must be able to read it.
func (c *treeCopier) mode(n *image.Node) os.FileMode {
	mode := os.FileMode(n.Mode & 0o777)
	if n.Mode&unix.S_ISVTX != 0 {
		mode |= os.ModeSticky
	}
	switch {
	case c.owners:
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
