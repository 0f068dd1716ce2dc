package conda

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Group is the packages of one layer.
type Group struct {
	Name     string    // for people: "pytorch", or "small packages 3"
	Packages []Package // by name
}

// HasPython reports whether the environment's Python is in the group. It has a layer of its own, which is made without a compiler:
// compilers run on it.
func (g Group) HasPython() bool {
	return slices.ContainsFunc(g.Packages, func(p Package) bool { return p.Name == "python" })
}

// UsesPython reports whether a package of the group may have byte code. A group that does not wait for Python may be what Python itself
// runs on.
func (g Group) UsesPython() bool { return slices.ContainsFunc(g.Packages, usesPython) }

// GroupPackages distributes packages over at most budget layers. Where one goes depends on its own name and size, and on the
// others only when there are more large ones than the budget allows: the smallest of the large then go with the small. Python is
// large, whatever its size. Small packages with Python code and those without share no layer where there is room for both: Python runs on
// some of these while it compiles those. The order of the groups is stable: large packages by name, then the shared layers.
func GroupPackages(packages []Package, budget int) []Group {
	var groups []Group
	shared := layer.SharedOf(budget)
	by := layer.Packages[Package]{Name: func(p Package) string { return p.Name }, Size: weight, Compare: byName, Code: usesPython}
	by.Spread(packages, max(1, budget-shared), shared, func(name string, packages []Package) {
		groups = append(groups, Group{name, packages})
	})
	return groups
}

// weight is what a package is sorted by.
func weight(p Package) int64 {
	if p.Name == "python" {
		return 1 << 62
	}
	return p.Size
}

func byName(a, b Package) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.SHA256), string(b.SHA256)))
}

// layerFormat changes whenever the same packages would give another layer.
const layerFormat = "3" // 3: placeholders in UTF-16 and UTF-32 in binaries

