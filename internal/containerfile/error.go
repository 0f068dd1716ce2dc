package containerfile

import (
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// Error is one mistake in a Containerfile.
type Error struct {
	File    string
	Line    int // from 1
	Message string

	hint string
}

// Error returns the mistake on one line: file:line: message.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message) }

// Hint says what would have been right, or is "".
func (e *Error) Hint() string { return e.hint }

// ExitCode says that the user's input is wrong.
func (e *Error) ExitCode() int { return fault.CodeUsage }

// Errors are all mistakes of form that a file has, when there are more than one, in its order.
type Errors []*Error

// Error returns one line for each mistake.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the mistakes to errors.Is and errors.As, the first one first.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// maxErrors bounds how many mistakes are reported: nobody reads further.
const maxErrors = 25

// err returns nil, the one mistake or all of them.
func (es Errors) err() error {
	switch len(es) {
	case 0:
		return nil
	case 1:
		return es[0]
	default:
		return es[:min(len(es), maxErrors)]
	}
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
	return &Error{File: f.Name, Line: max(line, 1), Message: err.Error(), hint: fault.HintOf(err)}
}

// didYouMean is a hint with the candidate nearest to word; otherwise it is the other one given.
func didYouMean(word string, candidates []string, other string) string {
	if best := spelling.Nearest(word, candidates); best != "" && best != word {
		return "did you mean " + best + "?"
	}
	return other
}
