package execop

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/units"
)

// Failure is the error of a command that ended with another exit code than 0. Secrets are in none of its texts.
type Failure struct { //nolint:errname // it is what failed, a step, more than an error
	Title string
	Code  int      // exit code; 128+n for signal n
	Tail  []string // the last lines it printed
	Log   string   // path of the file with all of them

	OutOfMemory bool  // the kernel killed one of its processes for want of memory, or one says that there was none
	Peak        int64 // bytes of memory that its largest process had at once, 0 when unknown
	DiskFull    bool  // it says that there was no room on a disk

	room       string // what is known of the disk
	memory     int64  // bytes that all processes together can have
	ownNetwork bool   // from which this machine's loopback is not reached
	hostCA     bool   // it had the certificates that this machine trusts
}

func (f *Failure) Error() string {
	text := f.Title + ": "
	switch sig := unix.Signal(f.Code - 128); {
	case f.OutOfMemory:
		text += "there was not enough memory"
		if f.Peak > 0 {
			text += fmt.Sprintf(": the largest process had %s", units.Size(f.Peak))
		}
		if f.memory > 0 {
			text += fmt.Sprintf(", and %s are the limit here", units.Size(f.memory))
		}
		text += fmt.Sprintf(" (exit code %d)", f.Code)
	case f.DiskFull:
		text += fmt.Sprintf("no space was left on a disk (exit code %d)", f.Code)
	case f.Code > 128 && unix.SignalName(sig) != "":
		text += fmt.Sprintf("the command was ended by the signal %s (exit code %d)", unix.SignalName(sig), f.Code)
	default:
		text += fmt.Sprintf("the command ended with exit code %d", f.Code)
	}
	return text
}

// CommandNotFound is the exit code of a shell for a command that it did not find.
const CommandNotFound = 127

// Hint returns what to do.
func (f *Failure) Hint() string {
	whole := "the whole output is in " + f.Log
	switch {
	case f.OutOfMemory:
		return "let fewer processes run at once (MAX_JOBS, make -j), or build where there is more memory; " + whole
	case f.DiskFull:
		return f.room + "; " + whole
	case f.Code == 100 && noAptLists(f.Tail):
		return "images have no lists of packages: run `apt-get update` before apt-get install, in the same step; " + whole
	case f.ownNetwork && refusedHere(f.Tail):
		return "a step has a network of its own, whose localhost is not this machine's: --network host gives it this machine's; " + whole
	case !f.hostCA && untrusted.MatchString(strings.Join(f.Tail, "\n")):
		return "a certificate is not trusted in the image: --host-config ca gives steps those that this machine trusts; " + whole
	case f.Code == CommandNotFound && missingPip.MatchString(strings.Join(f.Tail, "\n")):
		return "the image has no pip: one of a recipe's has it with \"pip\" among the packages under [python]; of a distribution's, " +
			"`apt-get install python3-pip python3-venv` brings it; " + whole
	case f.Code == CommandNotFound:
		return "exit code 127 mostly means that a command is not in the image; " + whole
	case f.Code == 126:
		return "exit code 126 mostly means that a file cannot be executed; " + whole
	}
	return whole
}

// missingPip is how shells say that they do not find pip, or uv in its place.
var missingPip = lazyregexp.New(`\b(pip3?|uv)['"]?: (command )?not found|command not found: (pip3?|uv)\b`)

// untrusted is how programs say that they do not know who signed a certificate: OpenSSL and Python, curl and Git, GnuTLS in apt,
// Go, rustls in uv, Node, wget.
var untrusted = lazyregexp.New(`(?i)certificate verify failed|certificate verification failed|unable to get local issuer certificate|self[- _]signed[ _]cert|ssl certificate problem|` +
	`certificate is not trusted|x509: certificate signed by unknown authority|unknownissuer|unable_to_(get_issuer_cert|verify_leaf_signature)|cannot verify .* certificate`)

// loopbackWords are how programs write the loopback's names and addresses.
var loopbackWords = lazyregexp.New(`(?i)\blocalhost\b|\b127\.\d+\.\d+\.\d+\b|\[::1\]`)

