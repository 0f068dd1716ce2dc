package ui

import (
	"strings"

	"sconce.dev/sconce/internal/progress"
)

// style colours text, or not. No message needs its colour to be understood.
type style struct{ color bool }

func (s style) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bad(text string) string    { return s.paint("1;31", text) }
func (s style) warn(text string) string   { return s.paint("1;33", text) }
func (s style) done() string              { return s.paint("32", "done") }
func (s style) accent(text string) string { return s.paint("36", text) }
func (s style) dim(text string) string    { return s.paint("2", text) }
func (s style) strong(text string) string { return s.paint("1", text) }

// message writes a warning or a note in whole lines.
func (s style) message(e progress.Event) string {
	text := indent(CleanLines(e.Text))
	if e.Kind == progress.Warning {
		text = s.warn("warning:") + " " + text
	}
	text += "\n"
	if e.Hint != "" {
		text += s.hint(e.Hint)
	}
	return text
}

func (s style) hint(text string) string {
	return s.accent("hint:") + " " + indent(CleanLines(text)) + "\n"
}

// indent sets the lines after the first off behind a bar, so that one message is seen as one: they may be those of a stranger's name, and
// only what has no bar is another cause or a hint.
func indent(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 1; i < len(lines); i++ {
		lines[i] = strings.TrimRight("  | "+strings.TrimPrefix(lines[i], "  "), " ")
	}
	return strings.Join(lines, "\n")
}
