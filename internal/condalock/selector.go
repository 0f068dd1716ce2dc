package condalock

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// commentSelector finds the selector of a line: a comment that begins with an expression in brackets.
var commentSelector = lazyregexp.New(`(?:^|\s)#\s*\[([^\[\]]*)\]`)

// filterLines takes out the lines whose selector does not hold for the platform. Empty lines take their place, so that all others
// keep their numbers. Brackets in a comment that hold no expression are a comment.
func (r *environmentReader) filterLines(text []byte) []byte {
	lines := bytes.Split(text, []byte("\n"))
	for i, line := range lines {
		m := commentSelector.Regexp().FindSubmatchIndex(line)
		if m == nil || len(bytes.TrimSpace(line[:m[0]])) == 0 {
			continue
		}
		expression := string(line[m[2]:m[3]])
		if !isSelector(expression) {
			continue
		}
		holds, err := evaluate(expression, commentVariables(r.platform))
		if err != nil {
			r.problems = append(r.problems, fmt.Errorf("%s:%d:%d: selector [%s]: %w", r.env.File, i+1, m[2]+1, expression, err))
		} else if !holds {
			lines[i] = nil
		}
	}
	return bytes.Join(lines, []byte("\n"))
}

var selectorKey = lazyregexp.New(`^sel\((.*)\)$`)

// dictSelector returns the expression of a key such as sel(linux).
func dictSelector(key string) (string, bool) {
	m := selectorKey.FindStringSubmatch(strings.TrimSpace(key))
	if m == nil {
		return "", false
	}
	return m[1], true
}

// platformWords are all variables of comment selectors (conda-build 25.1, "Preprocessing selectors", and osx64 of CEP 24).
var platformWords = []string{
	"linux", "linux32", "linux64", "osx", "osx64", "unix", "win", "win32", "win64", "x86", "x86_64", "x64", "arm64", "aarch64", "armv6l",
	"armv7l", "ppc64le", "s390x", "riscv32", "riscv64", "emscripten", "wasi", "wasm32", "freebsd", "zos",
}

// commentVariables returns which words hold for a platform.
func commentVariables(platform string) map[string]bool {
	system, machine, _ := strings.Cut(platform, "-")
	values := map[string]bool{}
	for _, word := range platformWords {
		values[word] = word == system || word == machine
	}
	values["unix"] = slices.Contains([]string{"linux", "osx", "freebsd", "emscripten", "wasi"}, system)
	values["linux32"], values["linux64"] = platform == "linux-32", platform == "linux-64"
	values["win32"], values["win64"] = platform == "win-32", platform == "win-64"
	values["osx64"] = platform == "osx-64"
	values["x86_64"], values["x64"] = machine == "64", machine == "64"
	values["x86"] = machine == "64" || machine == "32"
	return values
}

// dictVariables are the few words that sel(…) knows.
func dictVariables(platform string) map[string]bool {
	all := commentVariables(platform)
	return map[string]bool{"unix": all["unix"], "linux": all["linux"], "osx": all["osx"], "win": all["win"]}
}

var selectorWord = lazyregexp.New(`[A-Za-z_][A-Za-z0-9_]*|\S`)

// isSelector reports whether a text in brackets is meant as an expression over platforms: one of its words is one of theirs.
func isSelector(text string) bool {
	return slices.ContainsFunc(selectorWord.Regexp().FindAllString(text, -1), func(w string) bool { return slices.Contains(platformWords, w) })
}

// evaluate computes an expression of variables, and, or, not and parentheses.
func evaluate(text string, values map[string]bool) (bool, error) {
	e := &evaluator{words: selectorWord.Regexp().FindAllString(text, -1), values: values}
	v, err := e.or(0)
	if err == nil && len(e.words) > 0 {
		err = fmt.Errorf("%q is not expected there", e.words[0])
	}
	return v, err
}

type evaluator struct {
	words  []string
	values map[string]bool
}

func (e *evaluator) take(word string) bool {
	if len(e.words) == 0 || e.words[0] != word {
		return false
	}
	e.words = e.words[1:]
	return true
}

func (e *evaluator) or(depth int) (bool, error) {
	v, err := e.and(depth)
	for err == nil && e.take("or") {
		var w bool
		w, err = e.and(depth)
		v = v || w
	}
	return v, err
}

func (e *evaluator) and(depth int) (bool, error) {
	v, err := e.not(depth)
	for err == nil && e.take("and") {
		var w bool
		w, err = e.not(depth)
		v = v && w
	}
	return v, err
}

// maxDepth bounds parentheses and not, which a person writes two of.
const maxDepth = 100

func (e *evaluator) not(depth int) (bool, error) {
	if depth > maxDepth {
		return false, fmt.Errorf("more than %d levels", maxDepth)
	}
	if e.take("not") {
		v, err := e.not(depth + 1)
		return !v, err
	}
	if e.take("(") {
		v, err := e.or(depth + 1)
		if err == nil && !e.take(")") {
			err = fmt.Errorf("a parenthesis stays open")
		}
		return v, err
	}
	if len(e.words) == 0 {
		return false, fmt.Errorf("the expression ends too early")
	}
	v, ok := e.values[e.words[0]]
	if !ok {
		return false, fmt.Errorf("unknown word %q", e.words[0])
	}
	e.words = e.words[1:]
	return v, nil
}
