package facts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/layer"
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

// linkRoot is a file that is started or imported by itself.
type linkRoot struct {
	object  *Object
	role    string
	site    *moduleSite // nil for a program
	closure *elfx.Closure
	before  []*elfx.Closure // what is in memory when it is loaded
	global  []*elfx.Closure // those of them whose symbols it sees
	loaded  map[string]bool // the files of before
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

// programs returns those on PATH.
func (l *linker) programs() []*linkRoot {
	var roots []*linkRoot
	seen := map[string]bool{}
	start := l.started()
	add := func(name string) {
		real, err := l.facts.Root.Resolve(name)
		if err != nil {
			return
		}
		o := l.object(bare(real))
		if !o.IsProgram() || o.Arch != l.arch || seen[o.Path] {
			return
		}
		seen[o.Path] = true
		role := roleProgram
		if slices.Contains(start, o.Path) {
			role = RoleStart
		}
		roots = append(roots, &linkRoot{object: o, role: role})
	}
	for _, name := range start {
		add(rooted(name))
	}
	for _, dir := range l.pathDirs() {
		names, err := l.facts.Root.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			add(path.Join(dir, name))
		}
	}
	return roots
}

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

// started returns the program of the entrypoint or, without one, of the command, and the one that runs it when it is a script.
func (l *linker) started() []string {
	command := append(slices.Clone(l.facts.Config.Entrypoint), l.facts.Config.Cmd...)
	var found []string
	for len(command) > 0 && len(found) < maxScripts {
		real := l.lookPath(command[0])
		if real == "" || slices.Contains(found, bare(real)) {
			break
		}
		found = append(found, bare(real))
		command = l.scriptOf(real)
	}
	return found
}

const maxScripts = 4 // that run each other

func (l *linker) lookPath(name string) string {
	names := []string{name}
	if !strings.Contains(name, "/") {
		names = nil
		for _, dir := range l.pathDirs() {
			names = append(names, path.Join(dir, name))
		}
	}
	for _, n := range names {
		if real, err := l.facts.Root.Resolve(path.Join("/", l.facts.Config.WorkingDir, n)); err == nil && !path.IsAbs(n) {
			return real
		}
		if real, err := l.facts.Root.Resolve(n); err == nil && path.IsAbs(n) {
			return real
		}
	}
	return ""
}

// scriptOf returns the command in the first line of a script, env(1) left out.
func (l *linker) scriptOf(real string) []string {
	line, ok := strings.CutPrefix(l.beginning(real, 256), "#!")
	if !ok {
		return nil
	}
	line, _, _ = strings.Cut(line, "\n")
	command := strings.Fields(line)
	for len(command) > 0 && (path.Base(command[0]) == "env" || strings.HasPrefix(command[0], "-")) {
		command = command[1:]
	}
	return command
}

// beginning returns the first bytes of a file, what there is of them.
func (l *linker) beginning(real string, size int64) string {
	h, err := l.facts.Root.Open(real)
	if err != nil {
		return ""
	}
	defer h.Close()
	text, err := io.ReadAll(io.NewSectionReader(h, 0, min(size, h.Size())))
	if err != nil {
		return ""
	}
	return string(text)
}

// modules returns Python's extension modules, and all other libraries.
func (l *linker) modules(ctx context.Context) (modules []*linkRoot, rest []*Object, err error) {
	type candidate struct {
		object *Object
		site   *moduleSite
		is     bool
	}
	var candidates []*candidate
	for i := range l.facts.Objects {
		o := &l.facts.Objects[i]
		if o.Arch != l.arch || o.Kind != "shared" {
			continue
		}
		candidates = append(candidates, &candidate{object: o, site: l.siteFor(o)})
	}
	l.joinSites()
	err = each(ctx, candidates, func(c *candidate) error {
		name := path.Base(c.object.Path)
		c.is = c.site != nil && (l.isModule(c.object, c.site) ||
			usesTorch(c.object) && plainModule.MatchString(name) && !within(c.object.Path, c.site.dir+"/torch")) // for torch.ops.load_library
		return nil
	})
	for _, c := range candidates {
		if c.is {
			modules = append(modules, &linkRoot{object: c.object, role: RoleModule, site: c.site})
		} else {
			rest = append(rest, c.object)
		}
	}
	return modules, rest, err
}

