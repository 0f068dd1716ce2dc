package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/rpm"
	"sconce.dev/sconce/internal/store"
)

// openPinned reads the headers of a package file, which must be those of the package that was pinned.
func openPinned(r io.Reader, pkg Package) (*rpm.File, error) {
	f, err := rpm.Open(r)
	if err != nil {
		return nil, err
	}
	if f.Name != pkg.Name || f.Version().String() != pkg.Version || f.Arch != pkg.Architecture {
		return nil, fmt.Errorf("it says of itself that it is %s %s (%s)", f.Name, f.Version(), f.Arch)
	}
	return f, nil
}

// firstRoot is the first small root, in which the distribution's own rpm runs: files of packages, as they are in their archives,
// of no owners and no times. What it makes counts, and the root itself is thrown away.
type firstRoot struct {
	store *store.Store
	root  *os.Root
}

// unpack lays down the files of packages. Links and directories go first: which directory is a link to another, one package says,
// and others put files there.
func (x *firstRoot) unpack(ctx context.Context, packages []Package) error {
	for _, kind := range []uint32{unix.S_IFLNK, unix.S_IFREG} {
		for _, pkg := range packages {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := x.unpackOne(pkg, kind); err != nil {
				return fmt.Errorf("unpack package %s %s: %w", pkg.Name, pkg.Version, err)
			}
		}
	}
	return nil
}

func (x *firstRoot) unpackOne(pkg Package, kind uint32) error {
	in, err := x.store.OpenBlob(pkg.SHA256)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := openPinned(in, pkg)
	if err != nil {
		return err
	}
	if kind == unix.S_IFLNK {
		return x.links(f)
	}
	linked := map[string]string{} // hard links, by what they are links to
	err = f.Files(func(e rpm.Entry, link string, content io.Reader) error {
		if link != "" {
			linked[e.Name] = link
			return nil
		}
		return x.lay(e, content)
	})
	if err != nil {
		return err
	}
	for name, to := range linked {
		if err := x.above(name); err != nil {
			return err
		}
		if err := x.root.Link(to, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// links makes the links in the root directory, which lead to the directories where everything lies.
func (x *firstRoot) links(f *rpm.File) error {
	for _, e := range f.Entries {
		if e.Mode&unix.S_IFMT == unix.S_IFLNK && !strings.Contains(e.Name, "/") {
			if err := x.link(e); err != nil {
				return fmt.Errorf("%s: %w", e.Name, err)
			}
		}
	}
	return nil
}

func (x *firstRoot) lay(e rpm.Entry, content io.Reader) error {
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return x.directory(e.Name)
	case unix.S_IFLNK:
		return x.link(e)
	case unix.S_IFREG:
		return x.file(e, content)
	}
	return nil // device nodes: the sandbox has its own
}

// directory makes one, unless something leads to one there.
func (x *firstRoot) directory(name string) error {
	if info, err := x.root.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	return x.root.MkdirAll(name, 0o755)
}

func (x *firstRoot) above(name string) error { return x.directory(path.Dir(name)) }

// link makes a symbolic link. One that begins at the root is made relative: os.Root follows no other.
func (x *firstRoot) link(e rpm.Entry) error {
	if e.Link == "" {
		return errors.New("it is a link to nothing")
	}
	if err := x.above(e.Name); err != nil {
		return err
	}
	target := e.Link
	if path.IsAbs(target) {
		relative, err := filepath.Rel(path.Dir(path.Join("/", e.Name)), path.Clean(target))
		if err != nil {
			return err
		}
		target = relative
	}
	if e.Name == path.Base(e.Name) {
		if err := x.leadsTo(target); err != nil {
			return err
		}
	}
	err := x.root.Symlink(target, e.Name)
	if errors.Is(err, fs.ErrExist) {
		return nil // another package has it, or a directory is there: rpm decides that in the system itself
	}
	return err
}

// leadsTo makes the directory that a link in the root leads to.
func (x *firstRoot) leadsTo(target string) error {
	if !filepath.IsLocal(target) {
		return nil
	}
	return x.directory(target)
}

func (x *firstRoot) file(e rpm.Entry, content io.Reader) error {
	if err := x.above(e.Name); err != nil {
		return err
	}
	f, err := x.root.OpenFile(e.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // two packages share it, which rpm lets them where it is the same
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if err := f.Chmod(os.FileMode(e.Mode&0o777) | 0o400); err != nil {
		return err
	}
	return f.Close()
}
