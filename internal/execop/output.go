package execop

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/units"
)

// Limits on what a command prints. They keep one that prints without end, or no line at all, from taking the machine's memory
// or disk.
const (
	maxLine    = 64 << 10  // bytes that make one line at most
	maxShown   = 2 << 10   // bytes of it that progress and the tail show
	maxLog     = 128 << 20 // bytes of a log
	tailLines  = 20        // of a failure
	clueLines  = 200       // at the end of the output, in which the cause of a failure is looked for
	barsEvery  = time.Second / 2
	maskedText = "***"
)

// output takes what a command prints: whole lines become progress and go to the log. Of a line that was printed over (progress
// bars do that) only the last state counts. It is used by one goroutine.
type output struct {
	task *progress.Task
	file *os.File
	log  *bufio.Writer
	mask masker

	line    []byte
	cr      bool // a carriage return came last
	bar     time.Time
	size    int64 // of the log, in bytes
	limit   int64
	last    []string // the last lines, in a ring
	count   int      // of lines
	clues   [2]int   // number of the last line that speaks of memory, of the disk; 0 for none
	err     error
	closed  bool
	dropped bool
}

func newOutput(task *progress.Task, file *os.File, mask masker) *output {
	return &output{task: task, file: file, log: bufio.NewWriterSize(file, 64<<10), mask: mask, limit: maxLog}
}

func (o *output) Write(p []byte) (int, error) {
	o.split(o.mask.feed(p))
	o.flush()          // people follow the log of a long step
	return len(p), nil // a log that cannot be written must not end the command with SIGPIPE
}

func (o *output) split(p []byte) {
	for len(p) > 0 {
		if o.cr {
			o.cr = false
			if p[0] != '\n' {
				o.overprint()
			}
		}
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			o.extend(p)
			return
		}
		o.extend(p[:i])
		if p[i] == '\r' {
			o.cr = true
		} else {
			o.endLine()
		}
		p = p[i+1:]
	}
}

// extend adds to the line, which is cut when it gets too long.
func (o *output) extend(p []byte) {
	for len(o.line)+len(p) > maxLine {
		n := maxLine - len(o.line)
		for n > 0 && n > maxLine-len(o.line)-utf8.UTFMax && !utf8.RuneStart(p[n]) {
			n--
		}
		o.line = append(o.line, p[:n]...)
		o.endLine()
		p = p[n:]
	}
	o.line = append(o.line, p...)
}

// overprint forgets a line that is printed over, and shows it now and then.
func (o *output) overprint() {
	if now := time.Now(); now.Sub(o.bar) >= barsEvery && !o.dropped {
		o.bar = now
		if text := clean(o.line); text != "" {
			o.task.Log(cut(text))
		}
	}
	o.line = o.line[:0]
}

func (o *output) endLine() {
	text := clean(o.line)
	o.line = o.line[:0]
	o.count++
	shown := cut(text)
	if len(o.last) < tailLines {
		o.last = append(o.last, shown)
	} else {
		o.last[(o.count-1)%tailLines] = shown
	}
	o.look(shown)
	if o.dropped {
		return
	}
	if o.size += int64(len(text)) + 1; o.size > o.limit {
		o.dropped = true
		text = fmt.Sprintf("[the output beyond %s is left out]", units.Size(o.limit))
		shown = text
	}
	o.task.Log(shown)
	_, err := o.log.WriteString(text + "\n")
	if o.err == nil {
		o.err = err
	}
}

// look looks for a clue. Most lines have none of these parts of words, which takes much less time to see.
func (o *output) look(line string) {
	if !slices.ContainsFunc([]string{"emory", "EMORY", "illed", "_alloc", "ignal", "pace", "uota"}, func(part string) bool { return strings.Contains(line, part) }) {
		return
	}
	for i, words := range []*lazyregexp.Regexp{memoryWords, diskWords} {
		if words.MatchString(line) {
			o.clues[i] = o.count
		}
	}
}

