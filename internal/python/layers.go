package python

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Item is a wheel that goes into an image, with what the lock says about it. Its blob is in the store.
type Item struct {
	Name      string       // the distribution's name
	Version   string       //
	File      string       // the wheel's file name
	Digest    store.Digest // of the wheel
	Size      int64        // of the wheel, in bytes
	Requested bool         // the user asked for it, it is not only a dependency
	DirectURL *DirectURL   // where it came from when that was no index (PEP 610)
}

// Group is the wheels of one layer.
type Group struct {
	Name  string // for people: "torch", or "small packages 3"
	Items []Item // by normalised name
}

// GroupItems distributes items over at most budget layers. Where an item goes depends on its own name and size, and on the
// others only when there are more large ones than the budget allows: the smallest of the large then go with the small.
// The order of the groups is stable: large packages by name, then the shared layers.
func GroupItems(items []Item, budget int) []Group {
	var groups []Group
	shared := layer.SharedOf(budget)
	by := layer.Packages[Item]{
		Name: func(it Item) string { return NormalizeName(it.Name) }, Size: func(it Item) int64 { return it.Size }, Compare: byName,
	}
	by.Spread(items, max(0, budget-shared), shared, func(name string, items []Item) { groups = append(groups, Group{name, items}) })
	return groups
}

// GroupPreferred is [GroupItems] for an environment in which the files of some packages go before those of others. Each of
// these, which prefer names with the first above all, has a layer of its own on top of the rest.
func GroupPreferred(items []Item, budget int, prefer []string) []Group {
	var top []Group
	rest := slices.Clone(items)
	for _, name := range slices.Backward(prefer) {
		if i := slices.IndexFunc(rest, func(it Item) bool { return NormalizeName(it.Name) == name }); i >= 0 {
			top = append(top, Group{Name: name, Items: []Item{rest[i]}})
			rest = slices.Delete(rest, i, i+1)
		}
	}
	return append(GroupItems(rest, max(1, budget-len(top))), top...)
}

func byName(a, b Item) int {
	return cmp.Or(strings.Compare(NormalizeName(a.Name), NormalizeName(b.Name)), strings.Compare(string(a.Digest), string(b.Digest)))
}

// Manifest lists what a layer of wheels lays down, byte code aside.
type Manifest struct {
	Packages []PackageFiles `json:"packages"`
}

// PackageFiles is what one package lays down.
type PackageFiles struct {
	Name     string         `json:"name"` // as its metadata spells it
	Version  string         `json:"version"`
	DistInfo string         `json:"distInfo"`
	Files    []ManifestFile `json:"files"` // by path
}

// ManifestFile is one file, its path relative to the environment.
type ManifestFile struct {
	Path   string `json:"p"`
	SHA256 string `json:"h"` // URL-safe base64 without padding
	Size   int64  `json:"s"`
}

// LayerOptions says how layers of wheels are made.
type LayerOptions struct {
	layer.Options
	ReadAhead int64  // bytes of content held in memory ahead of the writer; 0: 32 MiB
	Compiler  string // the full version of the Python that makes the byte code, where it is not the target's
}

// CompilerFor is the full version of the Python that makes byte code for p.
func (o LayerOptions) CompilerFor(p Interpreter) string { return cmp.Or(o.Compiler, p.Version) }

const defaultReadAhead = 32 << 20

// layerFormat changes whenever the same wheels would give another layer.
const layerFormat = "3"

// Compiled says, for people and for keys, which modules have byte code where there is any. It changes whenever others would.
const Compiled = "all modules but tests"

// BuildLayer makes the layer that holds the wheels of g under t, once. compiler makes the byte code; nil: there is none. Wheels
// are read from the store, and memory is bounded by o.ReadAhead and the layer writer.
func BuildLayer(ctx context.Context, st *store.Store, g Group, t Target, compiler Compiler, o LayerOptions) (layer.Descriptor, Manifest, error) {
	return BringAndBuildLayer(ctx, st, g, t, compiler, o, nil)
}

// BringAndBuildLayer is [BuildLayer] of wheels that the store may lack: before the layer is made, and only then, bring is called to
// bring them, and what it returns when the layer is done.
func BringAndBuildLayer(
	ctx context.Context, st *store.Store, g Group, t Target, compiler Compiler, o LayerOptions, bring func(context.Context) (done func(), err error),
) (layer.Descriptor, Manifest, error) {
	if err := t.validate(); err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	w := layer.Making[Manifest]{
		Kind: store.KindWheelLayer, Key: LayerKey(g, t, compiler != nil, o), Name: g.Name, Bring: bring,
		Make: func(ctx context.Context, task *progress.Task) (layer.Descriptor, Manifest, error) {
			return makeLayer(ctx, st, g, t, compiler, o, task)
		},
	}
	if compiler != nil {
		w.Then = func(l layer.Listed) error { return remember(st, l, g, t, o) }
	}
	return w.Once(ctx, st)
}

