package edf

import (
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Reference is where a text speaks of a variable.
type Reference struct {
	Name       string
	Braces     bool // ${NAME}, else $NAME, which the Container Engine takes literally
	HasDefault bool // ${NAME:-...}
	Default    string
	Start, End int // in the text, in bytes
}

var reference = lazyregexp.New(`\$\$\{[^}]*\}|\$\{([A-Za-z_][A-Za-z0-9_]*)(:?-([^}]*))?\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

// References finds the variables that a text speaks of. $${NAME} stands for ${NAME} literally, and is none.
func References(text string) []Reference {
	var all []Reference
	for _, m := range reference.Regexp().FindAllStringSubmatchIndex(text, -1) {
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[m[2*i]:m[2*i+1]]
		}
		r := Reference{Name: part(1), Braces: m[2] >= 0, HasDefault: m[4] >= 0, Default: part(3), Start: m[0], End: m[1]}
		if !r.Braces {
			r.Name = part(4)
		}
		escaped := r.Start > 0 && text[r.Start-1] == '$' && !r.Braces
		if r.Name != "" && !escaped {
			all = append(all, r)
		}
	}
	return all
}

// Lookup returns a variable of the environment.
type Lookup func(name string) (value string, set bool)

// Expand puts values in place of the variables in braces, as the Container Engine does. It returns the names of those that are not
// set and have no default; the text is then of no use.
func Expand(text string, lookup Lookup) (expanded string, undefined []string) {
	var b strings.Builder
	at := 0
	for _, r := range References(text) {
		if !r.Braces {
			continue
		}
		b.WriteString(text[at:r.Start])
		at = r.End
		value, set := lookup(r.Name)
		switch {
		case set && (value != "" || !r.HasDefault):
			b.WriteString(value)
		case r.HasDefault:
			b.WriteString(r.Default)
		default:
			undefined = append(undefined, r.Name)
		}
	}
	b.WriteString(text[at:])
	return strings.ReplaceAll(b.String(), "$${", "${"), undefined
}

// Mount is a mount as it is written: SOURCE:TARGET:FLAGS, of which the last is mostly missing.
type Mount struct {
	Text   string
	Fields []string
}

// ParseMount cuts a mount at its colons, but for those in ${...}.
func ParseMount(text string) Mount {
	m := Mount{Text: text}
	depth, start := 0, 0
	for i := range len(text) {
		switch {
		case text[i] == '{' && i > 0 && text[i-1] == '$':
			depth++
		case text[i] == '}' && depth > 0:
			depth--
		case text[i] == ':' && depth == 0:
			m.Fields = append(m.Fields, text[start:i])
			start = i + 1
		}
	}
	m.Fields = append(m.Fields, text[start:])
	return m
}

// Source is what is mounted.
func (m Mount) Source() string { return m.Fields[0] }

// Target is where: the source's own path for a mount of one field.
func (m Mount) Target() string {
	if len(m.Fields) < 2 {
		return m.Fields[0]
	}
	return m.Fields[1]
}

// Flags are the third field, cut at plus signs and commas.
func (m Mount) Flags() []string {
	if len(m.Fields) < 3 {
		return nil
	}
	return strings.FieldsFunc(m.Fields[2], func(r rune) bool { return r == '+' || r == ',' })
}
