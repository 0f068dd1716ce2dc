package recipe

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"sconce.dev/sconce/internal/fault"
)

// Error is one mistake in a recipe.
type Error struct {
	File    string
	Line    int // from 1
	Column  int // from 1, in characters
	Message string

	hint   string
	source string // the line itself
	width  int    // characters to underline
	offset int    // in the file, for sorting
}

// Error returns the mistake on one line: file:line:column: message.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Hint says what would have been right, or is "".
func (e *Error) Hint() string { return e.hint }

// ExitCode says that the user's input is wrong.
func (e *Error) ExitCode() int { return fault.CodeUsage }

// excerptWidth is how much of a long line an excerpt shows, in characters: with the gutter it fits a terminal of 80.
const excerptWidth = 72

// Excerpt returns the line of the recipe with the place underlined, as three lines without a final newline.
func (e *Error) Excerpt() string {
	line, column, width := window([]rune(e.source), e.Column-1, e.width)
	number := fmt.Sprint(e.Line)
	gutter := strings.Repeat(" ", len(number))
	return fmt.Sprintf("%s |\n%s | %s\n%s | %s%s", gutter, number, strings.TrimRight(line, " "),
		gutter, strings.Repeat(" ", column), strings.Repeat("^", width))
}

// window cuts a long line around the place of interest and makes every character one column wide and harmless.
func window(line []rune, column, width int) (string, int, int) {
	from := 0
	if len(line) > excerptWidth && column > excerptWidth/2 {
		from = min(column-excerptWidth/2, len(line)-1)
	}
	to := min(len(line), from+excerptWidth)
	shown := make([]rune, 0, to-from)
	for _, c := range line[from:to] {
		shown = append(shown, visible(c))
	}
	column -= from
	return string(shown), column, max(1, min(width, len(shown)-column))
}

func visible(c rune) rune {
	switch {
	case c == '\t':
		return ' '
	case unicode.IsPrint(c):
		return c
	default:
		return utf8.RuneError
	}
}

// maxProblems bounds how many mistakes are reported: nobody reads further, and a hostile file could hold a million.
const maxProblems = 25

// span is a piece of the recipe, in bytes.
type span struct{ offset, length int }

// add records a mistake at a place. Only the first one at any place is kept, as it usually explains the others; what is
// missing has no length, and hides nothing.
func (c *checker) add(at span, hint, format string, args ...any) {
	if c.places != nil && !c.places[at.offset] {
		return
	}
	if slices.ContainsFunc(c.problems, func(e *Error) bool { return e.offset == at.offset && at.length > 0 }) || len(c.problems) >= maxProblems {
		return
	}
	e := &Error{File: c.file, Message: fmt.Sprintf(format, args...), hint: printable(hint), offset: at.offset}
	c.locate(e, at)
	c.problems = append(c.problems, e)
}

func (c *checker) locate(e *Error, at span) {
	offset := max(0, min(at.offset, len(c.source)))
	before := string(c.source[:offset])
	start := strings.LastIndexByte(before, '\n') + 1
	e.Line = strings.Count(before, "\n") + 1
	e.Column = utf8.RuneCountInString(before[start:]) + 1
	line, _, _ := strings.Cut(string(c.source[start:]), "\n")
	e.source = strings.TrimSuffix(line, "\r")
	end := min(offset+max(at.length, 1), start+len(e.source))
	e.width = 1
	if end > offset {
		e.width = utf8.RuneCount(c.source[offset:end])
	}
}

// err returns what was found wrong: nil, an *Error, or all of them as one error.
func (c *checker) err() error {
	slices.SortStableFunc(c.problems, func(a, b *Error) int { return a.offset - b.offset })
	return fault.Several(c.problems)
}