func within(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }

// siteFor returns the directory of modules that a file is in, which learns of it; nil when it is in none.
func (l *linker) siteFor(o *Object) *moduleSite {
	dir := siteOf(o.Path, l.facts.Pythons)
	if dir == "" {
		return nil
	}
	s := l.sites[dir]
	if s == nil {
		s = l.findSite(dir)
		l.sites[dir] = s
	}
	s.learn(o)
	return s
}

// joinSites makes the directories of one interpreter known to each other.
func (l *linker) joinSites() {
	var all []*moduleSite
	for _, s := range l.sites {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *moduleSite) int { return strings.Compare(a.dir, b.dir) })
	for _, s := range all {
		for _, other := range all {
			if other != s && other.interpreter == s.interpreter && other.version == s.version {
				s.kin = append(s.kin, other)
			}
		}
	}
}

// interpreters adds the Pythons of the modules to the programs.
func (l *linker) interpreters(modules, programs []*linkRoot) []*linkRoot {
	by := map[string]*linkRoot{}
	for _, r := range programs {
		by[r.object.Path] = r
	}
	for _, m := range modules {
		o := l.object(m.site.interpreter)
		if o == nil || o.Arch != l.arch {
			continue
		}
		if r := by[o.Path]; r != nil {
			r.role = RoleStart
			continue
		}
		by[o.Path] = &linkRoot{object: o, role: RoleStart}
		programs = append(programs, by[o.Path])
	}
	return programs
}

// aside are directories of libraries that no program of the image loads.
var aside = regexp.MustCompile(`(?:^|/)(?:stubs|sysroot|debug|\.debug|glibc-hwcaps|compat|testsuite|tests?)/`)

// IsAside is whether a library is in a directory from which no program of the image loads any.
func IsAside(name string) bool { return aside.MatchString(name) }

// plugins returns the libraries that nothing has loaded so far, those of the distribution left out: its package manager
// has seen to them.
func (l *linker) plugins(rest []*Object, roots []*linkRoot) []*linkRoot {
	used := map[string]bool{}
	for _, r := range roots {
		for _, c := range append(slices.Clone(r.before), r.closure) {
			if c == nil {
				continue
			}
			for _, o := range c.Objects {
				used[bare(o.Real)] = true
			}
		}
	}
	var plugins []*linkRoot
	for _, o := range rest {
		s := l.sites[siteOf(o.Path, l.facts.Pythons)]
		own := s != nil || within(o.Path, "usr/local") || within(o.Path, "opt")
		if own && !used[o.Path] && !IsAside(o.Path) && o.Dynamic && len(o.Needed) > 0 {
			plugins = append(plugins, &linkRoot{object: o, role: RoleLibrary, site: s})
		}
	}
	return plugins
}

