package ui

import (
	"fmt"
	"time"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/units"
)

// batch collects tasks of one kind that were done in a moment, so that a hundred small downloads are one line.
type batch struct {
	verb        string
	count       int
	bytes       int64
	first, last time.Time
	line        string // of the only one
}

const (
	momentary  = time.Second      // a task that took less may share a line
	batchQuiet = time.Second      // so long after the last task a batch is complete
	batchLimit = 10 * time.Second // so long a batch may collect
)

// takes reports whether a task that ended with e may share a line with those that are here.
func (b *batch) takes(t *task, e progress.Event) bool {
	return e.Kind == progress.Done && e.Time.Sub(t.started) < momentary && (b.count == 0 || b.verb == t.verb)
}

// add adds a task that ended with e; line is what would be said of it alone.
func (b *batch) add(t *task, e progress.Event, line string) {
	if b.count == 0 {
		*b = batch{verb: t.verb, first: t.started, line: line}
	}
	b.count++
	b.bytes += e.Current
	b.last = e.Time
	if t.started.Before(b.first) {
		b.first = t.started
	}
}

// due reports whether it is time to say what is here.
func (b *batch) due(now time.Time) bool {
	return b.count > 0 && (now.Sub(b.last) >= batchQuiet || now.Sub(b.first) >= batchLimit)
}

// take returns what is to be said, in whole lines, and empties the batch.
func (b *batch) take(s style) string {
	done := *b
	*b = batch{}
	switch done.count {
	case 0:
		return ""
	case 1:
		return done.line
	}
	return fmt.Sprintf("%s: %d tasks %s%s\n", done.verb, done.count, s.done(), figuresOf(done.bytes, done.last.Sub(done.first)))
}

// worthTelling is how long a task takes whose time is worth telling.
const worthTelling = 100 * time.Millisecond

// figuresOf is what follows "done": how many bytes, and in what time.
func figuresOf(bytes int64, took time.Duration) string {
	text := ""
	if bytes > 0 {
		text = ", " + units.Size(bytes)
	}
	if took >= worthTelling {
		text += " in " + units.Duration(took)
	}
	return text
}

// ended returns what is to be said now that a task has ended: nothing yet if it joins the batch.
func (b *batch) ended(t *task, e progress.Event, verbose bool, s style) string {
	line := ending(t, e, verbose, s)
	if line == "" {
		return ""
	}
	if verbose {
		return line
	}
	if b.takes(t, e) {
		b.add(t, e, line)
		return ""
	}
	before := b.take(s)
	if b.takes(t, e) {
		b.add(t, e, line)
		return before
	}
	return before + line
}
