package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
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

// foreign returns where somebody else's text is printed: as it is into a file or a pipe, and on a terminal without what is harmful to it. end
// prints a last line that has not ended.
func (a *app) foreign() (w io.Writer, end func() error) {
	if !ui.IsTerminal(a.stdout) {
		return a.out, func() error { return nil }
	}
	c := &lineCleaner{w: a.out}
	return c, func() error { return c.pass(len(c.rest)) }
}

// lineCleaner cleans whole lines: what is harmful may begin in one piece and end in the next. What would go back to the beginning of a line
// begins a new one.
type lineCleaner struct {
	w    io.Writer
	rest []byte
}

// longestLine is how much is kept until a line ends.
const longestLine = 64 << 10

func (c *lineCleaner) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	n := bytes.LastIndexByte(c.rest, '\n') + 1
	if n == 0 && len(c.rest) > longestLine {
		n = len(c.rest)
	}
	return len(p), c.pass(n)
}

// pass cleans and prints the first n bytes.
func (c *lineCleaner) pass(n int) error {
	lines := strings.ReplaceAll(strings.ReplaceAll(string(c.rest[:n]), "\r\n", "\n"), "\r", "\n")
	c.rest = c.rest[n:]
	_, err := io.WriteString(c.w, quote.CleanLines(lines))
	return err
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
