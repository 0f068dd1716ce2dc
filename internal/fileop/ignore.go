package fileop

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// patterns select paths, by the rules of .dockerignore (Docker's build reference, "dockerignore files"): a path is selected when
// it, or a directory above it, matches; of several patterns that match the last decides, and one with a leading "!" takes
// back what was selected.
type patterns struct {
	list    []pattern
	excepts bool // there is a pattern with "!"
}

type pattern struct {
	except  bool
	literal string // what every path that matches starts with
	match   func(p string) bool
}

// parseIgnore reads an ignore file.
func parseIgnore(data []byte) (*patterns, error) {
	var lines []string
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
		if strings.HasPrefix(line, "#") {
			lines = append(lines, "") // errors name the line
			continue
		}
		lines = append(lines, line)
	}
	return newPatterns(lines)
}

// newPatterns compiles patterns, of which empty ones are passed over. Errors give their number.
func newPatterns(list []string) (*patterns, error) {
	var ps patterns
	for i, text := range list {
		p, err := newPattern(text)
		if err != nil {
			return nil, fmt.Errorf("%d: pattern %q: %w", i+1, strings.TrimSpace(text), err)
		}
		if p.match != nil {
			ps.list = append(ps.list, p)
			ps.excepts = ps.excepts || p.except
		}
	}
	return &ps, nil
}

var errOnlyNot = errors.New(`there must be something after "!"`)

func newPattern(text string) (p pattern, err error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return p, nil
	}
	if rest, ok := strings.CutPrefix(text, "!"); ok {
		p.except = true
		if text = strings.TrimSpace(rest); text == "" {
			return p, errOnlyNot
		}
	}
	text = path.Clean(text)
	if len(text) > 1 {
		text = strings.TrimPrefix(text, "/")
	}
	if _, err := path.Match(text, "."); err != nil {
		return p, errors.New("its brackets or backslashes do not pair")
	}
	p.literal = text
	if i := strings.IndexAny(text, `*?[\`); i >= 0 {
		p.literal = text[:i]
	}
	p.match, err = compile(text)
	return p, err
}

// compile returns what a pattern matches. "*" and "?" do not match a slash. "**" at the end matches anything, and elsewhere any
// number of directories. One that only starts with "**", as in "**.log", matches by what the path ends with.
func compile(text string) (func(string) bool, error) {
	if rest, ok := strings.CutPrefix(text, "**"); ok && rest != "" && !strings.ContainsAny(rest, `*?[]\`) {
		return func(p string) bool { return strings.HasSuffix(p, rest) || strings.TrimPrefix(rest, "/") == p }, nil
	}
	if !strings.ContainsAny(text, `*?[]\`) {
		return func(p string) bool { return p == text }, nil
	}
	re, err := regexp.Compile(expression(text))
	if err != nil {
		return nil, errors.New("it is no pattern")
	}
	return re.MatchString, nil
}

// expression translates a pattern.
func expression(text string) string {
	var b strings.Builder
	b.WriteString(`(?s)^`)
	for text != "" {
		switch {
		case strings.HasPrefix(text, "**"):
			text = strings.TrimPrefix(text[2:], "/")
			if text == "" {
				b.WriteString(`.*`)
			} else {
				b.WriteString(`(.*/)?`)
			}
			continue
		case text[0] == '*':
			b.WriteString(`[^/]*`)
		case text[0] == '?':
			b.WriteString(`[^/]`)
		case text[0] == '[':
			if class, rest := bracket(text); class != "" {
				b.WriteString(class)
				text = rest
				continue
			}
			b.WriteString(`\[`)
		case text[0] == '\\' && len(text) > 1:
			text = text[1:]
			r, n := firstRune(text)
			b.WriteString(regexp.QuoteMeta(r))
			text = text[n:]
			continue
		default:
			r, n := firstRune(text)
			b.WriteString(regexp.QuoteMeta(r))
			text = text[n:]
			continue
		}
		text = text[1:]
	}
	b.WriteString(`$`)
	return b.String()
}

func firstRune(s string) (string, int) {
	for i := range s {
		if i > 0 {
			return s[:i], i
		}
	}
	return s, len(s)
}

// bracket translates a class of characters, as path.Match has it: "[^a-z\]]".
func bracket(text string) (class, rest string) {
	var b strings.Builder
	b.WriteByte('[')
	s := text[1:]
	if strings.HasPrefix(s, "^") {
		b.WriteByte('^')
		s = s[1:]
	}
	for first := true; s != ""; first = false {
		switch {
		case s[0] == ']' && !first:
			b.WriteByte(']')
			return b.String(), s[1:]
		case s[0] == '\\' && len(s) > 1:
			s = s[1:]
			r, n := firstRune(s)
			b.WriteString(quoteInClass(r))
			s = s[n:]
		case s[0] == '-':
			b.WriteByte('-')
			s = s[1:]
		default:
			r, n := firstRune(s)
			b.WriteString(quoteInClass(r))
			s = s[n:]
		}
	}
	return "", text
}

func quoteInClass(r string) string {
	if strings.ContainsAny(r, `\^[]-&~`) {
		return `\` + r
	}
	return r
}

// verdicts says which patterns match a path or a directory above it: one for each of the list.
type verdicts []bool

// judge decides about p, whose directory has the verdicts above.
func (ps *patterns) judge(p string, above verdicts) (selected bool, own verdicts) {
	own = make(verdicts, len(ps.list))
	for i := range ps.list {
		pt := &ps.list[i]
		own[i] = above != nil && above[i] || pt.match(p)
		if own[i] {
			selected = !pt.except
		}
	}
	return selected, own
}

// mayExcept reports whether something below dir, which is selected, may be taken back.
func (ps *patterns) mayExcept(dir string) bool {
	for i := range ps.list {
		if p := &ps.list[i]; p.except && (strings.HasPrefix(p.literal, dir+"/") || strings.HasPrefix(dir+"/", p.literal)) {
			return true
		}
	}
	return false
}

// above returns the verdicts about the directory that holds p.
func (ps *patterns) above(p string) verdicts {
	var own verdicts
	for i := range p {
		if p[i] == '/' {
			_, own = ps.judge(p[:i], own)
		}
	}
	return own
}

// without returns n and what lies below it, but for what the patterns select, and nil when nothing is left. p is the path of n
// that they see. A directory that is selected stays when something in it was taken back.
func (ps *patterns) without(n *node, p string, above verdicts) (*node, error) {
	selected, own := ps.judge(p, above)
	if n.Type != dirType {
		if selected {
			return nil, nil
		}
		return n, nil
	}
	if selected && (!ps.excepts || !ps.mayExcept(p)) {
		return nil, nil
	}
	kept := ps.filtered(n, p, own)
	if selected {
		if children, err := kept.children(); err != nil || len(children) == 0 {
			return nil, err
		}
	}
	return kept, nil
}

// filtered is the directory n with less in it.
func (ps *patterns) filtered(n *node, p string, own verdicts) *node {
	return &node{Entry: n.Entry, name: n.name, file: n.file, load: func() ([]*node, error) {
		all, err := n.children()
		if err != nil {
			return nil, err
		}
		var kept []*node
		for _, c := range all {
			c, err := ps.without(c, path.Join(p, c.name), own)
			if err != nil {
				return nil, err
			}
			if c != nil {
				kept = append(kept, c)
			}
		}
		return kept, nil
	}}
}
