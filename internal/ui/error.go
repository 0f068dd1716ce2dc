package ui

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
)

// PrintError says what failed, why, and what to do about it. code is the exit code that the command ends with. In
// JSON mode it is one more event.
func (v *View) PrintError(w io.Writer, err error, code int) {
	if v.mode == JSON {
		writeJSONError(w, err, code)
		return
	}
	PrintError(w, err, v.opts.Color)
}

// PrintError is [View.PrintError] for when there is no view yet.
func PrintError(w io.Writer, err error, color bool) {
	s := style{color}
	hints := map[string]bool{"": true}
	for _, e := range separate(err) {
		io.WriteString(w, s.bad("error:")+" "+explain(e)+"\n")
		io.WriteString(w, excerpt(e))
		if hint := hintFor(e); !hints[hint] {
			hints[hint] = true
			io.WriteString(w, s.hint(hint))
		}
	}
	if hint := fault.HintOf(err); !hints[hint] {
		io.WriteString(w, s.hint(hint))
	}
}

// separate takes apart errors that were joined. What was only cancelled because of another error is left out.
func separate(err error) []error {
	joined, ok := withoutMarks(err).(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, separate(e)...)
	}
	var causes []error
	seen := map[string]bool{}
	for _, e := range all {
		if !errors.Is(e, context.Canceled) && !seen[e.Error()] {
			seen[e.Error()] = true
			causes = append(causes, e)
		}
	}
	if len(causes) == 0 {
		return []error{err}
	}
	return causes
}

// withoutMarks takes off what adds a hint or an exit code to an error, but no text.
func withoutMarks(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil || inner.Error() != err.Error() {
			return err
		}
		err = inner
	}
}

// lineLimit is how long an error may be, in columns, before each of its causes gets a line of its own.
const lineLimit = 110

// explain writes an error in one line if it is short, else with each cause on its own line.
func explain(err error) string {
	whole := CleanLines(err.Error())
	if textWidth(whole) <= lineLimit && !strings.Contains(whole, "\n") {
		return whole
	}
	return strings.Join(causes(err), "\n  because: ")
}

// causes cuts an error at the places where it was wrapped: "a: b: c" made by wrapping c in b in a.
func causes(err error) []string {
	var parts []string
	for {
		text := err.Error()
		inner := errors.Unwrap(err)
		if inner == nil || fromSystem(err) {
			return append(parts, indent(CleanLines(text)))
		}
		outer, ok := strings.CutSuffix(text, inner.Error())
		switch {
		case !ok: // the cause is somewhere within the text
			return append(parts, indent(CleanLines(text)))
		case outer != "":
			parts = append(parts, indent(CleanLines(strings.TrimSuffix(outer, ": "))))
		}
		err = inner
	}
}

// fromSystem reports whether err is one of the standard library's, whose parts say nothing alone.
func fromSystem(err error) bool {
	switch err.(type) { //nolint:errorlint // not those deeper within
	case *fs.PathError, *os.LinkError, *os.SyscallError, *net.OpError, *exec.Error:
		return true
	}
	return false
}

// excerpt shows the place in the file that an error is about, if it knows one.
func excerpt(err error) string {
	var e interface{ Excerpt() string }
	if !errors.As(err, &e) {
		return ""
	}
	text := strings.TrimRight(CleanLines(e.Excerpt()), "\n")
	if text == "" {
		return ""
	}
	return text + "\n"
}

// hintFor returns the hint that the error carries, or one for what can happen to any command.
func hintFor(err error) string {
	hint := fault.HintOf(err)
	switch {
	case hint != "":
		return hint
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return noRoom(err) + "make room: `sconce cache prune` removes what is not needed any more; or set SCONCE_STORE to a directory on a larger disk"
	case errors.Is(err, syscall.EMFILE):
		return fmt.Sprintf("too many files are open; `ulimit -n` should say %d or more", wantedFiles)
	}
	return NetworkHint(err)
}

// NetworkHint says what to do about what comes of the network between this machine and a server, "" for anything else.
func NetworkHint(err error) string {
	var name *net.DNSError
	var dial *net.OpError
	var signer x509.UnknownAuthorityError
	const wayOut = "is there a way out of this machine? Compute nodes often have none: try a login node. A proxy is taken from HTTPS_PROXY; --offline uses what the store has"
	switch {
	case errors.As(err, &signer):
		return host.UntrustedFix
	case errors.As(err, &dial) && dial.Op == "proxyconnect":
		return "HTTPS_PROXY or HTTP_PROXY names a proxy that cannot be reached: correct or unset it; NO_PROXY names servers that need none"
	case errors.As(err, &name):
		return "is the name right, and " + wayOut
	case errors.As(err, &dial) && dial.Op == "dial":
		return wayOut + "; a longer --patience waits for a server that is only away for a while"
	}
	return ""
}

// noRoom says which disk is full, and of what, when the error names a path.
func noRoom(err error) string {
	var at *fs.PathError
	if !errors.As(err, &at) || !filepath.IsAbs(at.Path) {
		return ""
	}
	return host.NoRoom(err, filepath.Dir(at.Path)) + "; "
}

// wantedFiles is an ample number of open files for the parallel work of one build.
const wantedFiles = 4096
