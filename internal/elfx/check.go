package elfx

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// Problem is something that would stop the loader, or a program at its first use of a symbol.
type Problem struct {
	Kind     ProblemKind
	Object   *Object  // whose need is not met
	Library  string   // that is missing, or should have the version or the symbol; the interpreter's path
	Version  string   // that is missing, of a symbol or of all symbols
	Provider *Object  // the library that does not have the version
	Has      string   // the highest version of that kind that Provider has; "" when it has none
	Symbol   string   // as the file has it, see Demangle
	More     int      // how many more symbols of the object are undefined and were left out
	Level    int      // x86-64 level that the object needs
	Skipped  []string // files of that name for other machines
	Err      error    // what is wrong with the library
}

// ProblemKind is what a problem is about.
type ProblemKind int

// The problems, in the order in which a loader would meet them.
const (
	MissingInterpreter ProblemKind = iota + 1
	MissingLibrary
	UnusableLibrary // found, but damaged or no library
	ProcessorTooOld // of the cluster
	MissingVersion  // of a library's symbols
	UndefinedSymbol
)

func (p Problem) String() string {
	switch p.Kind {
	case MissingInterpreter:
		return fmt.Sprintf("%s needs the interpreter %s, which is not in the image", p.Object.Path, p.Library)
	case MissingLibrary:
		if len(p.Skipped) > 0 {
			return fmt.Sprintf("%s needs %s, which is there for other machines only: %s", p.Object.Path, p.Library, strings.Join(p.Skipped, ", "))
		}
		return fmt.Sprintf("%s needs %s, which is nowhere the loader looks", p.Object.Path, p.Library)
	case UnusableLibrary:
		if p.Object.Path == p.Library {
			return fmt.Sprintf("%s cannot be used: %v", p.Library, p.Err)
		}
		return fmt.Sprintf("%s needs %s, which cannot be used: %v", p.Object.Path, p.Library, p.Err)
	case ProcessorTooOld:
		return fmt.Sprintf("%s needs a processor of level x86-64-v%d", p.Object.Path, p.Level)
	case MissingVersion:
		has := "has no versions of that kind"
		if p.Has != "" {
			has = "has none above " + p.Has
			if CompareVersions(p.Has, p.Version) > 0 {
				has = "does not have it, only others up to " + p.Has
			}
		}
		return fmt.Sprintf("%s needs version %s of %s, but %s %s", p.Object.Path, p.Version, p.Library, p.Provider.Path, has)
	case UndefinedSymbol:
		return p.undefined()
	}
	return "no problem"
}

func (p Problem) undefined() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s needs the symbol %s", p.Object.Path, Demangle(p.Symbol))
	if p.Version != "" {
		fmt.Fprintf(&text, " of version %s", p.Version)
	}
	text.WriteString(", which nothing defines that is loaded with it")
	if p.More > 0 {
		fmt.Fprintf(&text, ", and %d more", p.More)
	}
	return text.String()
}

// Demangle returns a C++ or Rust symbol as people write it, and any other as it is.
func Demangle(symbol string) string {
	const limit = 4 << 10 // bytes that are worth it
	if len(symbol) > limit {
		return symbol
	}
	const output = 12 // power of two that the result may be long
	return demangle.Filter(symbol, demangle.MaxLength(output))
}

// CheckOptions say what is there besides the closure.
type CheckOptions struct {
	Global     []*Closure // whose symbols all files see: a plugin's program, libraries loaded with RTLD_GLOBAL
	Provided   []string   // what the symbols begin with that come from elsewhere, such as Py and _Py
	RootOnly   bool       // look only at what the first file needs of the others
	MaxSymbols int        // undefined symbols to report for each file, 0 for 20
}

const defaultMaxSymbols = 20

// Check returns what would go wrong. Symbols are not judged when a library is missing that may define them. A function
// that is undefined fails only when it is called first, unless the file was linked with -z now; the result does not tell
// these from data, for nobody ships a file with a function that is never to be called.
func (l *Loader) Check(c *Closure, o CheckOptions) ([]Problem, error) {
	k := &check{loader: l, closure: c, options: o, lacking: map[[2]string]bool{}}
	k.libraries()
	k.versions()
	err := k.symbols()
	return k.problems, err
}

type check struct {
	loader   *Loader
	closure  *Closure
	options  CheckOptions
	problems []Problem
	lacking  map[[2]string]bool // library and version that were reported
}

func (k *check) report(p Problem) { k.problems = append(k.problems, p) }

func (k *check) skips(o *Object) bool { return k.options.RootOnly && o != k.closure.Objects[0] }

func (k *check) libraries() {
	root := k.closure.Objects[0]
	if name := root.File.Interpreter; name != "" && k.closure.Interpreter == nil {
		k.report(Problem{Kind: MissingInterpreter, Object: root, Library: name})
	}
	for _, link := range k.closure.Missing() {
		kind := MissingLibrary
		if link.Err != nil {
			kind = UnusableLibrary
		}
		if !k.skips(link.By) {
			k.report(Problem{Kind: kind, Object: link.By, Library: link.Name, Skipped: link.Skipped, Err: link.Err})
		}
	}
	for _, o := range k.closure.Objects {
		if level := k.loader.ISALevel; level > 0 && o.File.ISALevel > level && !k.skips(o) {
			k.report(Problem{Kind: ProcessorTooOld, Object: o, Level: o.File.ISALevel})
		}
	}
}

