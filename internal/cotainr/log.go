package cotainr

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"sconce.dev/sconce/internal/fault"
)

// level is how much a line matters, as Python's logging has it.
type level int

const (
	debug level = iota
	info
	warning
	failure
	critical
	never
)

// levelNames and levelColors are those of cotainr; the colours are of the palette of 256 (ECMA-48, SGR 38;5).
var (
	levelNames  = [...]string{"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}
	levelColors = [...]string{"\x1b[38;5;8m", "", "\x1b[38;5;3m", "\x1b[38;5;1m", "\x1b[38;5;160m"}
)

const resetColor = "\x1b[0m"

// log writes lines in cotainr's form, to the terminal and, when asked, to files: up to info to standard output, above it to standard
// error.
type log struct {
	verbosity int // -1: critical only; 0; 1: what is done, too; 2: with time and place; 3 and more: what programs print, too
	color     bool
	out, err  io.Writer
	now       func() time.Time

	mu               sync.Mutex // guards writing
	outFile, errFile *os.File   // nil: no files
}

// openFiles makes the two files of --log-to-file in the working directory.
func (l *log) openFiles(began time.Time) error {
	stamp := began.Format("2006-01-02T15.04.05.000000")
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	base := filepath.Join(dir, "cotainr_build_"+stamp)
	const how = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if l.outFile, err = os.OpenFile(base+".out", how, 0o644); err == nil {
		l.errFile, err = os.OpenFile(base+".err", how, 0o644)
	}
	if err != nil {
		return fault.Hint(fmt.Errorf("--log-to-file: %w", err), "the files go to the working directory: change to one that may be written")
	}
	return nil
}

func (l *log) close() error {
	var err error
	for _, f := range []*os.File{l.outFile, l.errFile} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// least is the level from which on lines of cotainr's own are shown.
func (l *log) least() level {
	switch {
	case l.verbosity < 0:
		return critical
	case l.verbosity < 2:
		return info
	}
	return debug
}

// leastOfOthers is the same for what programs and the engine have to say.
func (l *log) leastOfOthers() level {
	switch {
	case l.verbosity < 0:
		return critical
	case l.verbosity == 0:
		return warning
	case l.verbosity < 3:
		return info
	}
	return debug
}

// say writes a line of cotainr's own.
func (l *log) say(at level, format string, args ...any) {
	if at < l.least() {
		return
	}
	text := fmt.Sprintf(format, args...)
	head := "Cotainr:-: "
	if at > info {
		head = "Cotainr:-:" + levelNames[at] + ": "
	}
	if l.verbosity >= 2 {
		head = fmt.Sprintf("%s - %s::Cotainr:-:%s: ", l.time(), caller(), levelNames[at])
	}
	l.write(at > info, at, head, text)
}

// tell writes a line that somebody else had to say: the engine ("Sconce.err"), or a program that it ran ("Sconce.out").
func (l *log) tell(at level, toErr bool, text string) {
	if at < l.leastOfOthers() {
		return
	}
	name := "Sconce.out"
	if toErr {
		name = "Sconce.err"
	}
	head := name + ":-: "
	if l.verbosity >= 3 {
		head = fmt.Sprintf("%s - %s:-:%s: ", l.time(), name, levelNames[at])
	}
	l.write(toErr, at, head, text)
}

// fail writes what went wrong, and what to do about it.
func (l *log) fail(err error) {
	l.say(critical, "%s", oneLine(err.Error()))
	if hint := fault.HintOf(err); hint != "" {
		l.say(critical, "hint: %s", oneLine(hint))
	}
}

// oneLine joins lines, for logs that are searched line by line.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "; ")
}

func (l *log) write(toErr bool, at level, head, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text = visible(text)
	w, file := l.out, l.outFile
	if toErr {
		w, file = l.err, l.errFile
	}
	if file != nil {
		fmt.Fprintf(file, "%s%s\n", head, text)
	}
	if l.color && levelColors[at] != "" {
		text = levelColors[at] + text + resetColor
	}
	fmt.Fprintf(w, "%s%s\n", head, text)
}

// time is the time of a line, as Python's logging writes it.
func (l *log) time() string { return l.now().Format("2006-01-02 15:04:05,000") }

// caller is the place that a line of our own comes from.
func caller() string {
	pc, file, line, _ := runtime.Caller(2)
	name := runtime.FuncForPC(pc).Name()
	name = name[strings.LastIndexByte(name, '.')+1:]
	return fmt.Sprintf("cotainr.%s::%s::%d", strings.TrimSuffix(filepath.Base(file), ".go"), name, line)
}
