package cotainr

import (
	"strings"

	"sconce.dev/sconce/internal/progress"
)

// sink turns what the engine reports into lines, and shows it on a terminal where there is a view.
type sink struct {
	log  *log
	live progress.Sink // may be nil
}

// Emit is called from many goroutines.
func (s sink) Emit(e progress.Event) {
	switch e.Kind {
	case progress.Warning:
		text := e.Text
		if e.Hint != "" {
			text += " (" + e.Hint + ")"
		}
		s.log.say(warning, "%s", oneLine(text))
		return
	case progress.Note:
		s.log.tell(info, true, oneLine(e.Text))
		return
	case progress.Log:
		s.log.tell(info, false, oneLine(e.Text))
	case progress.Done:
		s.log.tell(info, true, what(e))
	case progress.Start, progress.Cached:
		s.log.tell(debug, true, string(e.Kind)+": "+what(e))
	}
	if s.live != nil {
		s.live.Emit(e)
	}
}

func what(e progress.Event) string { return strings.TrimSpace(e.Verb + " " + e.Name) }
