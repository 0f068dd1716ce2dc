// Package wheelbuild makes a wheel of a Python package that has none.
//
// The package's own backend is called (PEP 517) in the sandbox, on the layers of an image: its base and system packages and,
// for what is built against them, its Python packages. Build requirements lie above these in an environment of their own,
// which no image ever holds. Nothing of the package runs outside of the sandbox, and by default nothing in it reaches the network.
//
// The wheel is kept under a key of what decides it ([Key]), which is not the image: two images with the same torch share it.
//
//	key.go      what decides a wheel            toolkit.go  where nvcc is, and which
//	source.go   sources into the store          jobs.go     how many compilers at once
//	layers.go   what lies above the image       driver.py   calls the backend
//	order.go    several packages                ask.go      what backends want, before any builds
//	run.go      the build and its errors        normal.go   the same bytes for the same wheel
//	missing.go  what a build did not find
package wheelbuild

import (
	"context"
	"fmt"
	"net/http"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/store"
)

// Package is one package to build and how. It is plain data, pinned by a lock.
type Package struct {
	Name    string // normalised
	Version string // "" when only the build will tell
	Source  python.Source

	// Isolated: it is built with its build requirements alone. Otherwise it also sees the packages of the image.
	Isolated bool
	Requires []Wheel  // build requirements that the image does not bring
	Against  []string // packages of the image that decide what the wheel is like, torch above all: names, normalised

	// BaseVersions are the versions of those of Against that the base brings, by name.
	BaseVersions map[string]string

	// Conda is what the conda environment is made of that the image brings, as a digest; "" is none. Its libraries and compilers
	// decide what the wheel is like.
	Conda string `json:",omitempty"`

	Env          map[string]string // variables that were declared; they go before all that is set here
	Archs        []string          // compute capabilities, in the form of TORCH_CUDA_ARCH_LIST
	CUDA         bool              // nvcc must be of the major version that torch was built with
	Network      bool              // it may download while it is built
	MemoryPerJob int64             // bytes that one compiler takes; 0: DefaultMemoryPerJob
	Jobs         int               // compilers at once; 0: what cores and memory allow
}

// Label names the package to a person.
func (p Package) Label() string {
	if p.Version == "" {
		return p.Name
	}
	return p.Name + " " + p.Version
}

// Wheel is a build requirement and where to get it.
type Wheel struct {
	python.Item
	URL string
}

// Ground is the image, as far as it is there, that a package is built on.
type Ground struct {
	Layers     []layer.Descriptor // lowest first: the base, system packages, steps and, unless isolated, layers of wheels
	Env        []string           // the image's environment, KEY=VALUE
	Python     python.Interpreter // of the base
	Root       string             // where the layers of wheels put packages, relative to the image's root: "opt/venv"
	Items      []python.Item      // the wheels in these layers
	SystemSite bool               // the environment sees the base's packages
	Components []store.Digest     // of those of the layers that decide what is built by their bytes: what it is linked against
}

// Builder builds packages. Its methods may be called from many goroutines, which is how several are built at once.
type Builder struct {
	Runner *execop.Runner
	Arch   string // of what is built on, by Go's name
	Fetch  *fetch.Client
	Jobs   *Jobs         // shared by all that is built on this machine
	Shared *store.Shared // where other machines keep what they built; nil: nowhere

	Header func(url string) http.Header // logins for package indexes; nil: none
	Login  string                       // where they are looked for, for errors

	Reach reach.Bounds // see [Sources]
}

// record is what a build gave.
type record struct {
	File    string       `json:"file"`
	Version string       `json:"version"`
	Digest  store.Digest `json:"digest"`
	Size    int64        `json:"size"`
}

func (r record) item(p Package) python.Item {
	return python.Item{
		Name: p.Name, Version: r.Version, File: r.File, Digest: r.Digest, Size: r.Size, DirectURL: p.Source.DirectURL(),
	}
}

// Build returns the wheel of p, built on g or found under its key. The wheel is in the store.
func (b *Builder) Build(ctx context.Context, p Package, g Ground) (python.Item, error) {
	s, err := b.site(ctx, p, g)
	if err != nil {
		return python.Item{}, err
	}
	return s.wheel(ctx)
}

// site brings the source of p and looks at what it is built on.
func (b *Builder) site(ctx context.Context, p Package, g Ground) (*site, error) {
	src, err := b.bring(ctx, p)
	if err != nil {
		return nil, err
	}
	s := &site{builder: b, pkg: p, ground: g, source: src}
	return s, s.lookAround(ctx)
}

// wheel returns the site's wheel, built or found.
func (s *site) wheel(ctx context.Context) (python.Item, error) {
	r, found, err := s.once(s.key()).Do(ctx, s.builder.store(), s.build)
	if err != nil {
		return python.Item{}, err
	}
	if found {
		progress.Begin(ctx, "compile", s.pkg.Label(), 0).EndCached()
	}
	return r.item(s.pkg), nil
}

// once says how a wheel is built once.
func (s *site) once(key string) store.Once[record] {
	return store.Once[record]{
		Kind: store.KindBuiltWheel, Key: key, Shared: s.builder.Shared, Confirm: s.confirm,
		Does: "compiles " + s.pkg.Label(),
		Refs: func(r record) []store.Digest { return []store.Digest{r.Digest} },
	}
}

func (b *Builder) store() *store.Store { return b.Runner.Store }

// confirm makes sure that what somebody else says of a wheel is true.
func (s *site) confirm(_ context.Context, r record) error {
	_, version, err := s.checkName(r.File)
	if err != nil {
		return err
	}
	size, err := s.builder.store().BlobSize(r.Digest)
	if err != nil {
		return err
	}
	if size != r.Size || version != r.Version {
		return fmt.Errorf("%s is not what is said of it: version %s, %d bytes", r.File, r.Version, r.Size)
	}
	return nil
}

// site is one build: what there is and what is found out about it.
type site struct {
	builder *Builder
	pkg     Package
	ground  Ground
	source  sourceBlob
	asked   bool // what the backend wants is there

	tree      *image.Tree // of all layers, build requirements included
	layers    []layer.Descriptor
	toolkit   toolkit
	torchCUDA string // the CUDA that the image's torch was built with, "" for none
	libstdcxx string // the file name of the C++ library
	ccache    bool
}
