package facts

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/lazyregexp"
)

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
var torchSymbol = lazyregexp.New(`^_Z(?:T[VIST])?N?[KVr]*(?:3c10|2at|5torch|6caffe2)[0-9A-Z]`)

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

var nvidiaLibrary = lazyregexp.New(`^lib(?:cu|nv|nccl|npp)`)

func isNVIDIALibrary(name string) bool { return nvidiaLibrary.MatchString(name) }

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
