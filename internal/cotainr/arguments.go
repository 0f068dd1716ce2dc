package cotainr

import (
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// option is one that the command line may have.
type option struct {
	names  []string // "--verbose", "-v": the first is what help calls it
	values arity
	own    bool   // not cotainr's: a prefix means it only where none of cotainr's options begins so
	choice string // of the options of one choice only one may be given; "" is a choice of its own
	take   func(values []string) error
}

// arity says how many values an option takes.
type arity int

const (
	none arity = iota
	one
	several // one or more
)

// title is how messages call the option.
func (o *option) title() string { return strings.Join(o.names, "/") }

// parser reads a command line as Python's argparse does: options may be shortened as far as they stay plain, stand before or after
// the other arguments, and have their value behind "=".
// See docs.python.org/3/library/argparse.html, "Option value syntax" and "Argument abbreviations".
type parser struct {
	options []*option

	words  []string // that belong to no option, in order
	extras []string // options that do not exist

	seen map[string]*option // by choice
	only bool               // after "--" there are no options
}

// parse reads args. It stops at the first word that belongs to no option when first is set, and returns what follows, that word
// included.
func (p *parser) parse(args []string, first bool) (rest []string, err error) {
	p.seen = make(map[string]*option)
	for len(args) > 0 {
		arg := args[0]
		m, err := p.match(arg)
		switch {
		case err != nil:
			return nil, err
		case arg == "--" && !p.only:
			p.only, args = true, args[1:]
		case m == nil && first:
			return args, nil
		case m == nil:
			p.words, args = append(p.words, arg), args[1:]
		case m.option == nil:
			p.extras, args = append(p.extras, arg), args[1:]
		default:
			if args, err = p.consume(m, args[1:]); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// match is what an argument says of an option.
type match struct {
	option   *option // nil: it looks like an option, and there is none
	value    string  // behind "=", or what stands behind a short option's letter
	attached bool    // there is such a value
	short    bool    // it is written as one letter
}

// negative is what argparse takes for a number, and so for no option.
var negative = lazyregexp.New(`^-\d+$|^-\d*\.\d+$`)

// match finds out whether arg is an option; nil is a word.
func (p *parser) match(arg string) (*match, error) {
	if p.only || len(arg) < 2 || arg[0] != '-' || arg == "--" {
		return nil, nil
	}
	if o := p.called(arg); o != nil {
		return &match{option: o}, nil
	}
	name, value, attached := strings.Cut(arg, "=")
	if o := p.called(name); o != nil && attached {
		return &match{o, value, true, !strings.HasPrefix(arg, "--")}, nil
	}
	if !strings.HasPrefix(arg, "--") {
		if o := p.called(arg[:2]); o != nil {
			return &match{o, arg[2:], true, true}, nil
		}
	} else if found, names := p.shortened(name); len(found) > 0 {
		if len(found) > 1 {
			return nil, fmt.Errorf("ambiguous option: %s could match %s", arg, strings.Join(names, ", "))
		}
		return &match{option: found[0], value: value, attached: attached}, nil
	}
	if negative.MatchString(arg) || strings.Contains(arg, " ") {
		return nil, nil
	}
	return &match{}, nil
}

func (p *parser) called(name string) *option {
	for _, o := range p.options {
		if slices.Contains(o.names, name) {
			return o
		}
	}
	return nil
}

// shortened returns the options that have a name with this prefix: those of cotainr, else our own.
func (p *parser) shortened(prefix string) (found []*option, names []string) {
	for _, own := range []bool{false, true} {
		for _, o := range p.options {
			if i := slices.IndexFunc(o.names, func(n string) bool { return strings.HasPrefix(n, prefix) }); i >= 0 && o.own == own {
				found, names = append(found, o), append(names, o.names[i])
			}
		}
		if len(found) > 0 {
			break
		}
	}
	return found, names
}

// consume takes an option with its values, and returns the arguments behind them.
func (p *parser) consume(m *match, args []string) ([]string, error) {
	o := m.option
	if o.values == none {
		return args, p.flags(m)
	}
	values := []string{m.value}
	if !m.attached {
		n := p.valuesOf(o, args)
		if n == 0 {
			return nil, fmt.Errorf("argument %s: expected %s", o.title(), map[arity]string{one: "one argument", several: "at least one argument"}[o.values])
		}
		values, args = args[:n], args[n:]
	}
	return args, p.take(o, values)
}

// valuesOf counts the arguments that are values of o.
func (p *parser) valuesOf(o *option, args []string) int {
	n := 0
	for ; n < len(args) && (n == 0 || o.values == several); n++ {
		if m, err := p.match(args[n]); m != nil || err != nil || args[n] == "--" {
			break
		}
	}
	return n
}

// flags takes an option without a value; behind a short one there may stand others, as in -vv.
func (p *parser) flags(m *match) error {
	if !m.attached {
		return p.take(m.option, nil)
	}
	next := p.behind(m)
	if next == nil {
		return fmt.Errorf("argument %s: ignored explicit argument %s", m.option.title(), repr(m.value))
	}
	if err := p.take(m.option, nil); err != nil {
		return err
	}
	return p.flags(next)
}

// behind returns the option whose letter stands behind that of m's, or nil.
func (p *parser) behind(m *match) *match {
	if !m.short || m.value == "" {
		return nil
	}
	o := p.called("-" + m.value[:1])
	if o == nil || o.values != none {
		return nil
	}
	return &match{option: o, value: m.value[1:], attached: len(m.value) > 1, short: true}
}

// take hands values to an option that no other excludes.
func (p *parser) take(o *option, values []string) error {
	if o.choice != "" {
		if other := p.seen[o.choice]; other != nil && other != o {
			return fmt.Errorf("argument %s: not allowed with argument %s", o.title(), other.title())
		}
		p.seen[o.choice] = o
	}
	return o.take(values)
}

// repr writes a word as Python's repr does.
func repr(s string) string {
	mark := "'"
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		mark = `"`
	}
	s = strings.ReplaceAll(s, `\`, `\\`)
	if mark == "'" {
		s = strings.ReplaceAll(s, "'", `\'`)
	}
	return mark + s + mark
}
