package debian

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// UnknownPackageError says that there is no package of a name, or not that version of it.
type UnknownPackageError struct {
	Name, Version string // Version is "" when any would do
}

func (e *UnknownPackageError) Error() string {
	if e.Version != "" {
		return fmt.Sprintf("there is no version %s of package %s", e.Version, e.Name)
	}
	return "there is no package " + e.Name
}

// closure is an installation that grows.
type closure struct {
	u      *Universe
	chosen map[string]*Package // by name
	order  []*Package
	// provided are names that packages chosen so far provide.
	provided map[string][]provider
	because  map[string]string // who asked for a package first
}

// Close returns the packages that an empty system takes for all that is asked for, each NAME, NAME=VERSION or with :ARCHITECTURE behind the
// name: those, and whatever
// they need, by name. Of alternatives the first is taken that can be had, unless another one is there already; a name that is only
// provided is taken from the package of the highest priority, the first by name among equals.
func (u *Universe) Close(asked []string) ([]*Package, error) {
	c := &closure{u: u, chosen: map[string]*Package{}, provided: map[string][]provider{}, because: map[string]string{}}
	for _, a := range asked {
		if err := c.ask(a); err != nil {
			return nil, err
		}
	}
	for i := 0; i < len(c.order); i++ { // which grows meanwhile
		if err := c.complete(c.order[i]); err != nil {
			return nil, err
		}
	}
	if err := c.conflicts(); err != nil {
		return nil, err
	}
	slices.SortFunc(c.order, func(a, b *Package) int { return strings.Compare(a.Name, b.Name) })
	return c.order, nil
}

func (c *closure) ask(asked string) error {
	name, version, versioned := strings.Cut(asked, "=")
	r := Relation{Name: name}
	r.Name, r.Architecture, _ = strings.Cut(name, ":")
	if name = r.Name; !c.native(r) {
		return fmt.Errorf("%s is for %s, and the base for %s", name, r.Architecture, c.u.architecture)
	}
	if versioned {
		// A version of another place of the same number must be that very one.
		for _, pkg := range c.u.byName[name] {
			if pkg.Version == version {
				return c.take(pkg, "")
			}
		}
		return &UnknownPackageError{Name: name, Version: version}
	}
	pkg := c.candidate(r)
	if pkg == nil {
		return &UnknownPackageError{Name: name}
	}
	return c.take(pkg, "")
}

// take chooses a package. Another version of it may have been chosen before: by name and version, as apt does with the last word.
func (c *closure) take(pkg *Package, because string) error {
	if other, ok := c.chosen[pkg.Name]; ok {
		if other.Version == pkg.Version {
			return nil
		}
		i := slices.Index(c.order, other)
		c.order[i] = pkg
	} else {
		c.order = append(c.order, pkg)
		c.because[pkg.Name] = because
	}
	c.chosen[pkg.Name] = pkg
	groups, err := ParseRelations(pkg.Provides)
	if err != nil {
		return fmt.Errorf("package %s: %w", pkg.Name, err)
	}
	for _, group := range groups {
		for _, r := range group {
			c.provided[r.Name] = append(c.provided[r.Name], provider{pkg, r.Version})
		}
	}
	return nil
}

// complete takes what a package needs.
func (c *closure) complete(pkg *Package) error {
	groups, err := ParseRelations(pkg.Depends)
	if err != nil {
		return fmt.Errorf("package %s: %w", pkg.Name, err)
	}
	for _, group := range groups {
		if slices.ContainsFunc(group, c.satisfied) {
			continue
		}
		next := c.choose(group)
		if next == nil {
			return fmt.Errorf("%s needs %s, which cannot be had%s", pkg.Name, group, c.chain(pkg.Name))
		}
		if err := c.take(next, pkg.Name); err != nil {
			return err
		}
	}
	return nil
}

// chain says why a package is wanted.
func (c *closure) chain(name string) string {
	var words []string
	for by := c.because[name]; by != "" && len(words) < 10; by = c.because[by] {
		words = append(words, by)
	}
	if len(words) == 0 {
		return ""
	}
	return " (it is wanted by " + strings.Join(words, ", which is wanted by ") + ")"
}

