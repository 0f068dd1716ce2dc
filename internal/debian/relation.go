package debian

import (
	"fmt"
	"strings"
)

// Relation is one package that would do: a name, perhaps an architecture, perhaps versions.
type Relation struct {
	Name         string
	Architecture string // "any", one of dpkg's names, or ""
	Operator     string // <<, <=, =, >=, >>, or "" for any version
	Version      string
}

// Alternatives are relations of which one is enough.
type Alternatives []Relation

// String writes it as a control file does.
func (r Relation) String() string {
	s := r.Name
	if r.Architecture != "" {
		s += ":" + r.Architecture
	}
	if r.Operator != "" {
		s += " (" + r.Operator + " " + r.Version + ")"
	}
	return s
}

// String writes them as a control file does.
func (a Alternatives) String() string {
	words := make([]string, len(a))
	for i, r := range a {
		words[i] = r.String()
	}
	return strings.Join(words, " | ")
}

// Accepts reports whether a version is among those of the relation.
func (r Relation) Accepts(version string) bool {
	if r.Operator == "" {
		return true
	}
	c := CompareVersions(version, r.Version)
	switch r.Operator {
	case "<<":
		return c < 0
	case "<=":
		return c <= 0
	case "=":
		return c == 0
	case ">=":
		return c >= 0
	default:
		return c > 0
	}
}

// ParseRelations reads a field such as Depends (deb-control(5)): groups between commas, alternatives between bars.
func ParseRelations(field string) ([]Alternatives, error) {
	var groups []Alternatives
	for group := range strings.SplitSeq(field, ",") {
		if strings.TrimSpace(group) == "" {
			continue
		}
		var a Alternatives
		for one := range strings.SplitSeq(group, "|") {
			r, err := parseRelation(one)
			if err != nil {
				return nil, err
			}
			a = append(a, r)
		}
		groups = append(groups, a)
	}
	return groups, nil
}

func parseRelation(text string) (Relation, error) {
	bad := func() (Relation, error) {
		return Relation{}, fmt.Errorf("%.80q is no relation to a package", strings.TrimSpace(text))
	}
	name, versions, versioned := strings.Cut(strings.TrimSpace(text), "(")
	var r Relation
	var qualified bool
	r.Name, r.Architecture, qualified = strings.Cut(strings.TrimSpace(name), ":")
	if !IsName(r.Name) || qualified && !all(r.Architecture, inName) {
		return bad()
	}
	if !versioned {
		return r, nil
	}
	versions, closed := strings.CutSuffix(versions, ")")
	r.Operator, r.Version = cut(strings.TrimSpace(versions), func(c byte) bool { return c == '<' || c == '=' || c == '>' })
	r.Version = strings.TrimSpace(r.Version)
	switch r.Operator {
	case "<", ">": // obsolete: they mean or equal
		r.Operator += "="
	case "<<", "<=", "=", ">=", ">>":
	default:
		return bad()
	}
	if !closed || CheckVersion(r.Version) != nil {
		return bad()
	}
	return r, nil
}

// IsName reports whether s can be the name of a package: it is a part of file names, too.
func IsName(s string) bool {
	return len(s) <= 200 && all(s, inName) && (digit(s[0]) || letter(s[0]))
}

// inName takes upper case as well, which the names of Debian's policy lack.
func inName(c byte) bool {
	return digit(c) || letter(c) || c == '+' || c == '-' || c == '.' || c == '_'
}
