// Package sbatch reads Slurm's job scripts: the directives for sbatch, those that sbatch does not see, and the commands with their
// options, also those in the text that bash -c is given.
//
// It runs nothing and expands nothing: a word has its variables in it as they are written. Nothing here judges: package lint does.
package sbatch

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Script is a job script.
type Script struct {
	Path       string
	Data       []byte
	Shebang    string      // its first line, without "#!"; "" when it has none
	Directives []Directive // that sbatch reads
	Late       []Directive // behind the first command, where it no longer looks
	Near       []Directive // comments that look like directives and are none: "#sbatch", "#SBTACH"
	Calls      []*Call     // in the order of the file
	Sets       []Assign    // likewise: variables that are set
	Err        *SyntaxError
}

// Directive is a line for sbatch.
type Directive struct {
	Line    int
	At      int    // of the line, in bytes
	Mark    string // the first word: "#SBATCH"
	Options []Option
}

// SyntaxError says where a script is no shell script. Directives are read all the same.
type SyntaxError struct {
	Line    int
	Message string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Message) }

// MaxSize bounds a script, in bytes. Slurm takes 4 MiB by default (slurm.conf, max_script_size).
const MaxSize = 4 << 20

// directive is what begins a line for sbatch.
const directive = "#SBATCH"

// Parse reads a script. It is lenient: what is wrong is told in the script's fields.
func Parse(path string, data []byte) *Script {
	s := &Script{Path: path, Data: data}
	if len(data) > MaxSize {
		s.Err = &SyntaxError{1, fmt.Sprintf("the file is larger than %d MiB", MaxSize>>20)}
		return s
	}
	if first, _, _ := bytes.Cut(data, []byte("\n")); bytes.HasPrefix(first, []byte("#!")) {
		s.Shebang = strings.TrimSpace(string(first[2:]))
	}
	s.readDirectives()
	if s.IsShell() {
		s.readShell()
	}
	return s
}

var shellName = lazyregexp.New(`\b(ba|da|k|z)?sh\b`)

// IsShell reports whether a shell runs the script, as far as is known.
func (s *Script) IsShell() bool { return s.Shebang == "" || shellName.MatchString(s.Shebang) }

// readDirectives sorts the lines that begin like directives. sbatch stops at the first line that is neither empty nor a comment.
func (s *Script) readDirectives() {
	open, at := true, 0
	for i, line := range bytes.SplitAfter(s.Data, []byte("\n")) {
		text := strings.TrimRight(string(line), "\r\n")
		switch mark, _, _ := strings.Cut(strings.ReplaceAll(text, "\t", " "), " "); {
		case mark == directive && open:
			s.Directives = append(s.Directives, directiveOf(text, i+1, at))
		case mark == directive:
			s.Late = append(s.Late, directiveOf(text, i+1, at))
		case isNear(mark, text):
			s.Near = append(s.Near, directiveOf(text, i+1, at))
		}
		if trimmed := strings.TrimSpace(text); trimmed != "" && trimmed[0] != '#' {
			open = false
		}
		at += len(line)
	}
}

// isNear reports whether a line was meant as a directive: the word in other letters, or one letter wrong or two swapped.
func isNear(mark, text string) bool {
	if len(mark) < len(directive)-1 || len(mark) > len(directive)+1 || mark[0] != '#' || mark == directive {
		return false
	}
	if rest := strings.TrimLeft(text[len(mark):], " \t"); !strings.HasPrefix(rest, "-") {
		return false
	}
	letters := func(s string) string {
		b := []byte(strings.ToUpper(s))
		slices.Sort(b)
		return string(b)
	}
	return strings.EqualFold(mark, directive) || letters(mark) == letters(directive)
}

// directiveOf reads the options of a directive, which sbatch cuts into words itself: with quotes, and up to a comment.
func directiveOf(text string, line, at int) Directive {
	mark := text[:strings.IndexAny(text+" ", " \t")]
	d := Directive{Line: line, At: at, Mark: mark}
	var words []Word
	for i := len(mark); i < len(text); {
		if text[i] == ' ' || text[i] == '\t' {
			i++
			continue
		}
		if text[i] == '#' {
			break
		}
		w, next := directiveWord(text, i)
		w.At += at
		words, i = append(words, w), next
	}
	d.Options, _ = parseOptions(words, true)
	return d
}

func directiveWord(text string, i int) (Word, int) {
	w := Word{At: i, Fixed: true}
	var b strings.Builder
	quote := byte(0)
	for ; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == 0 && (c == ' ' || c == '\t'):
			w.Text = b.String()
			return w, i
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	w.Text = b.String()
	return w, i
}

// Options are those of all directives that count, in order.
func (s *Script) Options() []Option {
	var all []Option
	for _, d := range s.Directives {
		all = append(all, d.Options...)
	}
	return all
}

// readShell finds the commands. Where bash could not read the script, there are none.
func (s *Script) readShell() {
	variant := syntax.LangBash
	if strings.HasSuffix(s.Shebang, "zsh") || strings.HasSuffix(s.Shebang, "ksh") {
		return // other grammars
	}
	f, err := syntax.NewParser(syntax.Variant(variant), syntax.KeepComments(true)).Parse(bytes.NewReader(s.Data), "")
	if err != nil {
		s.Err = shellError(err)
		return
	}
	w := &walker{script: s, data: s.Data}
	_, flags, _ := strings.Cut(s.Shebang, " -")
	w.traced = strings.Contains(flags, "x")
	w.statements(f)
	s.leaveComments(f)
}

// leaveComments drops lines that only look like directives: those within a text that the script writes, such as another script.
func (s *Script) leaveComments(f *syntax.File) {
	comments := map[int]bool{}
	syntax.Walk(f, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.Comment); ok {
			comments[int(c.Hash.Offset())] = true
		}
		return true
	})
	other := func(d Directive) bool { return !comments[d.At] }
	s.Late = slices.DeleteFunc(s.Late, other)
	s.Near = slices.DeleteFunc(s.Near, other)
}

func shellError(err error) *SyntaxError {
	if parse := (syntax.ParseError{}); errors.As(err, &parse) {
		return &SyntaxError{int(parse.Pos.Line()), parse.Text}
	}
	return &SyntaxError{1, err.Error()}
}
