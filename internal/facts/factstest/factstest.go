// Package factstest makes facts for the tests of those who use them: of directories of this machine, and of code that a line
// describes.
package factstest

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/layer"
)

// Dir is the [Root] that a directory of this machine is, with others in it.
type Dir struct {
	Path   string
	Mounts map[string]string // directories in the root, without a slash in front, and those of this machine that stand there
	Only   []string          // directories in the root, without a slash in front, of which All shows what is in them; none for all of it
}

// host returns where a name without links is on this machine.
func (r Dir) host(name string) string {
	name = strings.Trim(path.Clean("/"+name), "/")
	for at := name; at != "." && at != ""; at = path.Dir(at) {
		if dir, ok := r.Mounts[at]; ok {
			return filepath.Join(dir, strings.TrimPrefix(name, at))
		}
	}
	return filepath.Join(r.Path, name)
}

func (r Dir) lstat(name string) (os.FileInfo, error) {
	info, err := os.Lstat(r.host(name))
	for at := range r.Mounts {
		if err != nil && strings.HasPrefix(at+"/", strings.Trim(name, "/")+"/") {
			return os.Stat(r.Path) // a directory on the way to a mounted one
		}
	}
	return info, err
}

// Resolve follows links as the kernel does in a root of its own.
func (r Dir) Resolve(name string) (string, error) {
	real := "/"
	parts := strings.Split(name, "/")
	for links := 0; len(parts) > 0; {
		next := path.Join(real, parts[0])
		parts = parts[1:]
		info, err := r.lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if len(parts) > 0 && !info.IsDir() {
				return "", &fs.PathError{Op: "resolve", Path: name, Err: syscall.ENOTDIR}
			}
			real = next
			continue
		}
		target, err := os.Readlink(r.host(next))
		if err != nil {
			return "", err
		}
		if links++; links > 40 {
			return "", &fs.PathError{Op: "resolve", Path: name, Err: syscall.ELOOP}
		}
		if path.IsAbs(target) {
			real = "/"
		}
		parts = append(strings.Split(target, "/"), parts...)
	}
	return real, nil
}

// Open opens a regular file.
func (r Dir) Open(name string) (elfx.Handle, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	info, err := r.lstat(real)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := os.Open(r.host(real))
	if err != nil {
		return nil, err
	}
	return openFile{f, info.Size()}, nil
}

type openFile struct {
	*os.File
	size int64
}

func (f openFile) Size() int64 { return f.size }

// ReadDir returns the names in a directory, with those of the mounts.
func (r Dir) ReadDir(name string) ([]string, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.host(real))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for at := range r.Mounts {
		if rest, ok := strings.CutPrefix("/"+at, strings.TrimSuffix(real, "/")+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			names, err = append(names, first), nil
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// Stat returns what a name leads to.
func (r Dir) Stat(name string) (facts.Info, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return facts.Info{}, err
	}
	return r.info(real)
}

func (r Dir) info(name string) (facts.Info, error) {
	info, err := r.lstat(name)
	if err != nil {
		return facts.Info{}, err
	}
	i := facts.Info{Path: strings.Trim(name, "/"), Mode: unixMode(info.Mode()), Size: info.Size(), ModTime: info.ModTime()}
	if i.Path == "" {
		i.Path = "."
	}
	switch {
	case info.IsDir():
		i.Type = layer.Dir
	case info.Mode()&fs.ModeSymlink != 0:
		i.Type = layer.Symlink
		i.Link, err = os.Readlink(r.host(name))
	case info.Mode().IsRegular():
		i.Type = layer.Regular
	default:
		i.Type = layer.Fifo // whatever else there is
	}
	if i.Type != layer.Regular {
		i.Size = 0
	}
	return i, err
}

func unixMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	for bit, set := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			mode |= set
		}
	}
	return mode
}

// All visits what is below the root or the directories that are named.
func (r Dir) All(visit func(facts.Info) error) error {
	for _, dir := range r.Only {
		if err := r.walk("/"+dir, visit); err != nil {
			return err
		}
	}
	if len(r.Only) > 0 {
		return nil
	}
	return r.walk("/", visit)
}

func (r Dir) walk(name string, visit func(facts.Info) error) error {
	i, err := r.info(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	if err != nil {
		return err
	}
	if i.Path != "." {
		err = visit(i)
	}
	if err != nil || i.Type != layer.Dir {
		return err
	}
	names, err := r.ReadDir(name)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := r.walk(path.Join(name, n), visit); err != nil {
			return err
		}
	}
	return nil
}
