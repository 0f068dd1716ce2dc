package python

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Marker says in which environments something applies: `python_version < "3.11" and os_name == "posix"`
// (packaging.python.org, "Dependency specifiers", environment markers).
type Marker struct {
	text string
	root expression
}

// MarkerEnvironment is what markers are evaluated in. See [EnvironmentOf].
type MarkerEnvironment struct {
	Variables map[string]string // python_version, sys_platform and so on; "extra" only while reading package metadata
	Extras    []string          // the set "extras" of lock files (PEP 751)
	Groups    []string          // their set "dependency_groups"
}

// EnvironmentOf returns the environment of packages installed for i on Linux. The kernel's release and version are empty:
// the image may run on any.
func EnvironmentOf(i Interpreter) MarkerEnvironment {
	return MarkerEnvironment{Variables: map[string]string{
		"os_name":                        "posix",
		"sys_platform":                   "linux",
		"platform_system":                "Linux",
		"platform_machine":               i.Platform,
		"platform_release":               "",
		"platform_version":               "",
		"python_version":                 i.Minor(),
		"python_full_version":            i.Version,
		"implementation_name":            i.Implementation,
		"implementation_version":         i.Version,
		"platform_python_implementation": implementationTitle(i.Implementation),
	}}
}

// implementationTitle is platform.python_implementation() for sys.implementation.name.
func implementationTitle(name string) string {
	switch name {
	case "cpython":
		return "CPython"
	case "pypy":
		return "PyPy"
	default:
		return name
	}
}

// WithExtra returns the environment with the variable "extra" set, as Requires-Dist lines are read.
func (e MarkerEnvironment) WithExtra(extra string) MarkerEnvironment {
	e.Variables = maps.Clone(e.Variables)
	e.Variables["extra"] = extra
	return e
}

// Limits on a marker: a thousand times what resolvers write.
const (
	maxMarker      = 1 << 20 // bytes
	maxMarkerDepth = 200     // parentheses within parentheses
)

// ParseMarker reads a marker.
func ParseMarker(s string) (Marker, error) {
	if len(s) > maxMarker {
		return Marker{}, fmt.Errorf("a marker of %d characters is too long", len(s))
	}
	p := markerParser{rest: s, whole: strings.TrimSpace(s)}
	root, err := p.or()
	if err != nil {
		return Marker{}, err
	}
	if p.blank(); p.rest != "" {
		return Marker{}, p.wrong(`"and", "or" or the end`)
	}
	return Marker{text: p.whole, root: root}, nil
}

// String returns the marker as it was written.
func (m Marker) String() string { return m.text }

// Evaluate reports whether the marker holds in e. It is an error when the marker asks for a variable that e lacks, or
// compares values in a way that has no meaning.
func (m Marker) Evaluate(e MarkerEnvironment) (bool, error) {
	ok, err := m.root.holds(e)
	if err != nil {
		return false, fmt.Errorf("marker %q: %w", m.text, err)
	}
	return ok, nil
}

// expression is a node of a parsed marker.
type expression interface {
	holds(MarkerEnvironment) (bool, error)
}

// anyOf and allOf look at all their parts, so that a mistake in one is found whatever the others say.
type anyOf []expression

func (x anyOf) holds(e MarkerEnvironment) (bool, error) {
	found := false
	for _, part := range x {
		ok, err := part.holds(e)
		if err != nil {
			return false, err
		}
		found = found || ok
	}
	return found, nil
}

type allOf []expression

func (x allOf) holds(e MarkerEnvironment) (bool, error) {
	all := true
	for _, part := range x {
		ok, err := part.holds(e)
		if err != nil {
			return false, err
		}
		all = all && ok
	}
	return all, nil
}

// comparison is `variable operator "text"`, or with reversed set `"text" operator variable`.
type comparison struct {
	variable string
	operator string
	text     string
	reversed bool
}

// membership is `"name" in extras`, or not.
type membership struct {
	set  string // extras or dependency_groups
	name string // normalised
	not  bool
}