// LayerKey names everything that the layer's bytes depend on: the packages with what their records say, the prefix, how the layer
// is written, and the environment's Python where a package needs one. With byte code that is its full version: what a compiler
// makes may change between patch releases.
func LayerKey(g Group, t Target, bytecode bool, o layer.Options) string {
	in := struct {
		Format, Prefix, Python, SitePackages string
		Bytecode                             bool
		Compression                          layer.Compression
		ModTime                              int64
		Packages                             []Package
	}{Format: layerFormat, Prefix: t.Prefix, Compression: o.Compression, ModTime: o.ModTime.Unix(), Packages: slices.SortedFunc(slices.Values(g.Packages), byName)}
	if slices.ContainsFunc(g.Packages, usesPython) {
		in.Python, in.SitePackages, in.Bytecode = t.Python.Minor(), t.Python.SitePackages, bytecode && !g.HasPython()
		if in.Bytecode {
			in.Python = cmp.Or(t.Python.Compiler, t.Python.Version)
		}
	}
	data, err := json.Marshal(in)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// usesPython reports whether a package may have byte code, or is laid down by the version of Python. Some locks do not say for what a
// package of noarch is.
func usesPython(p Package) bool {
	return p.Noarch == "python" || p.Noarch == "" && p.Subdir == "noarch" || p.Name == "python" || slices.ContainsFunc(p.Depends, func(d string) bool {
		name := DependencyName(d)
		return name == "python" || name == "python_abi"
	})
}

func (g Group) validate() error {
	names := map[string]bool{}
	for _, p := range g.Packages {
		if p.SHA256 == "" {
			return fmt.Errorf("conda package %s: its SHA-256 is not known", p.dist())
		}
		if names[p.Name] {
			return fmt.Errorf("conda package %s is there twice", p.Name)
		}
		names[p.Name] = true
		if err := checkPath(p.dist()); err != nil || strings.Contains(p.dist(), "/") {
			return fmt.Errorf("%q is not the name of a conda package", p.dist())
		}
	}
	return nil
}

// BuildLayer makes the layer that holds the packages of g under t, once. compiler makes the byte code; nil: there is only what
// packages bring. Archives are read from the store. One that is lacking is brought: before the layer is made, and only then, bring
// is called, and what it returns when the layer is done; nil: all are there.
//
// Files wait in a temporary directory of the store until they are written. Memory is bounded by what zstd looks back in a few
// archives at once, and by the layer's writer.
func BuildLayer(
	ctx context.Context, st *store.Store, g Group, t Target, compiler Compiler, o layer.Options, bring func(context.Context) (done func(), err error),
) (layer.Descriptor, Manifest, error) {
	if err := t.validate(); err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	if err := g.validate(); err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	if g.HasPython() {
		compiler = nil
	}
	return layer.Making[Manifest]{
		Kind: store.KindCondaLayer, Key: LayerKey(g, t, compiler != nil, o), Name: g.Name, Bring: bring,
		Make: func(ctx context.Context, task *progress.Task) (layer.Descriptor, Manifest, error) {
			return makeLayer(ctx, st, g, t, compiler, o, task)
		},
	}.Once(ctx, st)
}

// maxTogether is how many packages are unpacked at once: enough for all cores while the window of each is bounded.
const maxTogether = 4

func makeLayer(ctx context.Context, st *store.Store, g Group, t Target, compiler Compiler, o layer.Options, task *progress.Task) (layer.Descriptor, Manifest, error) {
	dir, err := st.TempDir("conda-*")
	if err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	defer store.RemoveAll(dir)
	packages := slices.SortedFunc(slices.Values(g.Packages), byName)
	done := make([]*unpacked, len(packages))
	defer func() {
		for _, u := range done {
			if u != nil {
				u.spool.Close()
			}
		}
	}()
	group, limited := errgroup.WithContext(ctx)
	group.SetLimit(min(maxTogether, runtime.GOMAXPROCS(0)))
	for i, p := range packages {
		group.Go(func() (err error) {
			done[i], err = prepare(limited, st, p, t, compiler, dir, task)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	var m Manifest
	linked := inOrder(done)
	followLinks(linked, t.Prefix)
	for _, u := range linked {
		p, err := u.manifest()
		if err != nil {
			return layer.Descriptor{}, Manifest{}, err
		}
		m.Packages = append(m.Packages, p)
	}
	d, err := writeLayer(ctx, st, linked, &m, t, o)
	return d, m, err
}

// inOrder sorts packages as they are linked: a file of a later one takes the place of that of an earlier one.
func inOrder(all []*unpacked) []*unpacked {
	var packages []Package
	byName := map[string]*unpacked{}
	for _, u := range all {
		packages = append(packages, u.pkg)
		byName[u.pkg.Name] = u
	}
	sorted := make([]*unpacked, 0, len(all))
	for _, p := range SortPackages(packages) {
		sorted = append(sorted, byName[p.Name])
	}
	return sorted
}

// prepare makes all files of a package.
func prepare(ctx context.Context, st *store.Store, p Package, t Target, compiler Compiler, dir string, task *progress.Task) (*unpacked, error) {
	f, err := st.OpenBlob(p.SHA256)
	if err != nil {
		return nil, fmt.Errorf("open conda package %s: %w", p.File, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open conda package %s: %w", p.File, err)
	}
	a, err := openArchive(f, info.Size(), p.File)
	if err != nil {
		return nil, err
	}
	s, err := newSpool(dir, a.limit)
	if err != nil {
		return nil, err
	}
	u, err := prepareFiles(ctx, a, p, t, compiler, s, task, info.Size())
	if err != nil {
		s.Close()
	}
	return u, err
}

func prepareFiles(ctx context.Context, a *archive, p Package, t Target, compiler Compiler, s *spool, task *progress.Task, size int64) (*unpacked, error) {
	defer a.close()
	if err := a.expand(ctx, path.Dir(s.file.Name())); err != nil {
		return nil, err
	}
	u, err := unpack(ctx, a, p, t, s, task.Add)
	if err != nil {
		return nil, err
	}
	if err := u.bytecode(ctx, compiler); err != nil {
		return nil, err
	}
	record, err := u.record(size)
	if err != nil {
		return nil, err
	}
	f, err := s.addGenerated(p.recordPath(), 0o644, "", record)
	if err == nil {
		u.files = append(u.files, f)
		sortFiles(u.files)
	}
	return u, err
}

// followLinks moves files to where they come to lie when packages are linked in their order: a link to a directory that an earlier
// package brought is followed. Records say what the package says, as those of conda do.
func followLinks(linked []*unpacked, prefix string) {
	links := newTree()
	for _, u := range linked {
		taken := map[string]bool{}
		for _, f := range u.files {
			taken[f.path] = true
		}
		for _, f := range u.files {
			if at := links.resolve(f.path, prefix); !taken[at] {
				f.path = at
			}
		}
		sortFiles(u.files)
		for _, f := range u.files {
			if f.kind == layer.Symlink {
				links.set(f.path, owned{ManifestFile: ManifestFile{Type: "l", Link: f.link}})
			}
		}
	}
}

// placed is a file of one of several packages.
type placed struct {
	*file
	from int // the package's place in the order of linking
}

// writeLayer writes the files of packages, which come in the order of linking, and notes in the manifest which of them are not in
// the layer because a later package has the same path.
func writeLayer(ctx context.Context, st *store.Store, packages []*unpacked, m *Manifest, t Target, o layer.Options) (layer.Descriptor, error) {
	files := merge(packages, m)
	w, err := layer.NewWriter(ctx, st, o)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	dirs := map[string]bool{}
	names := map[string]string{} // of content with several names, the first
	for _, f := range files {
		at := t.root() + "/" + f.path
		if err := addParents(w, at, dirs); err != nil {
			return layer.Descriptor{}, err
		}
		e := layer.Entry{Path: at, Type: f.kind, Mode: f.mode, Link: f.link, Size: f.size}
		if f.kind == layer.Dir {
			dirs[at] = true
		}
		if f.kind == layer.Regular && f.size > 0 {
			content := fmt.Sprint(f.from, " ", f.offset)
			if first, ok := names[content]; ok {
				e = layer.Entry{Path: at, Type: layer.HardLink, Mode: f.mode, Link: first}
			}
			names[content] = cmp.Or(names[content], at)
		}
		s := packages[f.from].spool
		open := func() (io.ReadCloser, error) { return io.NopCloser(s.open(f.offset, f.size)), nil }
		if err := w.Add(e, open); err != nil {
			return layer.Descriptor{}, err
		}
	}
	return w.Close()
}

// addParents writes the directories above a path that are not there yet.
func addParents(w *layer.Writer, at string, dirs map[string]bool) error {
	for _, dir := range layer.Parents(at) {
		if dirs[dir] {
			continue
		}
		dirs[dir] = true
		if err := w.Add(layer.Entry{Path: dir, Type: layer.Dir, Mode: 0o755}, nil); err != nil {
			return err
		}
	}
	return nil
}

// merge puts the files of packages into the order of a layer. Of several with one path that of the last package remains; what lies
// below a path that is no directory goes.
func merge(packages []*unpacked, m *Manifest) []placed {
	var all []placed
	for i, u := range packages {
		for _, f := range u.files {
			all = append(all, placed{f, i})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(layer.Compare(a.path, b.path), cmp.Compare(solid(a.kind), solid(b.kind)), cmp.Compare(a.from, b.from))
	})
	var kept []placed
	for i, f := range all {
		if i+1 < len(all) && all[i+1].path == f.path || lost(kept, f) {
			m.lose(f)
			continue
		}
		kept = append(kept, f)
	}
	return kept
}

// solid sorts directories before all else.
func solid(t layer.Type) int {
	if t == layer.Dir {
		return 0
	}
	return 1
}

// lost reports whether a file lies below one that is no directory, and cannot be there.
func lost(kept []placed, f placed) bool {
	if len(kept) == 0 {
		return false
	}
	last := kept[len(kept)-1]
	return last.kind != layer.Dir && below(f.path, last.path)
}