// LayerKey names everything that the layer's bytes depend on.
func LayerKey(g Group, t Target, bytecode bool, o LayerOptions) string {
	type input struct {
		File   string
		Digest store.Digest
	}
	in := struct {
		Format, Root, Python string
		Bytecode             bool
		Compiled             string `json:",omitempty"`
		Compression          layer.Compression
		ModTime              int64
		Items                []input
		Own                  string `json:",omitempty"` // the interpreter of its own prefix, and where it takes packages from
		Relocatable          bool   `json:",omitempty"`
	}{Format: layerFormat, Root: t.Root, Python: t.Python.Minor(), Bytecode: bytecode, Compression: o.Compression, ModTime: o.ModTime.Unix()}
	if bytecode {
		in.Python = o.CompilerFor(t.Python) // what the compiler emits may change between patch releases
		in.Compiled = Compiled
	}
	if t.Own {
		in.Own = t.Executable() + " " + t.sitePackages()
	}
	in.Relocatable = t.Relocatable
	for _, it := range g.Items {
		in.Items = append(in.Items, input{it.File, it.Digest})
	}
	data, err := json.Marshal(in)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// makeLayer makes the layer. Members are checked against RECORD while they are written; when that turns out to be wrong, the
// wheel is measured and the layer made once more, so that only such wheels are read twice.
func makeLayer(ctx context.Context, st *store.Store, g Group, t Target, compiler Compiler, o LayerOptions, task *progress.Task) (layer.Descriptor, Manifest, error) {
	measured := make(map[string]bool)
	for {
		d, m, err := tryLayer(ctx, st, g, t, compiler, o, task, measured)
		var wrong *recordError
		if !errors.As(err, &wrong) || measured[wrong.wheel] {
			return d, m, err
		}
		measured[wrong.wheel] = true
		task.SetCurrent(0)
	}
}

func tryLayer(ctx context.Context, st *store.Store, g Group, t Target, compiler Compiler, o LayerOptions, task *progress.Task, measured map[string]bool) (layer.Descriptor, Manifest, error) {
	s := shelf{measured: measured}
	defer s.close()
	var m Manifest
	for _, it := range g.Items {
		p, err := s.lay(st, it, t)
		if err != nil {
			return layer.Descriptor{}, Manifest{}, err
		}
		m.Packages = append(m.Packages, p)
	}
	if err := CheckConflicts([]Manifest{m}, nil); err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	w, err := layer.NewWriter(ctx, st, o.Options)
	if err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	defer w.Abort()
	var e *earlier
	if compiler != nil {
		e = openEarlier(st, g, t, o)
	}
	p := newGroupWriter(w, t, compiler, e, cmp.Or(o.ReadAhead, defaultReadAhead), task)
	if err := p.write(ctx, s.files); err != nil {
		return layer.Descriptor{}, Manifest{}, err
	}
	d, err := w.Close()
	if err == nil {
		for _, wheel := range s.wheels {
			wheel.complaints.warn(ctx, wheel.File)
		}
	}
	return d, m, err
}

// CheckWheels opens wheels that are in the store and says what they lay down under t, and what is wrong with them as far as
// that is seen without unpacking them.
func CheckWheels(st *store.Store, items []Item, t Target) (Manifest, error) {
	s := shelf{}
	defer s.close()
	var m Manifest
	for _, it := range items {
		p, err := s.lay(st, it, t)
		var wrong *recordError
		if errors.As(err, &wrong) {
			continue // it is measured when its layer is made
		}
		if err != nil {
			return m, err
		}
		m.Packages = append(m.Packages, p)
	}
	return m, nil
}

// shelf holds the open wheels of a group and the files they lay down.
type shelf struct {
	open     []*os.File
	wheels   []*Wheel
	files    []*File
	measured map[string]bool // wheels whose RECORD is known to be wrong, by file
}

func (s *shelf) close() {
	for _, f := range s.open {
		f.Close()
	}
}

// lay opens a wheel and puts its files on the shelf.
func (s *shelf) lay(st *store.Store, it Item, t Target) (PackageFiles, error) {
	f, err := st.OpenBlob(it.Digest)
	if err != nil {
		return PackageFiles{}, fmt.Errorf("open wheel %s: %w", it.File, err)
	}
	s.open = append(s.open, f)
	info, err := f.Stat()
	if err != nil {
		return PackageFiles{}, fmt.Errorf("open wheel %s: %w", it.File, err)
	}
	w, err := OpenWheel(f, info.Size(), it.File)
	if err != nil {
		return PackageFiles{}, err
	}
	if s.measured[w.File] {
		if err := w.measure(); err != nil {
			return PackageFiles{}, err
		}
	}
	files, err := Layout(w, t)
	if err != nil {
		return PackageFiles{}, err
	}
	s.wheels = append(s.wheels, w)
	s.files = append(s.files, files...)
	return packageFiles(w, files), nil
}

func packageFiles(w *Wheel, files []*File) PackageFiles {
	p := PackageFiles{Name: w.Name, Version: w.Version, DistInfo: w.DistInfo}
	for _, f := range files {
		p.Files = append(p.Files, ManifestFile{f.Path, f.SHA256, f.Size})
	}
	slices.SortFunc(p.Files, func(a, b ManifestFile) int { return strings.Compare(a.Path, b.Path) })
	return p
}

func allPackages(manifests []Manifest) []PackageFiles {
	var all []PackageFiles
	for _, m := range manifests {
		all = append(all, m.Packages...)
	}
	slices.SortStableFunc(all, func(a, b PackageFiles) int {
		return cmp.Or(strings.Compare(NormalizeName(a.Name), NormalizeName(b.Name)), strings.Compare(a.Version, b.Version))
	})
	return all
}
