package ui

import (
	"fmt"
	"io"
	"strings"
	"time"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/units"
)

// plainView prints lines that scroll, for logs of batch jobs. A task that takes a moment gets a line when it begins, one
// every progressEvery, and each gets one when it has ended.
type plainView struct {
	w      io.Writer
	opts   Options
	style  style
	active tasks
	quick  batch
}

const (
	announceAfter = time.Second      // a task that is done by then needs no line for its beginning
	progressEvery = 10 * time.Second // between two lines of one task
)

func newPlain(w io.Writer, o Options) *plainView {
	return &plainView{w: w, opts: o, style: style{o.Color}}
}

func (p *plainView) errorText() bool { return true }
func (p *plainView) close()          { p.flush() }
func (p *plainView) flush()          { fmt.Fprint(p.w, p.quick.take(p.style)) }

func (p *plainView) event(e progress.Event) {
	t := p.active.find(e.Task)
	switch {
	case e.Kind == progress.Start:
		p.active = append(p.active, newTask(e))
	case e.Kind == progress.Warning || e.Kind == progress.Note:
		p.flush()
		fmt.Fprint(p.w, p.style.message(e))
	case t == nil: // a late report of a task that has ended
	case e.Kind == progress.Progress:
		t.progress(e)
	case e.Kind == progress.Log:
		p.log(t, e)
	default:
		p.active = p.active.without(t)
		fmt.Fprint(p.w, p.quick.ended(t, e, p.opts.Verbose, p.style))
	}
}

func (p *plainView) log(t *task, e progress.Event) {
	line := Clean(lastLine(e.Text))
	t.addLog(line)
	if p.opts.Verbose {
		fmt.Fprintf(p.w, "%s | %s\n", t.title, line)
	}
}

func (p *plainView) tick(now time.Time) {
	if p.quick.due(now) {
		p.flush()
	}
	for _, t := range p.active {
		if !t.said && now.Sub(t.started) >= announceAfter {
			t.said = true
			fmt.Fprintln(p.w, t.title+totalNote(t))
		}
		if now.Sub(t.told) >= progressEvery {
			t.told = now
			fmt.Fprintln(p.w, t.title+": "+progressText(t, now)+p.lastWords(t))
		}
	}
}

func totalNote(t *task) string {
	if t.total == 0 {
		return ""
	}
	return " (" + units.Size(t.total) + ")"
}

// lastWords is the line that a command printed last, unless all of them are shown.
func (p *plainView) lastWords(t *task) string {
	if p.opts.Verbose || len(t.log) == 0 {
		return ""
	}
	return " | " + Cut(t.log[len(t.log)-1], 100)
}

// progressText says how far a task is: "120.0 MB of 865.0 MB, 12.0 MB/s, 1m02s left".
func progressText(t *task, now time.Time) string {
	if t.current == 0 && t.total == 0 {
		return "running for " + units.Duration(now.Sub(t.started))
	}
	parts := []string{units.Size(t.current)}
	if t.total > 0 {
		parts[0] += " of " + units.Size(t.total)
	}
	if r := t.meter.rate(); r > 0 {
		parts = append(parts, units.Size(int64(r))+"/s")
	}
	if left := t.left(); left > 0 {
		parts = append(parts, units.Coarse(left)+" left")
	}
	return strings.Join(parts, ", ")
}

// ending says how a task ended, in whole lines, or "" when that is not worth one: nothing had to be done, or the user
// interrupted.
func ending(t *task, e progress.Event, verbose bool, s style) string {
	took := e.Time.Sub(t.started)
	switch e.Kind {
	case progress.Done:
		return fmt.Sprintf("%s: %s%s\n", t.title, s.done(), figuresOf(e.Current, took))
	case progress.Cached:
		if verbose {
			return t.title + ": nothing to do\n"
		}
	case progress.Failed:
		if strings.HasSuffix(e.Err, "context canceled") && !verbose {
			return ""
		}
		return failure(t, units.Duration(took), verbose, s)
	}
	return ""
}

// failure shows what the program of a failed task printed, unless it was shown all along. The error itself, which says
// what failed, comes at the end, from PrintError.
func failure(t *task, took string, verbose bool, s style) string {
	if len(t.log) == 0 && !verbose {
		return ""
	}
	var b strings.Builder
	if !verbose {
		for _, line := range t.log {
			fmt.Fprintf(&b, "%s | %s\n", t.title, line)
		}
	}
	fmt.Fprintf(&b, "%s: %s after %s\n", t.title, s.bad("failed"), took)
	return b.String()
}

// quietView shows warnings only, and waits that last: who hears nothing for long should know why.
type quietView struct {
	w     io.Writer
	color bool
}

func (q *quietView) errorText() bool { return true }
func (q *quietView) tick(time.Time)  {}
func (q *quietView) close()          {}
func (q *quietView) flush()          {}

// lastingWait is how long a wait must have lasted for a line where only warnings are wanted: shorter ones are the usual ways of locks and
// servers.
const lastingWait = 10 * time.Second

func (q *quietView) event(e progress.Event) {
	if e.Kind == progress.Warning || e.Waited >= lastingWait.Seconds() {
		fmt.Fprint(q.w, style{q.color}.message(e))
	}
}