func (m membership) holds(e MarkerEnvironment) (bool, error) {
	set := e.Extras
	if m.set == "dependency_groups" {
		set = e.Groups
	}
	found := slices.ContainsFunc(set, func(s string) bool { return NormalizeName(s) == m.name })
	return found != m.not, nil
}

// versionVariables are those that are compared as versions.
var versionVariables = map[string]bool{
	"python_version": true, "python_full_version": true, "implementation_version": true, "platform_release": true,
}

func (c comparison) holds(e MarkerEnvironment) (bool, error) {
	value, ok := e.Variables[c.variable]
	if !ok {
		return false, fmt.Errorf("the variable %q has no value here", c.variable)
	}
	left, right := value, c.text
	if c.reversed {
		left, right = c.text, value
	}
	if c.variable == "extra" {
		left, right = NormalizeName(left), NormalizeName(right)
	}
	if versionVariables[c.variable] {
		if s, err := parseSpecifier(c.operator + right); err == nil {
			return s.containsText(left), nil
		}
	}
	return compareText(left, c.operator, right)
}

// containsText is contains for what may be no version at all.
func (s specifier) containsText(text string) bool {
	if s.operator == "===" {
		return s.isText(text)
	}
	v, err := ParseVersion(strings.TrimSuffix(text, "+")) // CPython built from a checkout calls itself 3.13.0+
	return err == nil && s.contains(v)
}

// compareText compares what is no version. Order is not defined for it, so nothing is before or after anything; the
// operators that only versions have are errors.
func compareText(left, operator, right string) (bool, error) {
	switch operator {
	case "in":
		return strings.Contains(right, left), nil
	case "not in":
		return !strings.Contains(right, left), nil
	case "==", "<=", ">=":
		return left == right, nil
	case "!=":
		return left != right, nil
	case "<", ">":
		return false, nil
	default:
		return false, fmt.Errorf("%q %s %q compares what are not versions", left, operator, right)
	}
}

// markerParser reads by recursive descent:
//
//	or         = and { "or" and }
//	and        = atom { "and" atom }
//	atom       = "(" or ")" | operand operator operand
//	operand    = variable | quoted text
type markerParser struct {
	whole string
	rest  string
	depth int
}

func (p *markerParser) or() (expression, error) {
	var parts anyOf
	for {
		part, err := p.and()
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		if !p.word("or") {
			return single(parts, parts), nil
		}
	}
}

func (p *markerParser) and() (expression, error) {
	var parts allOf
	for {
		part, err := p.atom()
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		if !p.word("and") {
			return single(parts, parts), nil
		}
	}
}

// single unwraps a list of one.
func single(parts []expression, otherwise expression) expression {
	if len(parts) == 1 {
		return parts[0]
	}
	return otherwise
}

func (p *markerParser) atom() (expression, error) {
	p.blank()
	rest, open := strings.CutPrefix(p.rest, "(")
	if !open {
		return p.comparison()
	}
	if p.depth++; p.depth > maxMarkerDepth {
		return nil, fmt.Errorf("the marker has more than %d parentheses within each other", maxMarkerDepth)
	}
	p.rest = rest
	inner, err := p.or()
	if err != nil {
		return nil, err
	}
	p.blank()
	if rest, open = strings.CutPrefix(p.rest, ")"); !open {
		return nil, p.wrong(`"and", "or" or ")"`)
	}
	p.rest = rest
	p.depth--
	return inner, nil
}

func (p *markerParser) comparison() (expression, error) {
	left, leftIsVariable, err := p.operand()
	if err != nil {
		return nil, err
	}
	operator, err := p.operator()
	if err != nil {
		return nil, err
	}
	right, rightIsVariable, err := p.operand()
	if err != nil {
		return nil, err
	}
	switch {
	case isSet(left) && leftIsVariable, isSet(right) && rightIsVariable:
		return sets(left, operator, right, leftIsVariable), nil
	case leftIsVariable: // a variable on the right as well counts as the text of its name, as for the package packaging
		return comparison{variable: left, operator: operator, text: right}, nil
	default:
		return comparison{variable: right, operator: operator, text: left, reversed: true}, nil
	}
}