// refusedHere reports whether a program found nobody listening on the loopback.
func refusedHere(tail []string) bool {
	text := strings.Join(tail, "\n")
	return loopbackWords.MatchString(text) && strings.Contains(strings.ToLower(text), "connection refused")
}

// noAptLists reports whether apt does not know a package, and nobody has asked it for its lists.
func noAptLists(tail []string) bool {
	said := func(text string) bool {
		return slices.ContainsFunc(tail, func(line string) bool { return strings.HasPrefix(line, text) })
	}
	return said("E: Unable to locate package ") && !said("Get:") && !said("Hit:")
}

// ExitCode returns that of sconce.
func (f *Failure) ExitCode() int { return fault.CodeFailed }

// memoryWords are what programs say that had too little memory, or whose children were killed for it: GCC, Clang, nvcc, Python,
// C++ programs, shells, Rust, Go, make.
var memoryWords = lazyregexp.New(`(?i)killed signal terminated program|\bmemoryerror\b|virtual memory exhausted|std::bad_alloc|cannot allocate memory|died due to signal 9|` +
	`memory allocation of \d+ bytes failed|fatal error: (runtime: )?out of memory|\bout of memory allocating\b`)

// diskWords are what programs say when a disk is full.
var diskWords = lazyregexp.New(`(?i)no space left on device|disk quota exceeded|not enough (free )?(disk )?space|need more space than available`)

// killedCode is the exit code of who was ended by SIGKILL.
const killedCode = 128 + int(unix.SIGKILL)

// killerWords are what is said of a process that was ended by SIGKILL, which the kernel sends for want of memory and others for
// other reasons.
var killerWords = lazyregexp.New(`(?i)\bkilled\b|signal:? 9\b|sigkill`)

// diagnose finds out why a command failed. killed says that the kernel has killed somebody for want of memory meanwhile.
func (f *Failure) diagnose(o *output, killed bool, work string, mounts []Mount) {
	bySignal := f.Code == killedCode || killerWords.MatchString(strings.Join(f.Tail, "\n"))
	said := o.speaksOf(memoryClue)
	f.OutOfMemory = killed && (bySignal || said) || said
	if f.OutOfMemory {
		f.memory = memoryLimit()
	}
	if f.DiskFull = !f.OutOfMemory && o.speaksOf(diskClue); f.DiskFull {
		f.room = host.RoomLeft(work) + elsewhere
		if small := limited(mounts); small != "" {
			f.room = small + ", or " + f.room
		}
	}
}

// limited says which mounts in memory may be full, or "".
func limited(mounts []Mount) string {
	var found []string
	for _, m := range mounts {
		if m.Kind == Tmpfs && m.Size > 0 {
			found = append(found, fmt.Sprintf("%s of %s", m.Target, units.Size(m.Size)))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "a tmpfs mount may be full, " + strings.Join(found, " or ") + ": raise its size"
}

// memoryLimit returns how much memory this process and its children can have, in bytes.
func memoryLimit() int64 {
	m := host.AvailableMemory()
	least := m.Total
	for _, l := range m.Limits {
		least = min(least, l.Value)
	}
	return least
}

// elsewhere ends what is said of a full disk.
const elsewhere = "; `sconce cache prune` makes room, SCONCE_STORE says where else the store can be"

// explain says in what step an error happened, and what to do about a full disk.
func explain(title, dir string, err error) error {
	var f *Failure
	if errors.As(err, &f) {
		return err
	}
	err = fmt.Errorf("%s: %w", title, err)
	if what := host.NoRoom(err, dir); what != "" {
		return fault.Hint(err, what+elsewhere)
	}
	return err
}

// oomKills returns how many processes this machine has killed for want of memory, a control group's or its own (proc(5),
// /proc/vmstat).
func oomKills() int64 {
	data, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if n, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			count, _ := strconv.ParseInt(string(bytes.TrimSpace(n)), 10, 64)
			return count
		}
	}
	return 0
}
