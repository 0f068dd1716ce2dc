package sandbox

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// The exit codes of a command that did not start, as the shell has them, and of a sandbox that could not be made, as
// podman and env(1) have it.
const (
	codeNotMade       = 125
	codeNotExecutable = 126
	codeNotFound      = 127
)

// Error says why a sandbox could not be made or its command not be started.
type Error struct {
	What  string     // what was being done, and to what
	Errno unix.Errno // what the kernel said, 0 if it was not asked
	Fix   string     // what to do about it, may be empty
	Code  int        // 125 no sandbox, 126 command not executable, 127 command not found

	NoFUSE  bool // it would have worked with unpacked layers: the error is an [ErrNoFUSE]
	NoUpper bool // it would have worked with another UpperDir: the error is an [ErrNoUpper]
}

func (e *Error) Error() string {
	if e.Errno == 0 {
		return e.What
	}
	return fmt.Sprintf("%s: %v", e.What, e.Errno)
}

// Unwrap returns what the kernel said, for errors.Is.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// Hint returns what to do.
func (e *Error) Hint() string { return e.Fix }

// ExitCode returns the exit code to end with.
func (e *Error) ExitCode() int { return e.Code }

// failed makes the error of a step of setting up the sandbox.
func failed(what string, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		what += ": " + at.Path
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return &Error{What: what, Errno: errno, Code: codeNotMade}
	}
	return &Error{What: fmt.Sprintf("%s: %v", what, err), Code: codeNotMade}
}

func codeOf(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return codeNotMade
}
