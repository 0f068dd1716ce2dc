// Package lazyregexp is regular expressions, those of package regexp, that are compiled when they are first asked something.
//
// The program has hundreds of them in variables of packages, and one command asks a few. To compile them all took more than half of the time
// in which a command starts, and a command in a sandbox is two starts more.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp is a regular expression. It has those methods of [regexp.Regexp] that are asked for most; [Regexp.Regexp] has all.
type Regexp struct {
	text     string
	once     sync.Once
	compiled *regexp.Regexp
}

// all are the expressions of the program, for [CompileAll].
var all []*Regexp

// New returns an expression for a variable of a package: it is kept for good. One that is wrong panics when it is first asked, and in
// [CompileAll].
func New(text string) *Regexp {
	r := &Regexp{text: text}
	all = append(all, r)
	return r
}

// CompileAll compiles the expressions of all packages that are linked into a program, and panics at one that is wrong. It is for a test.
func CompileAll() {
	for _, r := range all {
		r.Regexp()
	}
}

// Regexp returns the expression, compiled.
func (r *Regexp) Regexp() *regexp.Regexp {
	r.once.Do(func() { r.compiled = regexp.MustCompile(r.text) })
	return r.compiled
}

// String returns the text of the expression.
func (r *Regexp) String() string { return r.text }

// MatchString is [regexp.Regexp.MatchString].
func (r *Regexp) MatchString(s string) bool { return r.Regexp().MatchString(s) }

// FindString is [regexp.Regexp.FindString].
func (r *Regexp) FindString(s string) string { return r.Regexp().FindString(s) }

// FindStringSubmatch is [regexp.Regexp.FindStringSubmatch].
func (r *Regexp) FindStringSubmatch(s string) []string { return r.Regexp().FindStringSubmatch(s) }

// FindSubmatch is [regexp.Regexp.FindSubmatch].
func (r *Regexp) FindSubmatch(b []byte) [][]byte { return r.Regexp().FindSubmatch(b) }

// FindAllStringSubmatch is [regexp.Regexp.FindAllStringSubmatch].
func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.Regexp().FindAllStringSubmatch(s, n)
}

// ReplaceAllString is [regexp.Regexp.ReplaceAllString].
func (r *Regexp) ReplaceAllString(s, with string) string { return r.Regexp().ReplaceAllString(s, with) }

// ReplaceAllStringFunc is [regexp.Regexp.ReplaceAllStringFunc].
func (r *Regexp) ReplaceAllStringFunc(s string, with func(string) string) string {
	return r.Regexp().ReplaceAllStringFunc(s, with)
}
