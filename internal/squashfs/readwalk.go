package squashfs

import (
	"errors"
	"fmt"
	"io/fs"
)

// maxDepth is how many directories may be in each other: as many as the longest path that Linux takes has.
const maxDepth = 2048

// Walk calls visit for the root, whose path is ".", and for everything in it, names in bytewise order, a directory before what
// is in it. Paths are relative to the root. visit may return fs.SkipDir and fs.SkipAll, as in fs.WalkDir; another error
// ends the walk and is returned. A directory that is found twice is an error.
func (r *Reader) Walk(visit func(path string, f *File) error) error {
	root, err := r.Root()
	if err != nil {
		return err
	}
	w := &walker{visit: visit, seen: map[uint64]bool{}, left: r.dirs.end - r.dirs.start}
	// Directories do not share listings, so all of them together are not larger than their table can be: a metadata block of
	// metadataSize takes three bytes at least.
	w.left = w.left/3*metadataSize + metadataSize
	if err := w.walk(".", "", root, 0); err != nil && !errors.Is(err, fs.SkipAll) && !errors.Is(err, fs.SkipDir) {
		return err
	}
	return nil
}

type walker struct {
	visit func(path string, f *File) error
	seen  map[uint64]bool // directories, by reference
	left  int64           // bytes of listings
}

// walk visits f. prefix is what the paths of its entries begin with.
func (w *walker) walk(path, prefix string, f *File, depth int) error {
	if f.Type != Dir {
		return w.visit(path, f)
	}
	w.left -= f.listing.size
	switch {
	case w.seen[f.ref]:
		return formatError("%s: the directory is in two places", path)
	case depth > maxDepth:
		return formatError("%s: more than %d directories in each other", path, maxDepth)
	case w.left < 0:
		return formatError("%s: directories have more entries than their table", path)
	}
	w.seen[f.ref] = true
	if err := w.visit(path, f); err != nil {
		if errors.Is(err, fs.SkipDir) {
			return nil
		}
		return err
	}
	entries, err := f.ReadDir()
	if err != nil {
		return fmt.Errorf("read directory %s: %w", path, err)
	}
	for _, e := range entries {
		child, err := e.Open()
		name := prefix + e.Name
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := w.walk(name, name+"/", child, depth+1); err != nil {
			if child.Type != Dir && errors.Is(err, fs.SkipDir) {
				return nil
			}
			return err
		}
	}
	return nil
}
