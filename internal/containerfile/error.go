package containerfile

import (
	"fmt"
	"slices"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// Error is one mistake in a Containerfile, or in another file that is read to the same data.
type Error struct {
	File    string
	Line    int // from 1
	Message string

	hint string
}

// Errorf says what is wrong in a line of a file. hint says what would have been right, or is "".
func Errorf(file string, line int, hint, format string, args ...any) *Error {
	return &Error{File: file, Line: line, Message: fmt.Sprintf(format, args...), hint: hint}
}

// Error returns the mistake on one line: file:line: message.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message) }

// Hint says what would have been right, or is "".
func (e *Error) Hint() string { return e.hint }

// ExitCode says that the user's input is wrong.
func (e *Error) ExitCode() int { return fault.CodeUsage }

// maxErrors bounds how many mistakes are reported: nobody reads further.
const maxErrors = 25

// several makes one error of the mistakes of form that a file has, in its order; nil if there are none.
func several(mistakes []*Error) error {
	return fault.Several(mistakes[:min(len(mistakes), maxErrors)])
}

// sortByLine puts mistakes in the order of the file.
func sortByLine(mistakes []*Error) {
	slices.SortStableFunc(mistakes, func(a, b *Error) int { return a.Line - b.Line })
}

// wrong is a mistake whose line is not known yet.
type wrong struct{ message, hint string }

func (w wrong) Error() string { return w.message }
func (w wrong) Hint() string  { return w.hint }

func wrongf(hint, format string, args ...any) error {
	return wrong{fmt.Sprintf(format, args...), hint}
}

// at says where in the file err is.
func (f *File) at(line int, err error) *Error {
	return Errorf(f.Name, max(line, 1), fault.HintOf(err), "%s", err.Error())
}

// didYouMean is a hint with the candidate nearest to word; otherwise it is the other one given.
func didYouMean(word string, candidates []string, other string) string {
	if best := spelling.Nearest(word, candidates); best != "" && best != word {
		return "did you mean " + best + "?"
	}
	return other
}
