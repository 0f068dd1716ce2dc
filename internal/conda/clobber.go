package conda

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/pathwalk"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/units"
)

// Clobber says that two packages put different things in one place.
type Clobber struct {
	Path          string // below the prefix
	Winner, Loser string // names and versions; the winner is linked later, as with conda
}

// owned is a file, and the package that brings it.
type owned struct {
	ManifestFile
	label string // name and version of the package
	layer int    // the manifest
}

func (a owned) same(b owned) bool {
	return a.Type == b.Type && a.SHA256 == b.SHA256 && a.Link == b.Link
}

// tree is the files of a prefix by path, without directories.
type tree struct {
	files map[string]owned
	dirs  map[string]int // how many files lie below
}

func newTree() *tree { return &tree{files: map[string]owned{}, dirs: map[string]int{}} }

func (t *tree) set(at string, f owned) {
	if _, there := t.files[at]; !there {
		for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
			t.dirs[dir]++
		}
	}
	t.files[at] = f
}

func (t *tree) remove(at string) {
	delete(t.files, at)
	for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
		if t.dirs[dir]--; t.dirs[dir] == 0 {
			delete(t.dirs, dir)
		}
	}
}

// fileAbove returns what stands where a path needs a directory.
func (t *tree) fileAbove(at string) (string, bool) {
	for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
		if _, ok := t.files[dir]; ok {
			return dir, true
		}
	}
	return "", false
}

// resolve follows the links of directories above a path. A path that would lead out of the prefix, in a circle, or to where no package may
// have a file stays as it is.
func (t *tree) resolve(at, prefix string) string {
	dir, w := ".", pathwalk.Begin(at)
	for part, ok := w.Next(); ok; part, ok = w.Next() {
		if part == ".." && dir == "." {
			return at
		}
		dir = path.Join(dir, part)
		f := t.files[dir]
		if f.Type != "l" || w.IsLast() {
			continue
		}
		target, inside := strings.CutPrefix(f.Link, prefix+"/")
		if path.IsAbs(target) {
			return at
		}
		if _, err := w.Follow(target); err != nil {
			return at
		}
		if dir = path.Dir(dir); inside {
			dir = "."
		}
	}
	if below(dir, "conda-meta") || checkPath(strings.TrimPrefix(prefix, "/")+"/"+dir) != nil {
		return at
	}
	return dir
}

// link says what a prefix holds when packages are linked in their order, as conda does it: one after the other, through links of
// directories, and what comes later stays. Between packages of one layer it stays as the layer has it.
func link(packages []Package, manifests []Manifest, prefix string) (*tree, []Clobber) {
	t := newTree()
	var clobbers []Clobber
	add := func(at string, winner, loser owned) {
		clobbers = append(clobbers, Clobber{at, winner.label, loser.label})
	}
	files := map[string][]owned{}
	lost := map[string][]owned{} // by path: what its own layer lacks
	for i, m := range manifests {
		for _, p := range m.Packages {
			for _, f := range p.Files {
				switch o := (owned{f, p.Name + " " + p.Version, i}); {
				case f.Lost:
					lost[f.Path] = append(lost[f.Path], o)
				case f.Type != "d":
					files[p.Name] = append(files[p.Name], o)
				}
			}
		}
	}
	for _, p := range SortPackages(packages) {
		for _, f := range files[p.Name] {
			at := t.resolve(f.Path, prefix)
			if dir, ok := t.fileAbove(at); ok {
				add(at, t.files[dir], f)
				continue
			}
			if t.dirs[at] > 0 {
				add(at, owned{label: "the directory of other files"}, f)
				continue
			}
			if other, ok := t.files[at]; ok && !other.same(f) {
				add(at, f, other)
			}
			t.set(at, f)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(lost)) {
		for _, f := range lost[at] {
			if winner, ok := t.files[at]; !ok || !winner.same(f) {
				add(at, winner, f)
			}
		}
	}
	return t, clobbers
}

// stack says what a prefix holds when layers are laid one over the other.
func stack(manifests []Manifest) *tree {
	t := newTree()
	for i, m := range manifests {
		for _, p := range m.Packages {
			for _, f := range p.Files {
				if f.Type == "d" || f.Lost {
					continue
				}
				if dir, ok := t.fileAbove(f.Path); ok {
					t.remove(dir)
				}
				if t.dirs[f.Path] > 0 {
					for _, at := range slices.Collect(maps.Keys(t.files)) {
						if below(at, f.Path) {
							t.remove(at)
						}
					}
				}
				t.set(f.Path, owned{f, p.Name + " " + p.Version, i})
			}
		}
	}
	return t
}

// repairs returns what a layer on top has to hold so that the layers below it are what linking gives: files by path, and paths that
// are to go.
func repairs(packages []Package, manifests []Manifest, prefix string) (files map[string]owned, gone []string, clobbers []Clobber) {
	want, clobbers := link(packages, manifests, prefix)
	have := stack(manifests)
	files = map[string]owned{}
	for at, f := range want.files {
		if h, ok := have.files[at]; !ok || !h.same(f) || h.Mode != f.Mode {
			files[at] = f
		}
	}
	for _, at := range slices.Sorted(maps.Keys(have.files)) {
		if _, ok := want.files[at]; ok || want.dirs[at] > 0 {
			continue // it is there, or a directory takes its place
		}
		if _, covered := want.fileAbove(at); !covered {
			gone = append(gone, at)
		}
	}
	return files, gone, clobbers
}

// warn tells of clobbers, once for each pair of packages.
func warn(ctx context.Context, clobbers []Clobber) {
	type pair struct{ winner, loser string }
	more := map[pair][]string{}
	for _, c := range clobbers {
		p := pair{c.Winner, c.Loser}
		more[p] = append(more[p], c.Path)
	}
	for _, p := range slices.SortedFunc(maps.Keys(more), func(a, b pair) int { return strings.Compare(a.winner+a.loser, b.winner+b.loser) }) {
		paths := more[p]
		text := fmt.Sprintf("conda: %s and %s both have %s, and not the same", p.winner, p.loser, paths[0])
		if len(paths) > 1 {
			text += ", and " + units.Number(len(paths)-1, "more file")
		}
		progress.Warn(ctx, text+"; that of "+p.winner+" is taken, as conda does", "leave one of the packages out, or take builds of one channel")
	}
}

// whiteout is the entry that removes a path in the layers below.
func whiteout(at string) string { return path.Join(path.Dir(at), layer.WhiteoutPrefix+path.Base(at)) }
