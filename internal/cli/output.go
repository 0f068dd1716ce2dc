package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/nodejob"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// printJSON prints v for a program, indented for the person who looks at it.
func (a *app) printJSON(v any) error {
	data, err := quote.JSON(v, "  ")
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(data, '\n'))
	return err
}

// sayWritten tells what was written, and how much a file is.
func (a *app) sayWritten(outputs ...string) {
	for _, out := range outputs {
		text := "wrote " + out
		if path, err := engine.OutputPath(out); err == nil {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				text += ", " + units.Size(info.Size())
			}
		}
		a.say("%s", text)
	}
}

// say tells the user on stderr what was done, unless --quiet was given. Its lines are those of format.
func (a *app) say(format string, args ...any) { a.tell(quote.Sprintf(format, args...)) }

// tell is say for text whose lines are sconce's own.
func (a *app) tell(text string) {
	if a.onNode && a.view != nil {
		a.view.Emit(progress.Event{Time: time.Now(), Kind: nodejob.Said, Text: text})
		return
	}
	if a.view == nil || a.view.Mode() == ui.Quiet || a.view.Mode() == ui.JSON {
		return
	}
	a.saying.Lock()
	defer a.saying.Unlock()
	a.view.Flush()
	fmt.Fprintf(a.stderr, "%s\n", ui.CleanLines(text))
}

// dataWriter writes data to stdout after what was reported before it.
type dataWriter struct {
	io.Writer
	view *ui.View
}

func (w dataWriter) Write(p []byte) (int, error) {
	w.view.Flush()
	return w.Writer.Write(p)
}
