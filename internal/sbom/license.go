package sbom

import (
	_ "embed"
	"strings"
	"sync"
)

// licenseList has the identifiers of licences, an empty line, and those of exceptions.
//
//go:embed licenses.txt
var licenseList string

// known are the identifiers by their small letters: in SPDX, case does not matter.
var known = sync.OnceValue(func() (ids struct{ licenses, exceptions map[string]string }) {
	ids.licenses, ids.exceptions = map[string]string{}, map[string]string{}
	into := ids.licenses
	for line := range strings.Lines(licenseList) {
		switch line = strings.TrimSpace(line); {
		case line == "":
			into = ids.exceptions
		case line[0] != '#':
			into[strings.ToLower(line)] = line
		}
	}
	return ids
})

// maxExpression is how many words of a licence are looked at.
const maxExpression = 200

// expression returns what a package says of its licence as an expression of SPDX (version 2.3, annex D), with identifiers as the list
// spells them. It is false for what is none, such as "GPLv2+ and MIT".
func expression(said string) (string, bool) {
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(said))
	if len(words) == 0 || len(words) > maxExpression {
		return "", false
	}
	e := &expressionReader{words: words}
	if !e.any() || len(e.words) > 0 {
		return "", false
	}
	return strings.NewReplacer("( ", "(", " )", ")").Replace(strings.Join(e.out, " ")), true
}

// expressionReader takes words from the front, and keeps what they are called in SPDX.
type expressionReader struct {
	words, out []string
}

// word takes the next word if it is this one, in any case.
func (e *expressionReader) word(is string) bool {
	if len(e.words) == 0 || !strings.EqualFold(e.words[0], is) {
		return false
	}
	e.words, e.out = e.words[1:], append(e.out, is)
	return true
}

// id takes the next word if it is one of the identifiers.
func (e *expressionReader) id(ids map[string]string) bool {
	if len(e.words) == 0 {
		return false
	}
	word := strings.ToLower(e.words[0])
	name, ok := ids[word]
	if later, orLater := strings.CutSuffix(word, "+"); !ok && orLater {
		if name, ok = ids[later]; ok {
			name += "+"
		}
	}
	if !ok {
		return false
	}
	e.words, e.out = e.words[1:], append(e.out, name)
	return true
}

// any reads terms with AND or OR between them. Which of the two binds more does not matter here.
func (e *expressionReader) any() bool {
	for {
		if !e.term() {
			return false
		}
		if !e.word("AND") && !e.word("OR") {
			return true
		}
	}
}

// term reads a licence, with an exception or without, or an expression in parentheses.
func (e *expressionReader) term() bool {
	if e.word("(") {
		return e.any() && e.word(")")
	}
	return e.id(known().licenses) && (!e.word("WITH") || e.id(known().exceptions))
}
