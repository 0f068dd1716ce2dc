package ui

import (
	"fmt"
	"io"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
)

// jsonView writes each event as one line of JSON: the fields of [progress.Event].
type jsonView struct{ w io.Writer }

func (j *jsonView) errorText() bool { return false }
func (j *jsonView) tick(time.Time)  {}
func (j *jsonView) close()          {}
func (j *jsonView) flush()          {}

func (j *jsonView) event(e progress.Event) { writeJSON(j.w, e) }

// failureEvent is the last line of a command that failed, in JSON.
type failureEvent struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"` // "error"
	Err  string    `json:"error"`
	Hint string    `json:"hint,omitempty"`
	Code int       `json:"code"` // the exit code
}

func writeJSONError(w io.Writer, err error, code int) {
	writeJSON(w, failureEvent{Time: time.Now(), Kind: "error", Err: err.Error(), Hint: fault.HintOf(err), Code: code})
}

func writeJSON(w io.Writer, v any) {
	data, err := quote.JSON(v, "")
	if err != nil {
		return // the types above always have a JSON form
	}
	fmt.Fprintf(w, "%s\n", data)
}
