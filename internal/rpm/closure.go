package rpm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// UnknownPackageError says that nothing is what was asked for.
type UnknownPackageError struct{ Asked Relation }

func (e *UnknownPackageError) Error() string { return "there is no package " + e.Asked.String() }

// ErrFilesUnknown says that a file is required that no list of packages has. [Universe.AddFile] and [Universe.FilesKnown] help.
var ErrFilesUnknown = errors.New("a file is required that only the lists of files have")

// maxAttempts bounds how often another choice is tried.
const maxAttempts = 200

// Close returns the packages that a system takes which has what is asked for, in the order of their names: the asked ones, and what they
// require, nothing that they only recommend.
//
// It takes the newest package that will do. Where several will, one whose name is asked for goes first, then one that what is
// taken already suggests, then by name. A choice that comes to nothing is not made again: what is returned is always a system whose
// requirements are met and in which nothing conflicts, though there may be one that is not found.
func (u *Universe) Close(asked []Relation) ([]*Package, error) {
	banned := map[*Package]bool{}
	var first error
	for range maxAttempts {
		c := &closure{u: u, banned: banned, chosen: map[string]*Package{}, suggested: map[string]bool{}}
		err := c.close(asked)
		if err == nil {
			return slices.SortedFunc(maps.Values(c.chosen), func(a, b *Package) int { return cmp.Compare(a.Name, b.Name) }), nil
		}
		if first == nil {
			first = err
		}
		if errors.Is(err, ErrFilesUnknown) || c.choice == nil {
			return nil, first
		}
		banned[c.choice] = true
	}
	return nil, first
}

// closure is a system as it grows.
type closure struct {
	u         *Universe
	banned    map[*Package]bool
	chosen    map[string]*Package // by name
	order     []*Package          // as they were chosen
	suggested map[string]bool     // names
	choice    *Package            // the last that was taken of several
}

func (c *closure) close(asked []Relation) error {
	for _, r := range asked {
		if err := c.need(r, nil); err != nil {
			return err
		}
	}
	// A package that comes later may make an expression want something of one that came before.
	for before := -1; before != len(c.order); {
		before = len(c.order)
		for i := 0; i < len(c.order); i++ {
			for _, r := range c.order[i].Requires {
				if err := c.need(r, c.order[i]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// satisfied reports whether the system as it is has what a relation asks for.
func (c *closure) satisfied(r Relation) bool {
	if r.rich == nil {
		if strings.HasPrefix(r.Name, "rpmlib(") { // what rpm itself can do
			return true
		}
		return slices.ContainsFunc(c.u.provides[r.Name], func(p *Package) bool { return c.has(p) && p.matches(r) }) ||
			slices.ContainsFunc(c.u.files[r.Name], c.has)
	}
	x := r.rich
	switch x.op {
	case "and":
		return !slices.ContainsFunc(x.operands, func(o Relation) bool { return !c.satisfied(o) })
	case "or":
		return slices.ContainsFunc(x.operands, c.satisfied)
	case "if", "unless":
		if wanted := x.wanted(c); wanted != nil {
			return c.satisfied(*wanted)
		}
		return x.op == "if"
	}
	return slices.ContainsFunc(c.u.candidates(r), c.has)
}

// wanted is the side of a condition that counts, nil for none.
func (x *rich) wanted(c *closure) *Relation {
	if c.satisfied(x.operands[1]) == (x.op == "if") {
		return &x.operands[0]
	}
	return x.other
}

func (c *closure) has(p *Package) bool { return c.chosen[p.Name] == p }

// need makes the system have what a package requires, nil for what was asked for.
func (c *closure) need(r Relation, by *Package) error {
	if c.satisfied(r) {
		return nil
	}
	if r.rich != nil {
		switch x := r.rich; x.op {
		case "and":
			for _, o := range x.operands {
				if err := c.need(o, by); err != nil {
					return err
				}
			}
			return nil
		case "or":
			for _, o := range x.operands {
				if len(c.possible(o)) > 0 || o.rich != nil {
					return c.need(o, by)
				}
			}
		case "if":
			if wanted := x.wanted(c); wanted != nil {
				return c.need(*wanted, by)
			}
		}
	}
	return c.pick(r, by)
}

// possible are the candidates for a relation that can stand beside what is chosen.
func (c *closure) possible(r Relation) []*Package {
	return slices.DeleteFunc(c.u.candidates(r), func(p *Package) bool { return c.banned[p] || c.against(p) != nil })
}

// pick takes the best package for a relation.
func (c *closure) pick(r Relation, by *Package) error {
	all := c.possible(r)
	if len(all) == 0 {
		return c.explain(r, by)
	}
	best := slices.MinFunc(all, func(a, b *Package) int {
		return cmp.Or(
			order(a.Name == r.Name, b.Name == r.Name),
			order(c.suggested[a.Name], c.suggested[b.Name]),
			cmp.Compare(a.Name, b.Name),
			b.Version.Compare(a.Version),
			cmp.Compare(a.Repository, b.Repository),
			cmp.Compare(a.SHA256, b.SHA256),
		)
	})
	if len(all) > 1 {
		c.choice = best
	}
	c.chosen[best.Name] = best
	c.order = append(c.order, best)
	for _, name := range best.Suggests {
		c.suggested[name] = true
	}
	return nil
}

// order puts what is true first.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// against returns a chosen package beside which p cannot stand, nil for none.
func (c *closure) against(p *Package) *Package {
	if other := c.chosen[p.Name]; other != nil {
		return other
	}
	for _, other := range c.order {
		if p.refuses(other, c) || other.refuses(p, c) {
			return other
		}
	}
	return nil
}

// refuses reports whether a package says that another cannot be there. Obsolete are packages of a name, not what others provide.
func (p *Package) refuses(other *Package, c *closure) bool {
	for _, r := range p.Conflicts {
		if r.rich == nil && other.matches(r) || r.rich != nil && (r.rich.matchedBy(other) || r.rich.conflicts(other, c)) {
			return true
		}
	}
	self := Relation{Name: other.Name, sense: equal, version: other.Version}
	for _, r := range p.Obsoletes {
		if r.Name == other.Name && r.overlaps(self) {
			return true
		}
	}
	return false
}

// conflicts reports whether a conflict under a condition is one with a package: (A if B), (A unless B).
func (x *rich) conflicts(other *Package, c *closure) bool {
	if x.op != "if" && x.op != "unless" {
		return false
	}
	wanted := x.wanted(c)
	return wanted != nil && other.matches(*wanted)
}

func (c *closure) explain(r Relation, by *Package) error {
	all := c.u.candidates(r)
	for _, p := range all {
		if other := c.against(p); other != nil {
			return fmt.Errorf("%s%s cannot be there beside %s", p, wantedBy(by), other)
		}
	}
	if strings.HasPrefix(r.Name, "/") && !c.u.lists {
		return ErrFilesUnknown
	}
	if by == nil && len(all) == 0 {
		return &UnknownPackageError{Asked: r}
	}
	return fmt.Errorf("nothing provides %s%s", r, wantedBy(by))
}

func wantedBy(p *Package) string {
	if p == nil {
		return ""
	}
	return ", which " + p.String() + " requires,"
}
