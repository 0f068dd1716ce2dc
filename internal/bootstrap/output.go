package bootstrap

import (
	"bytes"
	"strings"

	"sconce.dev/sconce/internal/progress"
)

// What an error repeats of a failed program's output: the last lines, and of each the beginning. What is in one line without an
// end is kept up to a limit, in bytes.
const (
	lastLines  = 12
	lineLength = 240
	maxPartial = 64 << 10
)

// tailWriter passes whole lines on and remembers the last of them.
type tailWriter struct {
	task    *progress.Task
	partial []byte
	lines   []string
}

func (w *tailWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	for {
		i := bytes.IndexAny(w.partial, "\r\n")
		if i < 0 {
			break
		}
		if line := strings.TrimSpace(string(w.partial[:i])); line != "" {
			w.task.Log(line)
			w.keep(line)
		}
		w.partial = w.partial[i+1:]
	}
	w.partial = w.partial[:min(len(w.partial), maxPartial)]
	return len(p), nil
}

func (w *tailWriter) keep(line string) {
	if len(line) > lineLength {
		line = strings.ToValidUTF8(line[:lineLength], "") + "…"
	}
	w.lines = append(w.lines, line)
	w.lines = w.lines[max(0, len(w.lines)-lastLines):]
}
