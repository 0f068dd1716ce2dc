package facts

import (
	"context"
	"hash/maphash"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/searchpath"
)

// The roles of files in which a problem shows, the worst first.
const (
	RoleStart   = "start"   // what the container starts, and the Pythons that packages are for
	RoleImport  = "import"  // an extension module without which its package cannot be imported
	RoleModule  = "module"  // another extension module
	roleProgram = "program" // another program on PATH
	RoleLibrary = "library" // what may be loaded, or not
)

// Roles are all of them, the worst first.
var Roles = []string{RoleStart, RoleImport, RoleModule, roleProgram, RoleLibrary}

// linker looks for what the loader would stumble over.
type linker struct {
	facts        *Facts
	loader       *elfx.Loader
	arch         string
	objects      map[string]*Object     // by path
	sites        map[string]*moduleSite // by directory
	torchModules map[string]string      // PyTorch's extension module by site
	seed         maphash.Seed

	mu       sync.Mutex
	closures map[string]*elfx.Closure // of the Pythons and their like, by path
}

// findLinks loads the programs on PATH, the extension modules of Python and the libraries that may be plugins as the loader
// would, a driver's libraries taken as there, and returns what does not fit. The result is in the order of the paths.
func findLinks(ctx context.Context, f *Facts) ([]LinkProblem, error) {
	if f.Root == nil {
		return nil, nil
	}
	l := newLinker(f)
	roots := l.programs()
	modules, rest, err := l.modules(ctx)
	if err != nil {
		return nil, err
	}
	roots = append(l.interpreters(modules, roots), modules...)
	if err := each(ctx, roots, l.load); err != nil {
		return nil, err
	}
	plugins := l.plugins(rest, roots)
	if err := each(ctx, plugins, l.load); err != nil {
		return nil, err
	}
	roots = append(roots, plugins...)
	problems, err := l.judge(ctx, roots)
	if err != nil {
		return nil, err
	}
	unusable, err := l.unusable(ctx)
	if err != nil {
		return nil, err
	}
	problems = append(problems, unusable...)
	l.findImports(problems)
	return distinct(problems), nil
}

func newLinker(f *Facts) *linker {
	l := &linker{
		facts: f, arch: f.Arch(), objects: map[string]*Object{}, sites: map[string]*moduleSite{},
		torchModules: map[string]string{}, closures: map[string]*elfx.Closure{}, seed: maphash.MakeSeed(),
	}
	for i := range f.Objects {
		o := &f.Objects[i]
		l.objects[o.Path] = o
		if dir, ok := strings.CutSuffix(path.Dir(o.Path), "/torch"); ok && strings.HasPrefix(path.Base(o.Path), "_C.") && usesTorch(o) {
			l.torchModules[dir] = o.Path
		}
	}
	l.loader = &elfx.Loader{FS: f.Root, Host: driverLibraries, LibraryPath: l.env("LD_LIBRARY_PATH"), Preload: l.preload()}
	return l
}

func (l *linker) env(name string) string {
	value, _ := l.facts.Env(name)
	return value
}

// preload is LD_PRELOAD without the files that are not there: the loader only complains of those.
func (l *linker) preload() string {
	names := strings.FieldsFunc(l.env("LD_PRELOAD"), func(r rune) bool { return r == ':' || r == ' ' })
	names = slices.DeleteFunc(names, func(name string) bool {
		_, err := l.facts.Root.Resolve(name)
		return strings.Contains(name, "/") && err != nil
	})
	return strings.Join(names, ":")
}

func (l *linker) pathDirs() []string {
	list := l.env("PATH")
	if list == "" {
		list = searchpath.Default
	}
	dirs := strings.Split(list, ":")
	return slices.DeleteFunc(dirs, func(dir string) bool { return !path.IsAbs(dir) })
}

func rooted(name string) string { return "/" + name }
func bare(name string) string   { return strings.TrimPrefix(name, "/") }

// IsProgram is whether the file is one that is started. There may be none.
func (o *Object) IsProgram() bool { return o != nil && (o.Kind == "executable" || o.Kind == "pie") }

// object returns an ELF file by any of its names; nil when it is none.
func (l *linker) object(name string) *Object {
	if o := l.objects[name]; o != nil {
		return o
	}
	if !elfx.IsELF([]byte(l.beginning(rooted(name), headSize))) {
		return nil
	}
	c, err := l.loader.Closure(rooted(name))
	if err != nil {
		return nil
	}
	f := c.Objects[0].File
	kinds := map[elfx.Kind]string{elfx.Executable: "executable", elfx.PIE: "pie", elfx.Shared: "shared"}
	o := &Object{Path: name, Arch: f.Arch, Kind: kinds[f.Kind], Dynamic: f.Dynamic, Needed: f.Needed}
	l.objects[name] = o
	return o
}

// each calls f for all of list on all cores.
func each[T any](ctx context.Context, list []T, f func(T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, item := range list {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f(item)
		})
	}
	return group.Wait()
}
