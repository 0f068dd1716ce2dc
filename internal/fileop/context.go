package fileop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// Context is a directory of the build machine, without what its ignore file excludes. It is read when it is wanted and remembered:
// a file that is another when it is copied than it was when it was first looked at is an error, so that a digest and a layer
// speak of the same files.
//
// Of what the machine knows about its files, an image gets names, contents, permissions and which names are one file. Everything
// belongs to root. Setuid and setgid bits are left out: on a cluster they say more about the project's directory than about the
// image, and a chmod gives them. Times and extended attributes are left out too. Sockets do not exist, devices are an error.
type Context struct {
	dir    string
	root   *os.Root
	ignore *patterns
	from   string // name of the ignore file, "" without one
	whole  *node  // the root, nothing ignored
	kept   *node  // without what is ignored
}

// ignoreFiles are the names that an ignore file may have in the context's directory, the first that exists counts. With the
// name of the Containerfile before them they are that file's own.
var ignoreFiles = []string{".containerignore", ".dockerignore"}

// IgnoreFileOf returns the ignore file that belongs to containerfile alone, or "" when it has none.
func IgnoreFileOf(containerfile string) string {
	for _, name := range ignoreFiles {
		if info, err := os.Stat(containerfile + name); err == nil && info.Mode().IsRegular() {
			return containerfile + name
		}
	}
	return ""
}

// FindIgnoreFile returns the ignore file that counts for containerfile with the context in dir, or "" when there is none.
func FindIgnoreFile(dir, containerfile string) string {
	if own := IgnoreFileOf(containerfile); own != "" {
		return own
	}
	for _, name := range ignoreFiles {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// OpenContext opens the build context in dir. ignoreFile is the file of patterns; when it is empty, the first of ".containerignore"
// and ".dockerignore" that dir has is used, if there is one.
func OpenContext(dir, ignoreFile string) (*Context, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Hint(fmt.Errorf("open the build context: %w", err), "the build context is a directory")
	}
	c := &Context{dir: dir, root: root}
	if err := c.readIgnore(ignoreFile); err != nil {
		return nil, errors.Join(fmt.Errorf("open the build context %s: %w", dir, err), root.Close())
	}
	if err := c.stat(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the build context %s: %w", dir, err), root.Close())
	}
	return c, nil
}

// Close lets go of the directory. Nothing may use c afterwards.
func (c *Context) Close() error { return c.root.Close() }

// maxIgnore is the most bytes that an ignore file may have.
const maxIgnore = 1 << 20

func (c *Context) readIgnore(file string) error {
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		return c.parseIgnore(file, f)
	}
	for _, name := range ignoreFiles {
		f, err := c.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe may have nobody at its other end
		switch {
		case err == nil:
			if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
				f.Close()
				return cmp.Or(err, fmt.Errorf("%s is not a regular file", name))
			}
			return c.parseIgnore(name, f)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	c.ignore = &patterns{}
	return nil
}

func (c *Context) parseIgnore(name string, f *os.File) error {
	defer f.Close()
	data, err := ctxio.ReadAtMost(f, maxIgnore)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	c.from = filepath.Base(name)
	if c.ignore, err = parseIgnore(data); err != nil {
		return fault.Usage(fmt.Errorf("%s:%w", name, err))
	}
	return nil
}

func (c *Context) stat() error {
	f, err := c.root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return err
	}
	c.whole = c.node(".", "", &s)
	c.kept = c.whole
	if len(c.ignore.list) > 0 {
		c.kept = c.ignore.filtered(c.whole, "", nil)
	}
	return nil
}

func (c *Context) top(context.Context) (*node, error) { return c.kept, nil }

func (c *Context) missing(p string, err error) error {
	if n, findErr := c.whole.find(p, true); findErr == nil && c.from != "" {
		return fault.Hint(fmt.Errorf("%s is excluded from the build context by %s", quote(n.Path), c.from),
			fmt.Sprintf("take it back with a line !%s at the end of %s", n.Path, c.from))
	}
	if link := c.kept.wayOut(p); link != nil {
		return fault.Hint(fmt.Errorf("%s of the build context %s is a symlink to %s, which leads out of it", quote(link.Path), c.dir, quote(link.Link)),
			"nothing outside of the build context can be copied: copy it there, or take a directory above both as the context")
	}
	if near := c.near(p); near != "" {
		return fault.Hint(fmt.Errorf("the build context %s has no %s: %w", c.dir, quote(p), cause(err)), fmt.Sprintf("did you mean %q?", near))
	}
	return fault.Hint(fmt.Errorf("the build context %s has no %s: %w", c.dir, quote(p), cause(err)),
		"paths are relative to the build context, and nothing outside of it can be copied")
}

// near is the path of what is in the directory of p and nearly called like it, or "".
func (c *Context) near(p string) string {
	dir, err := c.kept.find(path.Dir(p), true)
	if err != nil || dir.Type != dirType {
		return ""
	}
	children, err := dir.children()
	if err != nil {
		return ""
	}
	names := make([]string, len(children))
	for i, n := range children {
		names[i] = n.name
	}
	name := spelling.Nearest(path.Base(p), names)
	if name == "" {
		return ""
	}
	return path.Join(path.Dir(p), name)
}

// stamp is by what a file is known to be as it was.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(s *unix.Stat_t) stamp {
	return stamp{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim} //nolint:unconvert // other architectures have other types
}

// inode names a file of the machine, whatever its name.
type inode struct{ dev, ino uint64 }

