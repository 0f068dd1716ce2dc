package fileop

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/pathwalk"
)

// stage is an image with changes that are not a layer yet. What nobody asks for is not read from the image.
type stage struct {
	onto *image.Tree // nil: an image without files
	root *place
}

// place is a file of the stage. Its Type is never HardLink.
type place struct {
	layer.Entry
	dir     *place // that holds it, nil for the root
	content layer.Content
	file    any  // the same for all names of a file that has several, else nil
	changed bool // it is to be in the layer
	touched bool // it, or something below it, is
	merged  bool // a directory that the image has too: what it holds shows through
	opaque  bool // a directory in the place of another that the image has, which hides that

	names map[string]*place // what is known of a directory; nil: nothing has that name
}

func newStage(onto *image.Tree) *stage {
	s := &stage{onto: onto, root: &place{Entry: layer.Entry{Path: ".", Type: layer.Dir, Mode: 0o755}}}
	if onto != nil {
		s.root.Entry = onto.Root().Entry
		s.root.merged = true
	}
	return s
}

// below returns what is called name in a directory, or nil.
func (s *stage) below(dir *place, name string) *place {
	if p, ok := dir.names[name]; ok || !dir.merged {
		return p
	}
	p := s.inImage(path.Join(dir.Path, name))
	if p != nil {
		p.dir = dir
	}
	dir.set(name, p)
	return p
}

func (s *stage) inImage(p string) *place {
	n, err := s.onto.Lstat(p)
	if err != nil { // nothing else can be wrong with the name of something in a directory
		return nil
	}
	at := &place{Entry: n.Entry}
	switch n.Type {
	case layer.Dir:
		at.merged = true
	case layer.Regular:
		at.content = func() (io.ReadCloser, error) { return s.onto.Open(n) }
	}
	return at
}

func (p *place) set(name string, child *place) {
	if p.names == nil {
		p.names = map[string]*place{}
	}
	p.names[name] = child
}

// change notes that p is to be in the layer.
func (p *place) change() {
	p.changed = true
	for ; p != nil && !p.touched; p = p.dir {
		p.touched = true
	}
}

// put gives a name in a directory to something new. What had the name is gone.
func (s *stage) put(dir *place, name string, e layer.Entry, content layer.Content, file any) (*place, error) {
	if strings.HasPrefix(name, layer.WhiteoutPrefix) {
		return nil, fmt.Errorf("%s cannot be in an image: names that start with %s stand for files that are removed",
			quote("/"+path.Join(dir.Path, name)), layer.WhiteoutPrefix)
	}
	e.Path = path.Join(dir.Path, name)
	p := &place{Entry: e, dir: dir, content: content, file: file}
	if e.Type == layer.Dir {
		p.opaque = s.hides(dir, name)
	}
	dir.set(name, p)
	p.change()
	return p, nil
}

// hides reports whether the image has a directory with that name in a directory of the stage.
func (s *stage) hides(dir *place, name string) bool {
	if !dir.merged {
		return false
	}
	old := s.inImage(path.Join(dir.Path, name))
	return old != nil && old.Type == layer.Dir
}

// remove takes a name out of a directory.
func (s *stage) remove(dir *place, name string) {
	dir.set(name, nil)
	for p := dir; p != nil && !p.touched; p = p.dir {
		p.touched = true
	}
}

// reach is reachBelow for the root of the image.
func (s *stage) reach(name string, follow bool, mk *maker) (dir *place, base string, err error) {
	return s.reachBelow(s.root, name, follow, mk)
}

