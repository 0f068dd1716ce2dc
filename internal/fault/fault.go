// Package fault adds to an error what the terminal needs: a hint of what to do, and which exit code it means.
//
// Core packages wrap; internal/cli reads with [HintOf] and [CodeOf]. Everything stays an ordinary wrapped error.
package fault

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
)

// The exit codes of the sconce command.
const (
	CodeFailed      = 1   // something could not be done
	CodeUsage       = 2   // the command line or the recipe is wrong
	CodeProblem     = 3   // a check found a problem
	CodeTryAgain    = 75  // the network or a server failed: the same may go well later. It is EX_TEMPFAIL of sysexits.h
	CodeInterrupted = 130 // the user interrupted
)

type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }
func (h hinted) Hint() string  { return h.hint }

// Hint returns err with a sentence about what to do. A nil err stays nil.
func Hint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return hinted{err, hint}
}

// HintOf returns the outermost hint that err carries, or "". Any error type may offer one by a method Hint() string.
func HintOf(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// Join is errors.Join with a hint that says what to do about all of them.
func Join(errs ...error) error {
	var hints []string
	for _, err := range errs {
		if hint := HintOf(err); hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	err := errors.Join(errs...)
	if len(hints) == 0 {
		return err
	}
	return Hint(err, strings.Join(hints, "; "))
}

// Errors are the mistakes of one file, in its order. Each has a line of its own in the message, and a hint of its own.
type Errors[E error] []E

// Several returns the errors as one: nil if there are none, the one itself, or [Errors].
func Several[E error](errs []E) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	default:
		return Errors[E](errs)
	}
}

// Error returns one line for each error.
func (es Errors[E]) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the errors to errors.Is and errors.As, the first one first.
func (es Errors[E]) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }
func (c coded) ExitCode() int { return c.code }

// Usage marks err as a mistake in what the user wrote: exit code 2.
func Usage(err error) error { return withCode(err, CodeUsage) }

// Problem marks err as the finding of a check: exit code 3.
func Problem(err error) error { return withCode(err, CodeProblem) }

// TryAgain marks err as one of the network, or of a server in trouble, that may be gone at another time: exit code 75.
func TryAgain(err error) error { return withCode(err, CodeTryAgain) }

func withCode(err error, code int) error {
	if err == nil {
		return nil
	}
	return coded{err, code}
}

// CodeOf returns the exit code that err means: 0 for nil, 1 unless it says otherwise, and where only some of several errors are to be tried
// again. The exit code of a program that was only a means, as mmdebstrap and git are, is not sconce's own.
func CodeOf(err error) int {
	if err == nil {
		return 0
	}
	var c interface{ ExitCode() int }
	if !errors.As(err, &c) {
		return CodeFailed
	}
	if _, ofProgram := c.(*exec.ExitError); ofProgram {
		return CodeFailed
	}
	code := c.ExitCode()
	if code == CodeTryAgain && !everyTryAgain(err) {
		return CodeFailed
	}
	return code
}

// everyTryAgain reports whether all of what was joined in err may be gone at another time: else trying again would be in vain.
func everyTryAgain(err error) bool {
	switch e := err.(type) { //nolint:errorlint // what is wrapped is looked at in turn
	case interface{ ExitCode() int }:
		return e.ExitCode() == CodeTryAgain
	case interface{ Unwrap() error }:
		return everyTryAgain(e.Unwrap())
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(one error) bool { return !everyTryAgain(one) })
	}
	return false
}