// versions checks those that files need of each other. A library that defines none is taken as it is, with a warning, if
// it has the table of its symbols' versions at least; most have it for those of libc. musl's loader does not look at versions.
func (k *check) versions() {
	if k.closure.Libc == Musl {
		return
	}
	providers := k.providers()
	for _, o := range k.closure.Objects {
		for _, r := range o.File.Requires {
			provider := providers[r.Library]
			if provider == nil || k.skips(o) || len(provider.File.Provides) == 0 && provider.File.versym.size > 0 {
				continue
			}
			for _, v := range r.Versions {
				if !v.Weak && !slices.Contains(provider.File.Provides, v.Name) {
					k.lacking[[2]string{r.Library, v.Name}] = true
					k.report(Problem{
						Kind: MissingVersion, Object: o, Library: r.Library, Version: v.Name,
						Provider: provider, Has: highestOf(provider.File.Provides, v.Name),
					})
				}
			}
		}
	}
}

// providers are the objects by the names under which others need them.
func (k *check) providers() map[string]*Object {
	providers := map[string]*Object{}
	for _, link := range k.closure.Links {
		if link.To != nil {
			providers[link.Name] = link.To
		}
	}
	for _, o := range k.closure.Objects {
		if _, ok := providers[o.File.Soname]; !ok && o.File.Soname != "" {
			providers[o.File.Soname] = o
		}
	}
	return providers
}

// highestOf returns the highest of the versions that are of the same kind as one.
func highestOf(versions []string, one string) string {
	kind, _ := splitVersion(one)
	highest := ""
	for _, v := range versions {
		if k, numbers := splitVersion(v); k == kind && numbers != "" && (highest == "" || CompareVersions(v, highest) > 0) {
			highest = v
		}
	}
	return highest
}

// symbols looks for the definition of each strong symbol in all files of the closure, as the loader does.
func (k *check) symbols() error {
	scope, err := k.scope()
	if err != nil {
		return err
	}
	for _, o := range k.closure.Objects {
		if k.skips(o) {
			continue
		}
		x, err := k.loader.index(o)
		if isDamage(err) {
			continue // reported as unusable
		}
		if err != nil {
			return err
		}
		if slices.ContainsFunc(x.needs, func(n need) bool { return !scope.defines(n) }) {
			if err := k.undefined(o, scope); err != nil {
				return err
			}
		}
	}
	return nil
}

// scope is the indexes of the files whose symbols are seen.
type scope []*index

func (s scope) defines(n need) bool {
	return slices.ContainsFunc(s, func(x *index) bool { return x.defines(n) })
}

func (k *check) scope() (scope, error) {
	var s scope
	seen := map[string]bool{}
	for i, c := range append([]*Closure{k.closure}, k.options.Global...) {
		for _, o := range c.Objects {
			if seen[o.Real] {
				continue
			}
			seen[o.Real] = true
			x, err := k.loader.index(o)
			if isDamage(err) {
				if i == 0 {
					k.report(Problem{Kind: UnusableLibrary, Object: o, Library: o.Path, Err: err})
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			s = append(s, x)
		}
	}
	return s, nil
}

func isDamage(err error) bool { return errors.Is(err, ErrFormat) }

// undefined reports the symbols of an object that nothing defines, by their names.
func (k *check) undefined(o *Object, s scope) error {
	limit := k.options.MaxSymbols
	if limit == 0 {
		limit = defaultMaxSymbols
	}
	elsewhere := k.elsewhere(o)
	var found []Problem
	more := 0
	err := k.loader.reading(o, func(f *File) error {
		return f.visitSymbols(func(r record) bool { return !r.defined() && r.strong() }, func(name []byte, r record) error {
			version := f.versions[r.version&versionMask]
			if s.defines(k.loader.indexes.key().neededAs(name, version.name)) || elsewhere(string(name), version) {
				return nil
			}
			if len(found) == limit {
				more++
				return nil
			}
			found = append(found, Problem{Kind: UndefinedSymbol, Object: o, Symbol: string(name), Library: version.library, Version: version.name})
			return nil
		})
	})
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b Problem) int { return strings.Compare(a.Symbol, b.Symbol) })
	if more > 0 {
		found[len(found)-1].More = more
	}
	k.problems = append(k.problems, found...)
	return nil
}

// elsewhere returns whether a symbol of an object may be defined by what is not in the closure, or is of a version whose
// absence says enough.
func (k *check) elsewhere(o *Object) func(name string, v symbolVersion) bool {
	prefixes := slices.Clone(k.options.Provided)
	var absent []string // libraries
	anything := false
	for _, link := range k.closure.Links {
		if link.To != nil {
			continue
		}
		absent = append(absent, link.Name)
		i := slices.IndexFunc(k.loader.Host, func(h HostLibrary) bool { return h.Name == link.Name })
		switch {
		case !link.Host:
			anything = true
		case len(k.loader.Host[i].Symbols) > 0:
			prefixes = append(prefixes, k.loader.Host[i].Symbols...)
		case link.By == o:
			anything = true
		}
	}
	return func(name string, v symbolVersion) bool {
		if v.library != "" {
			return slices.Contains(absent, v.library) || k.lacking[[2]string{v.library, v.name}]
		}
		return anything || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	}
}
