package rpm

import (
	"errors"
	"fmt"
	"strings"
)

// sense says which versions a relation is about, by three bits.
type sense uint8

const (
	less sense = 1 << iota
	greater
	equal
)

// senses are their names in lists of packages and in rich relations.
var senses = map[string]sense{
	"LT": less, "GT": greater, "EQ": equal, "LE": less | equal, "GE": greater | equal,
	"<": less, ">": greater, "=": equal, "==": equal, "<=": less | equal, ">=": greater | equal, "=<": less | equal, "=>": greater | equal,
}

// Relation is what a package provides or requires: a name, a file, perhaps of some versions, or an expression of these.
type Relation struct {
	Name    string
	sense   sense // 0 for every version
	version Version
	rich    *rich
}

// rich is an expression (https://rpm-software-management.github.io/rpm/manual/boolean_dependencies.html).
type rich struct {
	op       string // and, or, if, unless, with, without
	operands []Relation
	other    *Relation // behind else
}

func (r Relation) String() string {
	switch {
	case r.rich != nil:
		parts := make([]string, len(r.rich.operands))
		for i, o := range r.rich.operands {
			parts[i] = o.String()
		}
		text := strings.Join(parts, " "+r.rich.op+" ")
		if r.rich.other != nil {
			text += " else " + r.rich.other.String()
		}
		return "(" + text + ")"
	case r.sense == 0:
		return r.Name
	}
	sign := ""
	for _, s := range []struct {
		sense sense
		sign  string
	}{{less, "<"}, {greater, ">"}, {equal, "="}} {
		if r.sense&s.sense != 0 {
			sign += s.sign
		}
	}
	return r.Name + " " + sign + " " + r.version.String()
}

// overlaps reports whether some version is in both relations, which have the same name.
func (r Relation) overlaps(o Relation) bool {
	if r.sense == 0 || o.sense == 0 {
		return true
	}
	switch c := r.version.Compare(o.version); {
	case c < 0:
		return r.sense&greater != 0 || o.sense&less != 0
	case c > 0:
		return r.sense&less != 0 || o.sense&greater != 0
	}
	return r.sense&o.sense != 0
}

// maxRich bounds how deep expressions lie in each other. Distributions have three.
const maxRich = 16

// ParseRelation reads a relation as specs have it: NAME, NAME >= VERSION, or an expression in parentheses.
func ParseRelation(s string) (Relation, error) {
	p := &relationParser{rest: s}
	r, err := p.relation(maxRich)
	if err == nil && strings.TrimSpace(p.rest) != "" {
		err = errors.New("there is more behind it")
	}
	if err != nil {
		return Relation{}, fmt.Errorf("the relation %.200q cannot be read: %w", s, err)
	}
	return r, nil
}

type relationParser struct{ rest string }

// word takes what is there up to a blank, or to a parenthesis that it did not open.
func (p *relationParser) word() string {
	p.rest = strings.TrimLeft(p.rest, " \t")
	depth, n := 0, 0
scan:
	for ; n < len(p.rest); n++ {
		switch p.rest[n] {
		case ' ', '\t', ',':
			break scan
		case '(':
			depth++
		case ')':
			if depth == 0 {
				break scan
			}
			depth--
		}
	}
	word := p.rest[:n]
	p.rest = p.rest[n:]
	return word
}

func (p *relationParser) relation(depth int) (Relation, error) {
	p.rest = strings.TrimLeft(p.rest, " \t")
	if strings.HasPrefix(p.rest, "(") {
		if depth == 0 {
			return Relation{}, errors.New("its parentheses are too deep")
		}
		p.rest = p.rest[1:]
		return p.expression(depth - 1)
	}
	r := Relation{Name: p.word()}
	switch {
	case r.Name == "":
		return r, errors.New("a name is missing")
	case strings.Count(r.Name, "(") != strings.Count(r.Name, ")"):
		return r, errors.New("a parenthesis is missing")
	}
	before := p.rest
	if s := senses[p.word()]; s != 0 {
		r.sense = s
		r.version = ParseVersion(p.word())
		switch {
		case r.version.Version == "":
			return r, errors.New("a version is missing")
		case strings.ContainsAny(r.version.Epoch, "()") || strings.ContainsAny(r.version.Version+r.version.Release, "():"):
			return r, fmt.Errorf("%q is no version", r.version)
		}
		return r, nil
	}
	p.rest = before
	return r, nil
}

// expression reads what follows an opening parenthesis.
func (p *relationParser) expression(depth int) (Relation, error) {
	x := &rich{}
	for {
		operand, err := p.relation(depth)
		if err != nil {
			return Relation{}, err
		}
		if x.other != nil {
			*x.other = operand
		} else {
			x.operands = append(x.operands, operand)
		}
		p.rest = strings.TrimLeft(p.rest, " \t")
		if rest, ok := strings.CutPrefix(p.rest, ")"); ok {
			p.rest = rest
			return x.finish()
		}
		if err := x.next(p.word()); err != nil {
			return Relation{}, err
		}
	}
}

// next takes the word between two operands. Only and, or and with can stand in a row, and no others beside them.
func (x *rich) next(op string) error {
	conditional := x.op == "if" || x.op == "unless"
	switch {
	case op == "else" && conditional && x.other == nil:
		x.other = &Relation{}
		return nil
	case x.op == "" && (op == "and" || op == "or" || op == "if" || op == "unless" || op == "with" || op == "without"):
		x.op = op
		return nil
	case op == x.op && (op == "and" || op == "or" || op == "with"):
		return nil
	}
	return fmt.Errorf("%.40q stands where it cannot", op)
}

func (x *rich) finish() (Relation, error) {
	if x.op == "" {
		return x.operands[0], nil
	}
	return Relation{rich: x}, nil
}
