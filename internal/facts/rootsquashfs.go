package facts

import (
	"io/fs"
	"path"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/pathwalk"
	"sconce.dev/sconce/internal/squashfs"
)

// squashRoot is the [Root] of a squashfs. All names and attributes are in memory, as the loader asks for thousands.
type squashRoot struct {
	r      *squashfs.Reader
	all    []Info
	byPath map[string]int32 // in all
}

func newSquashRoot(r *squashfs.Reader) (*squashRoot, error) {
	n := min(r.Info().Inodes, 1<<16)
	s := &squashRoot{r: r, all: make([]Info, 0, n), byPath: make(map[string]int32, n)}
	err := r.Walk(func(p string, f *squashfs.File) error {
		s.byPath[p] = int32(len(s.all))
		s.all = append(s.all, squashInfo(p, f))
		return nil
	})
	return s, err
}

func squashInfo(p string, f *squashfs.File) Info {
	info := Info{Path: p, Mode: uint32(f.Mode), UID: int(f.UID), GID: int(f.GID), ModTime: f.ModTime}
	if f.Links > 1 && f.Type != squashfs.Dir {
		info.Inode = int(f.Number)
	}
	switch f.Type {
	case squashfs.Dir:
		info.Type = layer.Dir
	case squashfs.Regular:
		info.Type, info.Size = layer.Regular, f.Size
	case squashfs.Symlink:
		info.Type, info.Link = layer.Symlink, f.Target
	case squashfs.Block:
		info.Type = layer.Block
	case squashfs.Char:
		info.Type = layer.Char
	default: // sockets too, which no image has
		info.Type = layer.Fifo
	}
	return info
}

// find follows all links in a name, as the kernel does.
func (s *squashRoot) find(op, name string) (*Info, error) {
	n, err := pathwalk.Find(squashNode{s, &s.all[0]}, name, true)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return n.info, nil
}

// squashNode is an object of a squashRoot.
type squashNode struct {
	root *squashRoot
	info *Info
}

func (n squashNode) IsDir() bool             { return n.info.Type == layer.Dir }
func (n squashNode) Symlink() (string, bool) { return n.info.Link, n.info.Type == layer.Symlink }
func (n squashNode) Child(name string) (squashNode, error) {
	if next := n.root.at(path.Join(n.info.Path, name)); next != nil {
		return squashNode{n.root, next}, nil
	}
	return squashNode{}, fs.ErrNotExist
}

func (s *squashRoot) at(p string) *Info {
	i, ok := s.byPath[p]
	if !ok {
		return nil
	}
	return &s.all[i]
}

func (s *squashRoot) Resolve(name string) (string, error) {
	info, err := s.find("lookup", name)
	if err != nil {
		return "", err
	}
	return absolute(info.Path), nil
}

func (s *squashRoot) Open(name string) (elfx.Handle, error) {
	info, err := s.find("open", name)
	if err != nil {
		return nil, err
	}
	if info.Type != layer.Regular {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := s.r.Lookup(info.Path, false)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return squashHandle{f.Content()}, nil
}

// squashHandle is an open file; there is nothing to close.
type squashHandle struct{ *squashfs.Content }

func (squashHandle) Close() error { return nil }

func (s *squashRoot) ReadDir(name string) ([]string, error) {
	info, err := s.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if info.Type != layer.Dir {
		return nil, notDir("readdir", name)
	}
	dir, err := s.r.Lookup(info.Path, false)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	entries, err := dir.ReadDir()
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name
	}
	return names, nil
}

func (s *squashRoot) Stat(name string) (Info, error) {
	info, err := s.find("stat", name)
	if err != nil {
		return Info{}, err
	}
	return *info, nil
}

func (s *squashRoot) All(visit func(Info) error) error {
	for i := range s.all[1:] {
		if err := visit(s.all[i+1]); err != nil {
			return err
		}
	}
	return nil
}
