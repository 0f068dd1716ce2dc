// Package progress is the one stream of progress that every part of sconce writes to and that internal/ui renders.
//
// The core never prints. It starts a [Task], adds to its counter, and ends it; whoever placed a [Sink] in the context
// (see [With]) decides what a person sees: a live view, plain lines or JSON. Without a sink everything is discarded.
// The shape (vertex, status, log) is the one BuildKit uses on the wire.
package progress

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"
)

// Kind says what an [Event] reports.
type Kind string

// The kinds of event, in the order a task may emit them.
const (
	Start    Kind = "start"    // a task begins; Name, Verb and, when known, Total are set
	Progress Kind = "progress" // Current (and perhaps Total) changed
	Log      Kind = "log"      // Text is a line that the task's program printed
	Done     Kind = "done"     // the task ended well
	Cached   Kind = "cached"   // the task had nothing to do
	Failed   Kind = "failed"   // the task ended with Err
	Warning  Kind = "warning"  // Text is something the user should know; Hint says what to do about it
	Note     Kind = "note"     // Text is worth a line, and asks for nothing
)

// Event is one thing that happened. Task is empty for a Warning or Note that belongs to no task.
type Event struct {
	Time    time.Time `json:"time"`
	Kind    Kind      `json:"kind"`
	Task    string    `json:"task,omitempty"`    // identifies the task within this process
	Verb    string    `json:"verb,omitempty"`    // what is done: "pull", "download", "layer", …
	Name    string    `json:"name,omitempty"`    // what it is done to
	Current int64     `json:"current,omitempty"` // bytes so far
	Total   int64     `json:"total,omitempty"`   // bytes in all, 0 when unknown
	Text    string    `json:"text,omitempty"`
	Hint    string    `json:"hint,omitempty"`
	Waited  float64   `json:"waited,omitempty"` // seconds: the Note is about a wait that has lasted so long
	Err     string    `json:"error,omitempty"`
}

// Sink receives events. Emit may be called from many goroutines at once and must not block for long.
type Sink interface {
	Emit(Event)
}

type contextKey struct{}

// With returns a context whose tasks report to s.
func With(ctx context.Context, s Sink) context.Context {
	return context.WithValue(ctx, contextKey{}, s)
}

func emit(ctx context.Context, e Event) {
	if s, ok := ctx.Value(contextKey{}).(Sink); ok {
		e.Time = time.Now()
		s.Emit(e)
	}
}

// Warn reports something the user should know, and what to do about it (hint may be empty).
func Warn(ctx context.Context, text, hint string) {
	emit(ctx, Event{Kind: Warning, Text: text, Hint: hint})
}

// Notef reports a line of information that belongs to no task.
func Notef(ctx context.Context, text string) {
	emit(ctx, Event{Kind: Note, Text: text})
}

// Wait reports, as a note, for whom or what something waits, and for how long it has waited by now. Waits that last are shown to
// whoever wants to see warnings only as well.
func Wait(ctx context.Context, text string, waited time.Duration) {
	emit(ctx, Event{Kind: Note, Text: text, Waited: waited.Seconds()})
}

// Waiting is [Wait] in ctx, for those who wait in a package that reports nothing.
func Waiting(ctx context.Context) func(text string, waited time.Duration) {
	return func(text string, waited time.Duration) { Wait(ctx, text, waited) }
}

// progressInterval bounds how often one task reports its counter: often enough for a live view, rarely enough
// that a fast copy is not slowed down.
const progressInterval = 50 * time.Millisecond

// Task is one piece of work in progress. Its methods may be called from many goroutines.
type Task struct {
	ctx      context.Context
	id       string
	verb     string
	name     string
	total    atomic.Int64
	current  atomic.Int64
	reported atomic.Int64 // Unix nanoseconds of the last Progress event
}

var lastID atomic.Int64

// Begin starts a task. total is in bytes, 0 when unknown.
func Begin(ctx context.Context, verb, name string, total int64) *Task {
	t := &Task{ctx: ctx, id: strconv.FormatInt(lastID.Add(1), 10), verb: verb, name: name}
	t.total.Store(total)
	t.emit(Event{Kind: Start, Total: total})
	return t
}

func (t *Task) emit(e Event) {
	e.Task, e.Verb, e.Name = t.id, t.verb, t.name
	emit(t.ctx, e)
}

// SetTotal corrects the number of bytes in all, once it is known.
func (t *Task) SetTotal(n int64) { t.total.Store(n) }

// SetCurrent sets the counter, as when a download resumes in the middle.
func (t *Task) SetCurrent(n int64) {
	t.current.Store(n)
	t.report()
}

// Add moves the counter forward by n bytes.
func (t *Task) Add(n int64) {
	t.current.Add(n)
	t.report()
}

func (t *Task) report() {
	now, last := time.Now().UnixNano(), t.reported.Load()
	if now-last < int64(progressInterval) || !t.reported.CompareAndSwap(last, now) {
		return
	}
	t.emit(Event{Kind: Progress, Current: t.current.Load(), Total: t.total.Load()})
}

// Write counts len(p) bytes, so that a Task can be the other side of an io.TeeReader or io.MultiWriter.
func (t *Task) Write(p []byte) (int, error) {
	t.Add(int64(len(p)))
	return len(p), nil
}

// Log reports a line that the task's program printed.
func (t *Task) Log(line string) { t.emit(Event{Kind: Log, Text: line}) }

// End ends the task: well when err is nil, else as failed. It returns err, so that a function can end with it.
func (t *Task) End(err error) error {
	if err != nil {
		t.emit(Event{Kind: Failed, Err: err.Error()})
		return err
	}
	t.emit(Event{Kind: Done, Current: t.current.Load(), Total: t.total.Load()})
	return nil
}

// EndCached ends the task as having had nothing to do.
func (t *Task) EndCached() { t.emit(Event{Kind: Cached}) }