func (c *Context) node(p, name string, s *unix.Stat_t) *node {
	n := &node{Entry: layer.Entry{Path: p, Mode: s.Mode & 0o1777}, name: name}
	was := stampOf(s)
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Size = s.Size
		n.open = func() (io.ReadCloser, error) { return c.openFile(p, was) }
		if s.Nlink > 1 {
			n.file = inode{was.dev, was.ino}
		}
	case unix.S_IFDIR:
		n.Type = layer.Dir
		n.load = func() ([]*node, error) { return c.readDir(p, was) }
	case unix.S_IFLNK:
		n.Type, n.Mode = layer.Symlink, 0o777
	case unix.S_IFIFO:
		n.Type = layer.Fifo
	default:
		n.Type = layer.Char
		n.refused = fault.Hint(fmt.Errorf("%s of the build context %s is a device", quote(p), c.dir),
			"exclude it in "+cmp.Or(c.from, ".containerignore"))
	}
	return n
}

// readDir reads a directory that was seen before.
func (c *Context) readDir(p string, was stamp) ([]*node, error) {
	f, err := c.root.OpenFile(p, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, c.unreadable(p, err)
	}
	defer f.Close()
	fd := int(f.Fd())
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return nil, c.unreadable(p, err)
	}
	if now := stampOf(&s); now.dev != was.dev || now.ino != was.ino {
		return nil, c.changed(p)
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, c.unreadable(p, err)
	}
	slices.Sort(names)
	list := make([]*node, 0, len(names))
	for _, name := range names {
		at := path.Join(p, name)
		if len(at) >= unix.PathMax { // no layer can hold it, and time and memory grow with the square of the depth
			return nil, c.unreadable(p, unix.ENAMETOOLONG)
		}
		if err := unix.Fstatat(fd, name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, c.unreadable(at, err)
		}
		if s.Mode&unix.S_IFMT == unix.S_IFSOCK {
			continue
		}
		n := c.node(at, name, &s)
		if n.Type == layer.Symlink {
			if n.Link, err = readlinkat(fd, name); err != nil {
				return nil, c.unreadable(at, err)
			}
		}
		if strings.Count(at, "/") >= layer.MaxDepth {
			n.refused = fault.Hint(fmt.Errorf("%.60s… of the build context %s has more than %d components, which no layer can hold", at, c.dir, layer.MaxDepth),
				"exclude it in "+cmp.Or(c.from, ".containerignore"))
		}
		list = append(list, n)
	}
	return list, nil
}

func readlinkat(fd int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (c *Context) unreadable(p string, err error) error {
	err = fmt.Errorf("read %s of the build context %s: %w", quote(p), c.dir, cause(err))
	if errors.Is(err, fs.ErrPermission) {
		return fault.Hint(err, "give yourself permission to read it, or exclude it in "+cmp.Or(c.from, ".containerignore"))
	}
	return err
}

func (c *Context) changed(p string) error {
	return fault.Hint(fmt.Errorf("%s of the build context %s changed while it was read", quote(p), c.dir),
		"build again when nothing writes to it, or exclude it in "+cmp.Or(c.from, ".containerignore"))
}

// openFile opens a regular file that was seen before.
func (c *Context) openFile(p string, was stamp) (io.ReadCloser, error) {
	f, err := c.root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, c.unreadable(p, err)
	}
	r := &steady{c: c, f: f, path: p, was: was}
	if err := r.check(); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// steady is a file that must not change while it is read.
type steady struct {
	c    *Context
	f    *os.File
	path string
	was  stamp
	read int64
}

func (r *steady) check() error {
	var s unix.Stat_t
	if err := unix.Fstat(int(r.f.Fd()), &s); err != nil {
		return r.c.unreadable(r.path, err)
	}
	if stampOf(&s) != r.was {
		return r.c.changed(r.path)
	}
	return nil
}

// Read checks the file before it gives the last bytes, since a reader who knows the size asks for no more and heeds no error then.
func (r *steady) Read(p []byte) (int, error) {
	n, err := r.f.Read(p)
	r.read += int64(n)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return n, r.c.unreadable(r.path, err)
	case err != nil || r.read >= r.was.size:
		if changed := r.check(); changed != nil {
			return 0, changed
		}
	}
	return n, err
}

// ReadAt checks the file after each piece.
func (r *steady) ReadAt(p []byte, offset int64) (int, error) {
	n, err := r.f.ReadAt(p, offset)
	if changed := r.check(); changed != nil {
		return 0, changed
	}
	return n, err
}

func (r *steady) Close() error { return r.f.Close() }

// Layer makes a layer of the whole context, at the root of an image.
func (c *Context) Layer(ctx context.Context, st *store.Store, o layer.Options) (layer.Descriptor, error) {
	empty, err := image.TreeOf(nil)
	if err != nil {
		return layer.Descriptor{}, err
	}
	return Copy{Sources: []string{"."}, Dest: "/"}.Layer(ctx, st, c, empty, o, nil)
}

// Digest returns the digest of the whole context. It depends on names, contents and permissions, and on nothing else of the
// machine.
func (c *Context) Digest(ctx context.Context) (store.Digest, error) {
	return Copy{Sources: []string{"."}, Dest: "/"}.Digest(ctx, c)
}

// quote makes a path safe to print.
func quote(p string) string {
	if q := fmt.Sprintf("%q", p); q != `"`+p+`"` || p == "" || strings.Contains(p, " ") {
		return q
	}
	return p
}
