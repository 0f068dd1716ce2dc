package python

import (
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Specifiers are conditions on a version that must all hold: ">=1.2, <2" (packaging.python.org, "Version specifiers").
// No conditions hold for every version.
type Specifiers []specifier

type specifier struct {
	operator string
	text     string  // the version as written, with ".*" where there is one
	version  Version // zero for "==="
	prefix   bool    // == or != with ".*"
}

var specifierForm = lazyregexp.New(`(?s)^(===|==|~=|!=|<=|>=|<|>)(.*)$`)

// ParseSpecifiers reads conditions separated by commas. Empty ones are passed over.
func ParseSpecifiers(s string) (Specifiers, error) {
	var all Specifiers
	for clause := range strings.SplitSeq(s, ",") {
		if trimSpace(clause) == "" {
			continue
		}
		one, err := parseSpecifier(clause)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func parseSpecifier(clause string) (specifier, error) {
	clause = trimSpace(clause)
	m := specifierForm.FindStringSubmatch(clause)
	if m == nil || trimSpace(m[2]) == "" {
		return specifier{}, fmt.Errorf("%q is not a version condition such as >=1.2", clause)
	}
	s := specifier{operator: m[1], text: trimSpace(m[2])}
	if s.operator == "===" {
		if strings.ContainsFunc(s.text, isSpace) || strings.ContainsAny(s.text, ";)") {
			return specifier{}, fmt.Errorf("%q: what follows === is one word without ; and )", clause)
		}
		return s, nil
	}
	text := s.text
	if s.operator == "==" || s.operator == "!=" {
		text, s.prefix = strings.CutSuffix(text, ".*")
	}
	var err error
	if s.version, err = ParseVersion(text); err != nil {
		return specifier{}, fmt.Errorf("%q: %w", clause, err)
	}
	return s, s.check(clause)
}

// check refuses what the grammar allows only with other operators.
func (s specifier) check(clause string) error {
	v := s.version
	switch {
	case s.prefix && (v.pre != "" || v.post != nil || v.dev != nil || v.local != nil):
		return fmt.Errorf("%q: .* can only follow a release", clause)
	case v.local != nil && s.operator != "==" && s.operator != "!=":
		return fmt.Errorf("%q: a local version (after +) can only be compared with == and !=", clause)
	case s.operator == "~=" && len(v.release) < 2:
		return fmt.Errorf("%q: ~= needs at least two numbers", clause)
	}
	return nil
}

// Pinned reports whether there is one condition, that the version be a certain one: == or ===.
func (ss Specifiers) Pinned() bool {
	return len(ss) == 1 && (ss[0].operator == "==" || ss[0].operator == "===")
}

// String returns the conditions as they would be written.
func (ss Specifiers) String() string {
	parts := make([]string, len(ss))
	for i, s := range ss {
		parts[i] = s.operator + s.text
	}
	return strings.Join(parts, ",")
}

// Contains reports whether v meets every condition. Pre-releases are not treated apart.
func (ss Specifiers) Contains(v Version) bool {
	for _, s := range ss {
		if !s.contains(v) {
			return false
		}
	}
	return true
}

func (s specifier) contains(v Version) bool {
	switch s.operator {
	case "===":
		return s.isText(v.text)
	case "==":
		return s.equals(v)
	case "!=":
		return !s.equals(v)
	case "~=":
		return v.comparePublic(s.version) >= 0 && s.version.isPrefixOf(v, len(s.version.release)-1)
	case "<=":
		return v.comparePublic(s.version) <= 0
	case ">=":
		return v.comparePublic(s.version) >= 0
	case "<":
		return s.before(v)
	default:
		return s.after(v)
	}
}

// isText is ===, which compares what is written, in lower case. strings.EqualFold would take "ſ" for an s.
func (s specifier) isText(text string) bool {
	text = strings.ToLower(text)
	return text == strings.ToLower(s.text)
}

// equals: a condition without a local label does not ask for the candidate's.
func (s specifier) equals(v Version) bool {
	switch {
	case s.prefix:
		return s.version.isPrefixOf(v, len(s.version.release))
	case s.version.local == nil:
		return v.comparePublic(s.version) == 0
	default:
		return v.Compare(s.version) == 0
	}
}

// isPrefixOf reports whether the first n numbers of v's release, and the epoch, are those of w.
func (v Version) isPrefixOf(w Version, n int) bool {
	if v.epoch.compare(w.epoch) != 0 {
		return false
	}
	for i := range n {
		if v.part(i).compare(w.part(i)) != 0 {
			return false
		}
	}
	return true
}

// before: a pre-release of the very version is not before it, unless the condition names a pre-release. That of a
// post-release is its development release.
func (s specifier) before(v Version) bool {
	w := s.version
	if v.Compare(w) >= 0 {
		return false
	}
	if w.isPrerelease() || !v.isPrerelease() || v.compareBase(w) != 0 {
		return true
	}
	return w.post != nil && compareOptional(v.post, w.post, -1) != 0
}

// after: neither a post-release nor a local build of the very version is after it, unless the condition names a
// post-release.
func (s specifier) after(v Version) bool {
	w := s.version
	if v.Compare(w) <= 0 || v.local != nil && v.comparePublic(w) == 0 {
		return false
	}
	ofSame := v.compareBase(w) == 0 && v.pre == w.pre && v.preN.compare(w.preN) == 0 && w.dev == nil
	return !ofSame || v.post == nil || w.post != nil
}
