package ui

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// screen is a small terminal: it understands what the live view writes, wraps and scrolls, and fails the test on
// anything else.
type screen struct {
	t             *testing.T
	width, height int
	rows          [][]rune // scrolled-off rows included
	row, col      int
	hidden        bool
	writes        int
}

// ownSequence is an escape sequence as the view writes them (ECMA-48, CSI).
var ownSequence = regexp.MustCompile(`^\x1b\[[0-?]*[ -/]*[@-~]`)

func newScreen(t *testing.T, width, height int) *screen {
	return &screen{t: t, width: width, height: height, rows: [][]rune{{}}}
}

func (s *screen) size() (int, int) { return s.width, s.height }

func (s *screen) Write(p []byte) (int, error) {
	s.writes++
	text := string(p)
	for text != "" {
		if sequence := ownSequence.FindString(text); sequence != "" {
			s.escape(sequence)
			text = text[len(sequence):]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		s.put(r)
	}
	return len(p), nil
}

func (s *screen) put(r rune) {
	switch {
	case r == '\r':
		s.col = 0
	case r == '\n':
		s.col = 0
		s.down()
	case r < ' ':
		s.t.Errorf("control character %q reaches the terminal", r)
	default:
		if s.col == s.width {
			s.col = 0
			s.down()
		}
		line := s.rows[s.row]
		for len(line) <= s.col {
			line = append(line, ' ')
		}
		line[s.col] = r
		s.rows[s.row] = line
		s.col++
	}
}

func (s *screen) down() {
	s.row++
	if s.row == len(s.rows) {
		s.rows = append(s.rows, nil)
	}
}

func (s *screen) escape(seq string) {
	switch {
	case seq == hideCursor:
		s.hidden = true
	case seq == showCursor:
		s.hidden = false
	case seq == clearBelow:
		s.rows = append(s.rows[:s.row:s.row], s.rows[s.row][:min(s.col, len(s.rows[s.row]))])
	case strings.HasSuffix(seq, "A"):
		n, _ := strconv.Atoi(strings.Trim(seq, "\x1b[A"))
		s.row -= n
		if top := max(0, len(s.rows)-s.height); s.row < top {
			s.t.Errorf("the cursor goes above the screen")
			s.row = top
		}
	case strings.HasSuffix(seq, "m"):
	default:
		s.t.Errorf("unexpected escape sequence %q", seq)
	}
}

// resize changes the width and wraps the rows again as terminals do.
func (s *screen) resize(width int) {
	var rows [][]rune
	at := s.row
	for i, r := range s.rows {
		if i == at {
			s.row = len(rows)
		}
		for len(r) > width {
			rows = append(rows, r[:width])
			r = r[width:]
		}
		rows = append(rows, r)
	}
	s.rows, s.width = rows, width
}

// text returns what is on the screen and above it.
func (s *screen) text() string {
	var b strings.Builder
	for _, r := range s.rows {
		b.WriteString(strings.TrimRight(string(r), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}