// closure loads a file that others stand on, once for what is in memory before. It is nil for a file that is not there or
// cannot be loaded.
func (l *linker) closure(name string, before ...*elfx.Closure) (*elfx.Closure, error) {
	key := name
	for _, c := range before {
		key += fmt.Sprintf(" %p", c)
	}
	l.mu.Lock()
	c, ok := l.closures[key]
	l.mu.Unlock()
	if ok {
		return c, nil
	}
	if _, err := l.facts.Root.Resolve(rooted(name)); err == nil {
		c, err = l.loader.Closure(rooted(name), before...)
		if err != nil && !isUnusable(err) {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if first, ok := l.closures[key]; ok {
		return first, nil
	}
	l.closures[key] = c
	return c, nil
}

func isUnusable(err error) bool {
	return errors.Is(err, elfx.ErrFormat) || errors.Is(err, elfx.ErrNotELF)
}

// maxPreloads is how many times a package may have to load libraries for those that it loaded.
const maxPreloads = 4

// load loads a root as its program would: libraries that the loader does not find but packages of the same Python have are
// loaded by these before.
func (l *linker) load(r *linkRoot) error {
	if err := l.prepare(r); err != nil {
		return err
	}
	for range maxPreloads {
		c, err := l.loader.Closure(rooted(r.object.Path), r.before...)
		if isUnusable(err) {
			return nil
		}
		if err != nil {
			return err
		}
		r.closure = c
		more, err := l.preloads(r)
		if err != nil {
			return err
		}
		if len(more) == 0 {
			break
		}
		r.before = append(r.before, more...)
	}
	r.loaded = map[string]bool{}
	for _, c := range r.before {
		for _, o := range c.Objects {
			r.loaded[o.Real] = true
		}
	}
	return nil
}

// prepare finds out what is in memory before.
func (l *linker) prepare(r *linkRoot) error {
	if r.site == nil {
		return nil
	}
	python, err := l.interpreter(r.site)
	if err != nil {
		return err
	}
	r.before, r.global = python, python
	if !usesTorch(r.object) {
		return nil
	}
	if err := l.torchOf(r.site); err != nil {
		return err
	}
	if r.site.globals != nil {
		r.before = append(slices.Clone(r.before), r.site.globals)
		r.global = append(slices.Clone(r.global), r.site.globals)
	}
	if r.site.torch != nil && !within(r.object.Path, path.Dir(r.site.torchDir)) {
		r.before = append(slices.Clone(r.before), r.site.torch)
	}
	return nil
}

func (l *linker) preloads(r *linkRoot) ([]*elfx.Closure, error) {
	var more []*elfx.Closure
	if r.site == nil {
		return nil, nil
	}
	for _, link := range r.closure.Missing() {
		provider := r.site.provider(link.Name)
		if provider == "" || provider == r.object.Path || link.Err != nil {
			continue
		}
		c, err := l.closure(provider, r.before...)
		if err != nil {
			return nil, err
		}
		if c != nil {
			more = append(more, c)
		}
	}
	return more, nil
}

// unit is a file whose needs are judged once for all roots in which it meets the same libraries.
type unit struct {
	object   *elfx.Object
	roots    []*linkRoot
	problems []elfx.Problem
}

// judge checks each file of each closure.
func (l *linker) judge(ctx context.Context, roots []*linkRoot) ([]LinkProblem, error) {
	slices.SortStableFunc(roots, func(a, b *linkRoot) int {
		return cmp.Or(slices.Index(Roles, a.role)-slices.Index(Roles, b.role), strings.Compare(a.object.Path, b.object.Path))
	})
	var problems []LinkProblem
	for _, r := range roots {
		if r.closure != nil {
			problems = append(problems, missing(r)...)
		}
	}
	units := unitsOf(roots)
	if err := each(ctx, units, l.check); err != nil {
		return nil, err
	}
	works := map[string]bool{} // files whose symbols are all there in some closure
	for _, u := range units {
		if !slices.ContainsFunc(u.problems, isSymbol) {
			works[u.object.Real] = true
		}
	}
	for _, u := range units {
		for _, p := range u.problems {
			if !isSymbol(p) || !works[u.object.Real] {
				problems = append(problems, linkProblem(u.roots[0], p))
			}
		}
	}
	for _, r := range roots {
		lacking, err := l.lacksTorch(r)
		if err != nil {
			return nil, err
		}
		problems = append(problems, lacking...)
	}
	return problems, ctx.Err()
}

func isSymbol(p elfx.Problem) bool { return p.Kind == elfx.UndefinedSymbol }

// missing returns the libraries that a root's files do not find. What was in memory before is another root's, and a
// library that is only to be preloaded may stay away.
func missing(r *linkRoot) []LinkProblem {
	var problems []LinkProblem
	if r.closure.Objects[0].File.Interpreter != "" && r.closure.Interpreter == nil {
		return nil // nobody looks for them
	}
	for _, link := range r.closure.Missing() {
		if r.loaded[link.By.Real] || !slices.Contains(link.By.File.Needed, link.Name) {
			continue
		}
		p := elfx.Problem{Kind: elfx.MissingLibrary, Object: link.By, Library: link.Name, Skipped: link.Skipped, Err: link.Err}
		if link.Err != nil {
			p.Kind = elfx.UnusableLibrary
		}
		problems = append(problems, linkProblem(r, p))
	}
	return problems
}

func unitsOf(roots []*linkRoot) []*unit {
	var units []*unit
	by := map[string]*unit{}
	for _, r := range roots {
		if r.closure == nil {
			continue
		}
		met := map[*elfx.Object]string{}
		for _, link := range r.closure.Links {
			if link.To != nil {
				met[link.By] += "\x00" + link.To.Real
			}
		}
		for i, o := range r.closure.Objects {
			if i > 0 && (r.loaded[o.Real] || o == r.closure.Interpreter) {
				continue
			}
			key := o.Real + met[o]
			if by[key] == nil {
				by[key] = &unit{object: o}
				units = append(units, by[key])
			}
			if u := by[key]; len(u.roots) < maxTried {
				u.roots = append(u.roots, r)
			}
		}
	}
	return units
}

// maxTried is in how many closures a library's symbols are looked for before they are called undefined.
const maxTried = 4

func (l *linker) check(u *unit) error {
	for i, r := range u.roots {
		problems, err := l.checkIn(u, r)
		if err != nil {
			return err
		}
		if i == 0 {
			u.problems = problems
		}
		if !slices.ContainsFunc(problems, isSymbol) {
			u.problems = slices.DeleteFunc(u.problems, isSymbol)
			break
		}
	}
	return nil
}

const shownSymbols = 3 // undefined ones of a file

func (l *linker) checkIn(u *unit, r *linkRoot) ([]elfx.Problem, error) {
	c, global := r.closure, r.global
	if u.object != c.Objects[0] {
		var err error
		if c, err = l.loader.Closure(u.object.Real, append(slices.Clone(r.before), r.closure)...); err != nil {
			return nil, err
		}
		global = append(slices.Clone(global), r.closure)
	}
	o := elfx.CheckOptions{Global: global, RootOnly: true, MaxSymbols: shownSymbols}
	if r.site != nil {
		o.Provided = []string{"Py", "_Py"}
	}
	problems, err := l.loader.Check(c, o)
	incomplete := slices.ContainsFunc(r.before, func(b *elfx.Closure) bool { return len(b.Missing()) > 0 })
	return slices.DeleteFunc(problems, func(p elfx.Problem) bool {
		switch p.Kind {
		case elfx.MissingLibrary: // known, with who needs it
			return true
		case elfx.UnusableLibrary:
			return p.Object.Path != p.Library
		case elfx.UndefinedSymbol:
			return r.role == RoleLibrary || incomplete
		}
		return false
	}), err
}

var problemKinds = map[elfx.ProblemKind]string{
	elfx.MissingInterpreter: "interpreter", elfx.MissingLibrary: "library", elfx.UnusableLibrary: "unusable",
	elfx.ProcessorTooOld: "processor", elfx.MissingVersion: "version", elfx.UndefinedSymbol: "symbol",
}

func linkProblem(r *linkRoot, p elfx.Problem) LinkProblem {
	found := LinkProblem{
		Path: r.object.Path, Role: r.role, In: bare(p.Object.Real), Kind: problemKinds[p.Kind], Library: p.Library, Version: p.Version,
		Has: p.Has, More: p.More, Level: p.Level, Text: p.String(),
	}
	if p.Symbol != "" {
		found.Symbol = elfx.Demangle(p.Symbol)
	}
	if p.Provider != nil {
		found.Provider = bare(p.Provider.Real)
	}
	if isSymbol(p) && isTorchSymbol(p.Symbol) && r.site != nil && r.site.torch != nil {
		found.Provider = r.site.torchDir
	}
	return found
}

// torchSymbol is a mangled name in a namespace of PyTorch's: a function, or what there is of a class or variable.
var torchSymbol = regexp.MustCompile(`^_Z(?:T[VIST])?N?[KVr]*(?:3c10|2at|5torch|6caffe2)[0-9A-Z]`)

func isTorchSymbol(name string) bool { return torchSymbol.MatchString(name) }

// lacksTorch looks for PyTorch's symbols in a file whose symbols were not judged, as one of NVIDIA's libraries is missing
// that could have them for all the loader knows: but it would not have these.
func (l *linker) lacksTorch(r *linkRoot) ([]LinkProblem, error) {
	if r.closure == nil || r.role == RoleLibrary || !usesTorch(r.object) || r.site == nil || r.site.torch == nil {
		return nil, nil
	}
	absent := r.closure.Missing()
	if len(absent) == 0 || slices.ContainsFunc(absent, func(link elfx.Link) bool { return !isNVIDIALibrary(link.Name) }) {
		return nil, nil
	}
	wanted := map[uint64]string{}
	o := r.closure.Objects[0]
	for s, err := range o.File.Undefined() {
		if err != nil {
			return nil, err
		}
		if !s.Weak && isTorchSymbol(s.Name) {
			wanted[maphash.String(l.seed, s.Name)] = s.Name
		}
	}
	for _, provider := range r.closure.Objects {
		for s, err := range provider.File.Exported() {
			if err != nil {
				return nil, err
			}
			delete(wanted, maphash.String(l.seed, s.Name))
		}
	}
	var names []string
	for _, name := range wanted {
		names = append(names, name)
	}
	slices.Sort(names)
	var problems []LinkProblem
	for i, name := range names[:min(len(names), shownSymbols)] {
		p := elfx.Problem{Kind: elfx.UndefinedSymbol, Object: o, Symbol: name}
		if i == shownSymbols-1 {
			p.More = len(names) - shownSymbols
		}
		problems = append(problems, linkProblem(r, p))
	}
	return problems, nil
}

var nvidiaLibrary = regexp.MustCompile(`^lib(?:cu|nv|nccl|npp)`)

func isNVIDIALibrary(name string) bool { return nvidiaLibrary.MatchString(name) }

var libraryName = regexp.MustCompile(`\.so(?:\.\d+)*$`)

// unusable looks at the files that are called libraries but are no ELF files.
func (l *linker) unusable(ctx context.Context) ([]LinkProblem, error) {
	var problems []LinkProblem
	for _, i := range l.facts.Paths {
		if i.Type != layer.Regular || l.objects[i.Path] != nil || !libraryName.MatchString(path.Base(i.Path)) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		why := l.noLibrary(i)
		if why == "" {
			continue
		}
		problems = append(problems, LinkProblem{
			Path: i.Path, Role: l.roleByName(i.Path), In: i.Path, Kind: "unusable", Library: i.Path,
			Text: fmt.Sprintf("%s cannot be used: %s", rooted(i.Path), why),
		})
	}
	return problems, nil
}

// roleByName is the role of a file that is no ELF file.
func (l *linker) roleByName(name string) string {
	base := path.Base(name)
	if siteOf(name, l.facts.Pythons) != "" && !strings.HasPrefix(base, "lib") && (taggedModule.MatchString(base) || plainModule.MatchString(base)) {
		return RoleModule
	}
	return RoleLibrary
}

// noLibrary says why a file that is called one cannot be a library; "" when it may be something else.
func (l *linker) noLibrary(i Info) string {
	head := l.beginning(rooted(i.Path), 64)
	switch {
	case i.Size == 0:
		return "it is empty"
	case strings.HasPrefix(head, "version https://git-lfs"):
		return "it is a pointer of Git LFS, not the file itself"
	case !elfx.IsELF([]byte(head)):
		return "" // a linker's script, most likely
	}
	h, err := l.facts.Root.Open(rooted(i.Path))
	if err != nil {
		return ""
	}
	defer h.Close()
	if _, err = elfx.Open(h, h.Size()); err != nil && isUnusable(err) {
		return err.Error()
	}
	return ""
}

// distinct sorts the problems and leaves one of those that are the same but for the root, whose role is the worst.
func distinct(problems []LinkProblem) []LinkProblem {
	same := func(a, b LinkProblem) int {
		return cmp.Or(strings.Compare(a.In, b.In), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Library, b.Library),
			strings.Compare(a.Version, b.Version), strings.Compare(a.Symbol, b.Symbol))
	}
	slices.SortStableFunc(problems, func(a, b LinkProblem) int {
		return cmp.Or(same(a, b), slices.Index(Roles, a.Role)-slices.Index(Roles, b.Role), strings.Compare(a.Path, b.Path))
	})
	return slices.CompactFunc(problems, func(a, b LinkProblem) bool { return same(a, b) == 0 })
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
