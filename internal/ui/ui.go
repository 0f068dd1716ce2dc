// Package ui turns the stream of events into what a person or a program reads: a live view on a terminal, plain lines in
// a batch log, or JSON. It also prints errors. It writes to the one stream it is given, stderr as a rule; stdout
// is for data and belongs to internal/cli.
//
// Whatever comes from outside (file names, log lines, answers of servers) passes [Clean] or [CleanLines] before it
// reaches the terminal, so that it cannot move the cursor or hide text.
package ui

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"sconce.dev/sconce/internal/progress"
)

// Mode is a way to show progress.
type Mode string

// The modes, as the flag --progress names them.
const (
	Auto  Mode = "auto"  // TTY on a capable terminal, else Plain
	TTY   Mode = "tty"   // a live view
	Plain Mode = "plain" // lines that scroll
	JSON  Mode = "json"  // one event per line
	Quiet Mode = "quiet" // warnings, and waits that last
)

// Modes lists the modes for help and completion.
var Modes = []Mode{Auto, TTY, Plain, JSON, Quiet}

// ParseMode checks a mode given by the user.
func ParseMode(s string) (Mode, error) {
	names := make([]string, len(Modes))
	for i, m := range Modes {
		if s == string(m) {
			return m, nil
		}
		names[i] = string(m)
	}
	return "", fmt.Errorf("--progress %q: it is one of %s", s, strings.Join(names, ", "))
}

// Options says how to show progress.
type Options struct {
	Mode    Mode
	Verbose bool // show the lines that programs print, and what had nothing to do
	Color   bool
}

// View shows events until it is closed. It is an [progress.Sink].
type View struct {
	opts Options
	mode Mode // never Auto

	mu     sync.Mutex // guards all below
	view   view
	closed bool
	stop   chan struct{}
}

// view is one way to show events. Its methods are called one at a time.
type view interface {
	event(progress.Event)
	tick(now time.Time) // called every tickInterval
	flush()             // called before others write to the terminal
	close()
	errorText() bool // whether errors are printed as text
}

// tickInterval is how often a view may redraw.
const tickInterval = 100 * time.Millisecond

// New starts a view that writes to w.
func New(w io.Writer, o Options) *View {
	v := &View{opts: o, mode: choose(w, o.Mode), stop: make(chan struct{})}
	switch v.mode {
	case TTY:
		v.view = newTTY(w, o)
	case JSON:
		v.view = &jsonView{w: w}
	case Quiet:
		v.view = &quietView{w: w, color: o.Color}
	default:
		v.view = newPlain(w, o)
	}
	go v.run()
	return v
}

// choose decides what Auto means for w.
func choose(w io.Writer, m Mode) Mode {
	if m != Auto && m != "" {
		return m
	}
	if IsTerminal(w) && os.Getenv("TERM") != "dumb" && os.Getenv("CI") == "" {
		return TTY
	}
	return Plain
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// WantColor reports whether to write colour to w: to a terminal, unless NO_COLOR is set (see no-color.org) or TERM is
// "dumb".
func WantColor(w io.Writer) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Mode returns how events are shown.
func (v *View) Mode() Mode { return v.mode }

// Emit shows an event.
func (v *View) Emit(e progress.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.view.event(e)
	}
}

func (v *View) run() {
	t := time.NewTicker(tickInterval)
	defer t.Stop()
	for {
		select {
		case <-v.stop:
			return
		case now := <-t.C:
			v.mu.Lock()
			if !v.closed {
				v.view.tick(now)
			}
			v.mu.Unlock()
		}
	}
}

// Flush shows all that was reported so far, and makes room for what others write to the same terminal.
func (v *View) Flush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.view.flush()
	}
}

// Close ends the view and leaves the terminal as it was: the live part is gone, finished lines stay. Later events
// are dropped. It may be called more than once.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.closed = true
	close(v.stop)
	v.view.close()
}