// Close ends the last line and the log. It may be called again.
func (o *output) Close() error {
	if o.closed {
		return nil
	}
	o.closed = true
	o.split(o.mask.rest())
	if len(o.line) > 0 {
		o.endLine()
	}
	o.flush()
	if err := o.file.Close(); o.err == nil {
		o.err = err
	}
	if o.err != nil {
		return fmt.Errorf("write the log of the step: %w", o.err)
	}
	return nil
}

func (o *output) flush() {
	if err := o.log.Flush(); o.err == nil {
		o.err = err
	}
}

// tail returns the last lines.
func (o *output) tail() []string {
	if o.count <= tailLines {
		return slices.Clone(o.last)
	}
	at := o.count % tailLines
	return slices.Concat(o.last[at:], o.last[:at])
}

// speaksOf reports whether one of the last lines holds a clue.
func (o *output) speaksOf(clue int) bool {
	return o.clues[clue] > 0 && o.count-o.clues[clue] < clueLines
}

// The clues of output.clues.
const (
	memoryClue = iota
	diskClue
)

// escapes are what terminals take as commands (ECMA-48): colours, the cursor, titles.
var escapes = lazyregexp.New(`\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]`)

// clean makes text of a line: without commands to a terminal, and with a mark in place of what is not UTF-8.
func clean(line []byte) string {
	plain := true
	for _, c := range line {
		plain = plain && (c >= ' ' && c < 0x7f || c == '\t')
	}
	if plain {
		return string(line)
	}
	text := escapes.ReplaceAllString(strings.ToValidUTF8(string(line), string(utf8.RuneError)), "")
	return strings.Map(func(r rune) rune {
		if r != '\t' && quote.Harmful(r) {
			return -1
		}
		return r
	}, text)
}

// cut shortens a line to what is shown of it.
func cut(text string) string {
	if len(text) <= maxShown {
		return text
	}
	n := maxShown
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// masker hides secrets in a stream, wherever its pieces begin and end.
type masker struct {
	secrets [][]byte // the longest first
	starts  [256]bool
	held    []byte // the end of what came, which may be the beginning of a secret
}

// minSecret is how long a secret must be to be hidden, in bytes: shorter ones are in every text. It is the same for a line of
// one with several.
const minSecret = 3

// add makes sure that a secret is hidden: all of it, and each of its lines.
func (m *masker) add(secret []byte) {
	for _, part := range append([][]byte{bytes.Trim(secret, "\r\n"), bytes.TrimSpace(secret)}, bytes.FieldsFunc(secret, func(r rune) bool { return r == '\n' || r == '\r' })...) {
		if len(part) < minSecret || slices.ContainsFunc(m.secrets, func(s []byte) bool { return bytes.Equal(s, part) }) {
			continue
		}
		m.secrets = append(m.secrets, bytes.Clone(part))
		m.starts[part[0]] = true
	}
	slices.SortStableFunc(m.secrets, func(a, b []byte) int { return len(b) - len(a) })
}

// feed takes a piece of the stream and returns what can be shown by now.
func (m *masker) feed(p []byte) []byte {
	if len(m.secrets) == 0 {
		return p
	}
	return m.hide(append(m.held, p...), false)
}

// rest returns what is left at the end.
func (m *masker) rest() []byte { return m.hide(m.held, true) }

func (m *masker) hide(p []byte, end bool) []byte {
	shown := make([]byte, 0, len(p))
	for i := 0; i < len(p); {
		if !m.starts[p[i]] {
			shown = append(shown, p[i])
			i++
			continue
		}
		n, more := m.match(p[i:])
		switch {
		case more && !end:
			m.held = bytes.Clone(p[i:])
			return shown
		case n > 0:
			shown = append(shown, maskedText...)
			i += n
		default:
			shown = append(shown, p[i])
			i++
		}
	}
	m.held = nil
	return shown
}

// match returns how long the longest secret is that p starts with, and whether a longer one may be coming.
func (m *masker) match(p []byte) (n int, more bool) {
	for _, s := range m.secrets {
		if len(s) > len(p) {
			more = more || bytes.HasPrefix(s, p)
		} else if bytes.HasPrefix(p, s) {
			return len(s), more
		}
	}
	return 0, more
}