func isSet(name string) bool { return name == "extras" || name == "dependency_groups" }

// sets is a comparison with a set. Whether a text is in it is the one that has a meaning. A set compared with a text is an error to
// who evaluates it; a text compared with a set is never equal to it.
func sets(left, operator, right string, reversed bool) expression {
	switch {
	case !reversed && (operator == "in" || operator == "not in"):
		return membership{set: right, name: NormalizeName(left), not: operator == "not in"}
	case reversed || operator == "~=" || operator == "===":
		return meaningless(`extras and dependency_groups are sets; write "NAME" in them`)
	default:
		return constant(operator == "!=")
	}
}

// constant is a comparison that always comes out alike.
type constant bool

func (c constant) holds(MarkerEnvironment) (bool, error) { return bool(c), nil }

// meaningless is a comparison that is an error, and says why.
type meaningless string

func (m meaningless) holds(MarkerEnvironment) (bool, error) { return false, errors.New(string(m)) }

// markerVariables are the names a marker may use, with their former spellings.
var markerVariables = map[string]string{
	"os_name": "os_name", "os.name": "os_name",
	"sys_platform": "sys_platform", "sys.platform": "sys_platform",
	"platform_machine": "platform_machine", "platform.machine": "platform_machine",
	"platform_version": "platform_version", "platform.version": "platform_version",
	"platform_release": "platform_release", "platform_system": "platform_system",
	"platform_python_implementation": "platform_python_implementation", "platform.python_implementation": "platform_python_implementation",
	"python_implementation": "platform_python_implementation",
	"python_version":        "python_version", "python_full_version": "python_full_version",
	"implementation_name": "implementation_name", "implementation_version": "implementation_version",
	"extra": "extra", "extras": "extras", "dependency_groups": "dependency_groups",
}

var markerWord = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_.]*`)

// operand reads a variable or a quoted text.
func (p *markerParser) operand() (value string, isVariable bool, err error) {
	p.blank()
	if p.rest != "" && (p.rest[0] == '"' || p.rest[0] == '\'') {
		text, rest, closed := strings.Cut(p.rest[1:], p.rest[:1])
		if !closed {
			return "", false, fmt.Errorf("marker %q: a quote is not closed", p.whole)
		}
		p.rest = rest
		return text, false, nil
	}
	word := markerWord.FindString(p.rest)
	name, known := markerVariables[word]
	if !known {
		return "", false, p.wrong("a variable such as python_version, or a quoted text")
	}
	p.rest = p.rest[len(word):]
	return name, true, nil
}

var notIn = lazyregexp.New(`^not[ \t]+in\b`)

func (p *markerParser) operator() (string, error) {
	p.blank()
	for _, op := range []string{"===", "==", "~=", "!=", "<=", ">=", "<", ">"} {
		if rest, ok := strings.CutPrefix(p.rest, op); ok {
			p.rest = rest
			return op, nil
		}
	}
	if p.word("in") {
		return "in", nil
	}
	if m := notIn.FindString(p.rest); m != "" {
		p.rest = p.rest[len(m):]
		return "not in", nil
	}
	return "", p.wrong("an operator: <, <=, !=, ==, >=, >, ~=, ===, in or not in")
}

// word takes the word if it comes next.
func (p *markerParser) word(w string) bool {
	p.blank()
	if markerWord.FindString(p.rest) != w {
		return false
	}
	p.rest = p.rest[len(w):]
	return true
}

func (p *markerParser) blank() { p.rest = strings.TrimLeft(p.rest, blanks) }

// wrong says what should have come where the parser stands.
func (p *markerParser) wrong(expected string) error {
	if p.rest == "" {
		return fmt.Errorf("marker %q ends where %s should come", p.whole, expected)
	}
	const shown = 30
	return fmt.Errorf("marker %q has %.*q where %s should come", p.whole, shown, p.rest, expected)
}