// reachBelow returns the directory that holds what name leads to, and its name there. Symlinks are followed as if root was the
// root of everything, the last one only with follow. Missing directories on the way are made by mk; there must
// be none when mk is nil. For the root the directory is nil.
func (s *stage) reachBelow(root *place, name string, follow bool, mk *maker) (dir *place, base string, err error) {
	at := root
	w := pathwalk.Begin(strings.TrimRight(name, "/"))
	for part, ok := w.Next(); ok; part, ok = w.Next() {
		if at.Type != layer.Dir {
			return nil, "", notDir(at)
		}
		switch part {
		case ".":
			continue
		case "..":
			if at != root {
				at = at.dir
			}
			continue
		}
		last := w.IsLast()
		next := s.below(at, part)
		if next != nil && next.Type == layer.Symlink && (follow || !last) {
			fromRoot, err := w.Follow(next.Link)
			if err != nil {
				return nil, "", &fs.PathError{Op: "reach", Path: name, Err: err}
			}
			if fromRoot {
				at = root
			}
			continue
		}
		if last {
			return at, part, nil
		}
		if next == nil {
			if next, err = s.makeDir(at, part, mk); err != nil {
				return nil, "", err
			}
		}
		at = next
	}
	if at == root {
		return nil, "", nil
	}
	return at.dir, path.Base(at.Path), nil
}

// maker says what missing directories are like that are made on the way.
type maker struct {
	owner
	mode uint32
}

// newMaker makes directories with the permissions 0755, of an owner, or of root when that is nil.
func newMaker(o *owner) *maker {
	mk := &maker{mode: 0o755}
	if o != nil {
		mk.owner = *o
	}
	return mk
}

func notDir(p *place) error {
	return fault.Hint(fmt.Errorf("%s is not a directory in the image", quote("/"+p.Path)), "remove it in a step before, or copy to another place")
}

func (s *stage) makeDir(dir *place, name string, mk *maker) (*place, error) {
	if mk == nil {
		return nil, fmt.Errorf("the image has no directory %s: %w", quote("/"+path.Join(dir.Path, name)), fs.ErrNotExist)
	}
	return s.put(dir, name, layer.Entry{Type: layer.Dir, Mode: mk.mode, UID: mk.uid, GID: mk.gid}, nil, nil)
}

// enter returns the directory that name leads to, which is made by mk when it is missing.
func (s *stage) enter(name string, mk *maker) (*place, error) {
	dir, base, err := s.reach(name, true, mk)
	if err != nil || dir == nil {
		return s.root, err
	}
	p := s.below(dir, base)
	switch {
	case p == nil:
		return s.makeDir(dir, base, mk)
	case p.Type != layer.Dir:
		return nil, notDir(p)
	}
	return p, nil
}

// write adds what has changed to a layer, and the directories above it.
func (s *stage) write(w *layer.Writer) error {
	if s.root.changed {
		if err := w.Add(s.root.Entry, nil); err != nil {
			return err
		}
	}
	return s.writeBelow(w, s.root, map[any]string{})
}

// writeBelow adds what has changed in a directory. first is the first path of each file that has several.
func (s *stage) writeBelow(w *layer.Writer, dir *place, first map[any]string) error {
	for _, name := range s.written(dir) {
		p := dir.names[name]
		if p == nil {
			if err := w.Add(layer.Entry{Path: path.Join(dir.Path, name), Mode: 0o644}, nil); err != nil {
				return err
			}
			continue
		}
		if err := w.Add(p.linked(first)); err != nil {
			return err
		}
		if p.Type == layer.Dir {
			if err := s.writeBelow(w, p, first); err != nil {
				return err
			}
		}
	}
	return nil
}

// written returns the names that a directory has in the layer, whiteouts included, in order. Every place that it does not know
// is a whiteout.
func (s *stage) written(dir *place) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(dir.names)) {
		switch p := dir.names[name]; {
		case p != nil && p.touched:
			list = append(list, name)
		case p == nil && dir.merged && s.inImage(path.Join(dir.Path, name)) != nil:
			list = append(list, layer.WhiteoutPrefix+name)
		}
	}
	if dir.opaque {
		list = append(list, layer.WhiteoutOpaque)
	}
	slices.Sort(list)
	return list
}

// linked returns the entry of a place and its content: a hard link when the layer has the file under another name already.
func (p *place) linked(first map[any]string) (layer.Entry, layer.Content) {
	if p.Type != layer.Regular || p.file == nil {
		return p.Entry, p.content
	}
	if target, ok := first[p.file]; ok {
		e := p.Entry
		e.Type, e.Link, e.Size, e.Xattrs = layer.HardLink, target, 0, nil
		return e, nil
	}
	first[p.file] = p.Path
	return p.Entry, p.content
}
