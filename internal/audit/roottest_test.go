package audit

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/layer"
)

// dirRoot is the [Root] that a directory of this machine is, with others in it.
type dirRoot struct {
	dir    string
	mounts map[string]string // directories in the root, without a slash in front, and those of this machine that stand there
}

// host returns where a name without links is on this machine.
func (r dirRoot) host(name string) string {
	name = strings.Trim(path.Clean("/"+name), "/")
	for at := name; at != "." && at != ""; at = path.Dir(at) {
		if dir, ok := r.mounts[at]; ok {
			return filepath.Join(dir, strings.TrimPrefix(name, at))
		}
	}
	return filepath.Join(r.dir, name)
}

func (r dirRoot) lstat(name string) (os.FileInfo, error) {
	info, err := os.Lstat(r.host(name))
	for at := range r.mounts {
		if err != nil && strings.HasPrefix(at+"/", strings.Trim(name, "/")+"/") {
			return os.Stat(r.dir) // a directory on the way to a mounted one
		}
	}
	return info, err
}

func (r dirRoot) Resolve(name string) (string, error) {
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

func (r dirRoot) Open(name string) (elfx.Handle, error) {
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
	return dirFile{f, info.Size()}, nil
}

type dirFile struct {
	*os.File
	size int64
}

func (f dirFile) Size() int64 { return f.size }

func (r dirRoot) ReadDir(name string) ([]string, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.host(real))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for at := range r.mounts {
		if rest, ok := strings.CutPrefix("/"+at, strings.TrimSuffix(real, "/")+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			names, err = append(names, first), nil
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

func (r dirRoot) Stat(name string) (Info, error) {
	real, err := r.Resolve(name)
	if err != nil {
		return Info{}, err
	}
	return r.info(real)
}

func (r dirRoot) info(name string) (Info, error) {
	info, err := r.lstat(name)
	if err != nil {
		return Info{}, err
	}
	i := Info{Path: strings.Trim(name, "/"), Mode: unixMode(info.Mode()), Size: info.Size(), ModTime: info.ModTime()}
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

func (r dirRoot) All(visit func(Info) error) error { return r.walk("/", visit) }

func (r dirRoot) walk(name string, visit func(Info) error) error {
	i, err := r.info(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	if err != nil {
		return err
	}
	if err := visit(i); err != nil || i.Type != layer.Dir {
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

// factsOf gathers what the rules on linking need of a root.
func factsOf(t testing.TB, r Root) *Facts {
	t.Helper()
	f := &Facts{Root: r, Platform: "linux/amd64"}
	err := r.All(func(i Info) error {
		f.Paths = append(f.Paths, i)
		if i.Type != layer.Regular || i.Size < 4 {
			return nil
		}
		h, err := r.Open("/" + i.Path)
		if err != nil {
			return err
		}
		defer h.Close()
		head := make([]byte, headSize)
		if _, err := h.ReadAt(head, 0); err != nil || !elfx.IsELF(head) {
			return nil
		}
		e, err := elfx.Open(h, h.Size())
		if err != nil {
			return nil // damaged: no object
		}
		kind := map[elfx.Kind]string{elfx.Executable: "executable", elfx.PIE: "pie", elfx.Shared: "shared", elfx.Other: "other"}[e.Kind]
		f.Objects = append(f.Objects, Object{
			Path: i.Path, Size: i.Size, Arch: e.Arch, Kind: kind, Dynamic: e.Dynamic, Interpreter: e.Interpreter, Soname: e.Soname,
			Needed: e.Needed, Rpath: e.Rpath, Runpath: e.Runpath, ISALevel: e.ISALevel, Requires: e.Requires, Provides: e.Provides,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(f.Objects, func(a, b Object) int { return strings.Compare(a.Path, b.Path) })
	return f
}