// native reports whether a relation can be fulfilled by packages of the one architecture there is.
func (c *closure) native(r Relation) bool {
	return r.Architecture == "" || r.Architecture == "any" || r.Architecture == "native" || r.Architecture == c.u.architecture || r.Architecture == "all"
}

func (c *closure) satisfied(r Relation) bool {
	if !c.native(r) {
		return false
	}
	if pkg, ok := c.chosen[r.Name]; ok && r.Accepts(pkg.Version) {
		return true
	}
	return slices.ContainsFunc(c.provided[r.Name], func(p provider) bool { return c.chosen[p.pkg.Name] == p.pkg && provides(p, r) })
}

// provides reports whether a provided name fulfills a relation to versions: without a version of its own it does to none
// (Debian Policy 7.5).
func provides(p provider, r Relation) bool {
	return r.Operator == "" || p.version != "" && r.Accepts(p.version)
}

// choose takes the first alternative that can be had, one that quarrels with what is there last of all.
func (c *closure) choose(group Alternatives) *Package {
	var second *Package
	for _, r := range group {
		pkg := c.candidate(r)
		if pkg == nil {
			continue
		}
		if _, other := c.chosen[pkg.Name]; !other && c.quarrel(pkg) == "" {
			return pkg
		}
		if second == nil && c.chosen[pkg.Name] == nil {
			second = pkg
		}
	}
	return second
}

// candidate is the package that a relation means: of its name in the highest version, or one that provides it.
func (c *closure) candidate(r Relation) *Package {
	if !c.native(r) {
		return nil
	}
	if same := c.u.byName[r.Name]; len(same) > 0 && r.Accepts(same[0].Version) {
		return same[0]
	}
	var best *Package
	for _, p := range c.u.providers[r.Name] {
		if !provides(p, r) || c.u.byName[p.pkg.Name][0] != p.pkg {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(rank(p.pkg), rank(best)), strings.Compare(p.pkg.Name, best.Name)) < 0 {
			best = p.pkg
		}
	}
	return best
}

// priorities in their order (Debian Policy 2.5).
var priorities = []string{"required", "important", "standard", "optional", "extra"}

func rank(pkg *Package) int {
	if pkg.Essential {
		return -1
	}
	if i := slices.Index(priorities, pkg.Priority); i >= 0 {
		return i
	}
	return len(priorities)
}

// conflicts refuses packages that cannot be installed together.
func (c *closure) conflicts() error {
	for _, pkg := range c.order {
		if other := c.quarrel(pkg); other != "" {
			return fmt.Errorf("%s and %s cannot be installed together%s", pkg.Name, other, c.chain(pkg.Name))
		}
	}
	return nil
}

// quarrel returns the name of a chosen package with which pkg cannot be: by its own word or that of the other.
func (c *closure) quarrel(pkg *Package) string {
	if name := c.against(pkg); name != "" {
		return name
	}
	if c.chosen[pkg.Name] == pkg {
		return "" // the others are asked in their turn
	}
	for _, other := range c.order {
		groups, err := ParseRelations(other.Conflicts)
		if err != nil {
			continue // of which conflicts speaks
		}
		for _, group := range groups {
			for _, r := range group {
				if r.Name == pkg.Name && r.Accepts(pkg.Version) && c.native(r) && other.Name != pkg.Name {
					return other.Name
				}
			}
		}
	}
	return ""
}

// against returns the name of a chosen package that pkg refuses. Nobody conflicts with himself.
func (c *closure) against(pkg *Package) string {
	groups, err := ParseRelations(pkg.Conflicts)
	if err != nil {
		return "its own control fields"
	}
	for _, group := range groups {
		for _, r := range group {
			if !c.native(r) {
				continue
			}
			if other, ok := c.chosen[r.Name]; ok && other.Name != pkg.Name && r.Accepts(other.Version) {
				return other.Name
			}
			for _, p := range c.provided[r.Name] {
				if p.pkg.Name != pkg.Name && c.chosen[p.pkg.Name] == p.pkg && provides(p, r) {
					return p.pkg.Name
				}
			}
		}
	}
	return ""
}
