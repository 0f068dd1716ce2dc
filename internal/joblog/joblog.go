// Package joblog finds in the log of a job why it failed, as far as that is known.
//
// A [Cause] is known by what a program prints: CUDA, NCCL, PyTorch, the dynamic linker, Slurm, the kernel. Each line of the log is
// looked at by itself, so a log may be of any length; see causes.go for the causes.
package joblog

import (
	"bufio"
	"bytes"
	"cmp"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Role says what a finding has to do with the failure.
type Role string

// The roles, in the order in which findings are returned.
const (
	Failure     Role = "cause"       // it ends a job
	Consequence Role = "consequence" // it mostly follows from something that was said before, or by another process
	Slowness    Role = "slow"        // the job runs, and takes longer than it could
)

// Cause is something known that makes jobs fail.
type Cause struct {
	ID     string `json:"id"`
	Role   Role   `json:"role"`
	Title  string `json:"message"` // what is wrong; of [Causes] a template, in which $1 is a name from the log
	Remedy string `json:"remedy"`  // likewise
	Rule   string `json:"rule,omitempty"`
	Tool   string `json:"tool,omitempty"` // the command that has the rule, and would have told it before the job: "check" or "lint"

	form *regexp.Regexp
	clue [][]byte // one of them is in each line that the form is in; looked for first, as most lines are about nothing
	but  []byte   // a line with it means something else
}

// Finding is a cause with its evidence.
type Finding struct {
	Cause
	Line  int    `json:"line"`  // the first line that shows it, from 1
	Text  string `json:"text"`  // that line, at most maxText bytes of it, as the program printed it
	Lines int    `json:"lines"` // how many lines show it
}

// Limits.
const (
	maxLine = 16 << 10 // bytes looked at in one piece: longer lines are looked at piece by piece
	maxText = 400      // bytes of evidence
)

// Causes returns all causes, with templates for texts.
func Causes() []Cause { return slices.Clone(causes) }

// Explain reads a log to its end and returns what it knows of it, causes of the failure first, and among these what was said first. It
// needs memory for one line. The error is the reader's; what was found before it is returned too.
func Explain(log io.Reader) ([]Finding, error) {
	found := map[string]*Finding{}
	lines := bufio.NewScanner(log)
	lines.Buffer(make([]byte, maxLine), maxLine)
	lines.Split(pieces)
	number := 1
	for lines.Scan() {
		piece := lines.Bytes()
		if c, m := causeOf(piece); c != nil {
			note(found, c, m, piece, number)
		}
		if bytes.HasSuffix(piece, []byte("\n")) {
			number++
		}
	}
	all := make([]Finding, 0, len(found))
	for _, f := range found {
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank(a.Role), rank(b.Role)), cmp.Compare(a.Line, b.Line), strings.Compare(a.ID, b.ID))
	})
	return all, lines.Err()
}

func rank(r Role) int { return slices.Index([]Role{Failure, Consequence, Slowness}, r) }

// pieces splits a log into lines with their ends. A carriage return ends one too: bars of progress are one long line otherwise.
func pieces(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if len(data) == maxLine || atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// causeOf returns the first cause that a line shows, and where the form is in it; nil when it shows none.
func causeOf(line []byte) (*Cause, []int) {
	for i := range causes {
		c := &causes[i]
		if !slices.ContainsFunc(c.clue, func(clue []byte) bool { return bytes.Contains(line, clue) }) {
			continue
		}
		if len(c.but) > 0 && bytes.Contains(line, c.but) {
			continue
		}
		if m := c.form.FindSubmatchIndex(line); m != nil {
			return c, m
		}
	}
	return nil, nil
}

// note counts a line as evidence. Of each cause the first line is kept.
func note(found map[string]*Finding, c *Cause, m []int, line []byte, number int) {
	if f := found[c.ID]; f != nil {
		f.Lines++
		return
	}
	f := &Finding{Cause: *c, Line: number, Text: excerpt(line, m[0]), Lines: 1}
	fill := func(template string) string { return valid(c.form.Expand(nil, []byte(template), line, m)) }
	f.Title, f.Remedy = fill(c.Title), fill(c.Remedy)
	found[c.ID] = f
}

func valid(text []byte) string { return strings.ToValidUTF8(string(text), "\uFFFD") }

// excerpt returns a line, or of a long one what is from the evidence on.
func excerpt(line []byte, at int) string {
	text := bytes.TrimSpace(line)
	if len(text) > maxText {
		text = bytes.TrimSpace(line[at:])
	}
	return valid(text[:min(len(text), maxText)])
}
