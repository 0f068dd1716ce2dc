package conda

import (
	"slices"
	"strings"
)

// SortPackages returns packages in the order in which they are linked: each after what it depends on, and packages for any Python
// after python; otherwise by name. A loop is cut where it is met, but for python, which goes before what needs it, as pip does.
func SortPackages(packages []Package) []Package {
	s := sorter{at: make(map[string]*Package, len(packages)), seen: make(map[string]bool, len(packages))}
	for i := range packages {
		s.at[packages[i].Name] = &packages[i]
	}
	for _, p := range slices.SortedFunc(slices.Values(packages), byName) {
		s.visit(p.Name)
	}
	return s.sorted
}

type sorter struct {
	at     map[string]*Package
	seen   map[string]bool
	sorted []Package
}

func (s *sorter) visit(name string) {
	p := s.at[name]
	if p == nil || s.seen[name] {
		return
	}
	s.seen[name] = true
	for _, d := range s.needs(p) {
		s.visit(d)
	}
	s.sorted = append(s.sorted, *p)
}

// needs lists the names of what goes before a package.
func (s *sorter) needs(p *Package) []string {
	var names []string
	for _, d := range p.Depends {
		name := DependencyName(d)
		if other := s.at[name]; p.Name == "python" && other != nil && other.Noarch == "python" {
			continue
		}
		names = append(names, name)
	}
	if p.Noarch == "python" {
		names = append(names, "python")
	}
	slices.Sort(names)
	return names
}

// Needed returns the names of what a package of an environment depends on, and what that depends on, but for packages with Python code.
func Needed(packages []Package, name string) map[string]bool {
	at := make(map[string]*Package, len(packages))
	for i := range packages {
		at[packages[i].Name] = &packages[i]
	}
	needed := map[string]bool{}
	var visit func(p *Package)
	visit = func(p *Package) {
		for _, d := range p.Depends {
			if next := at[DependencyName(d)]; next != nil && !needed[next.Name] && !usesPython(*next) {
				needed[next.Name] = true
				visit(next)
			}
		}
	}
	if p := at[name]; p != nil {
		visit(p)
	}
	return needed
}

// DependencyName returns the name in a requirement: "numpy" of "numpy >=1.26,<3" and of "conda-forge::numpy[version='>=1']" (CEP 29).
func DependencyName(spec string) string {
	if _, rest, ok := strings.Cut(spec, "::"); ok {
		spec = rest
	}
	spec = strings.TrimSpace(spec)
	if i := strings.IndexAny(spec, " \t[=<>!~(;,@"); i >= 0 {
		spec = spec[:i]
	}
	return strings.ToLower(spec)
}
