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
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
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

	form   *lazyregexp.Regexp
	states []string // of Slurm, that say the same
	clue   [][]byte // one of them is in each line that the form is in; looked for first, as most lines are about nothing
	but    []byte   // a line with it means something else
}

// Finding is a cause with its evidence.
type Finding struct {
	Cause
	Line  int    `json:"line"`  // the first line that shows it, from 1; 0 of what [OfState] says
	Text  string `json:"text"`  // that line, at most maxText bytes of it, as the program printed it
	Lines int    `json:"lines"` // how many lines show it
}

// OfState returns what Slurm's state of a job that has ended says by itself, whatever is in its log: Slurm tells a job's time, a node's
// failure and a preemption often to nobody but its own books. The finding has no line.
func OfState(state string) (Finding, bool) {
	for _, c := range causes {
		if slices.Contains(c.states, state) {
			return Finding{Cause: c, Text: "JobState=" + state}, true
		}
	}
	return Finding{}, false
}

// Limits.
const (
	maxBlock = 256 << 10 // bytes read at once: most blocks have no clue, and their lines are not looked at
	maxLine  = 16 << 10  // bytes of a line looked at in one piece: longer lines are looked at piece by piece
	maxText  = 400       // bytes of evidence, and of a sentence with names from a log
)

// Causes returns all causes, with templates for texts.
func Causes() []Cause { return slices.Clone(causes) }

// Explain reads a log to its end and returns what it knows of it, causes of the failure first, and among these what was said first. It
// needs memory for one block. The error is the reader's; what was found before it is returned too.
func Explain(log io.Reader) ([]Finding, error) {
	found := map[string]*Finding{}
	all := bufio.NewScanner(log)
	all.Buffer(make([]byte, maxBlock), maxBlock)
	all.Split(blocks)
	number := 1
	for all.Scan() {
		if likely := causesIn(all.Bytes(), causes); len(likely) > 0 {
			explainBlock(found, all.Bytes(), likely, number)
		}
		number += bytes.Count(all.Bytes(), []byte("\n"))
	}
	list := make([]Finding, 0, len(found))
	for _, f := range found {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank(a.Role), rank(b.Role)), cmp.Compare(a.Line, b.Line), strings.Compare(a.ID, b.ID))
	})
	return list, all.Err()
}

func rank(r Role) int { return slices.Index([]Role{Failure, Consequence, Slowness}, r) }

// ends are what ends a line. A carriage return does too: bars of progress are one long line otherwise.
const ends = "\r\n"

// blocks splits a log into blocks of whole lines, of which one that is longer than a block is cut.
func blocks(data []byte, atEOF bool) (int, []byte, error) {
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	if len(data) < maxBlock {
		return 0, nil, nil
	}
	if i := bytes.LastIndexAny(data, ends); i >= 0 {
		data = data[:i+1]
	}
	return len(data), data, nil
}

// explainBlock looks for some causes in each line of a block, which begins with the line of that number.
func explainBlock(found map[string]*Finding, block []byte, likely []*Cause, number int) {
	for len(block) > 0 {
		line := block[:min(len(block), maxLine)]
		if i := bytes.IndexAny(line, ends); i >= 0 {
			line = line[:i+1]
		}
		for _, c := range likely {
			if m := c.in(line); m != nil {
				note(found, c, m, line, number)
				break // of several the first one, which is the most special
			}
		}
		if line[len(line)-1] == '\n' {
			number++
		}
		block = block[len(line):]
	}
}

// causesIn returns the causes of which a text has a clue.
func causesIn(text []byte, causes []Cause) []*Cause {
	var likely []*Cause
	for i := range causes {
		if causes[i].hasClue(text) {
			likely = append(likely, &causes[i])
		}
	}
	return likely
}

func (c *Cause) hasClue(text []byte) bool {
	return slices.ContainsFunc(c.clue, func(clue []byte) bool { return bytes.Contains(text, clue) })
}

// in returns where a line shows the cause, nil when it does not.
func (c *Cause) in(line []byte) []int {
	if !c.hasClue(line) || len(c.but) > 0 && bytes.Contains(line, c.but) {
		return nil
	}
	return c.form.Regexp().FindSubmatchIndex(line)
}

// note counts a line as evidence. Of each cause the first line is kept.
func note(found map[string]*Finding, c *Cause, m []int, line []byte, number int) {
	if f := found[c.ID]; f != nil {
		f.Lines++
		return
	}
	f := &Finding{Cause: *c, Line: number, Text: excerpt(line, m[0]), Lines: 1}
	fill := func(template string) string { return valid(c.form.Regexp().Expand(nil, []byte(template), line, m)) }
	f.Title, f.Remedy = fill(c.Title), fill(c.Remedy)
	found[c.ID] = f
}

// valid returns text that can be shown, and no more than is read.
func valid(text []byte) string {
	return strings.ToValidUTF8(string(text[:min(len(text), maxText)]), "\uFFFD")
}

// excerpt returns a line, or of a long one what is from the evidence on.
func excerpt(line []byte, at int) string {
	text := bytes.TrimSpace(line)
	if len(text) > maxText {
		text = bytes.TrimSpace(line[at:])
	}
	return valid(text)
}
