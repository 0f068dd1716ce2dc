package ui

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/units"
)

// ttyView keeps a live part at the bottom of a terminal: one line for each task, and one for all. Lines about what has
// ended scroll away above it.
//
// The cursor is hidden only within one write, so that a process that dies or is stopped leaves it visible.
type ttyView struct {
	w     io.Writer
	opts  Options
	style style
	size  func() (width, height int)
	ascii bool

	active  tasks
	scroll  strings.Builder // lines to be put above the live part with the next drawing
	drawn   []int           // widths of the lines of the live part on the screen
	allDone int64           // bytes of the tasks that ended since the live part appeared
	ended   int             // their number
	total   meter
	quick   batch
}

func newTTY(w io.Writer, o Options) *ttyView {
	return &ttyView{w: w, opts: o, style: style{o.Color}, size: terminalSize(w), ascii: !utf8Locale()}
}

// terminalSize asks for the size at each drawing, which is how a resize is noticed.
func terminalSize(w io.Writer) func() (int, int) {
	return func() (int, int) {
		if f, ok := w.(*os.File); ok {
			if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
				return width, height
			}
		}
		return 80, 24
	}
}

// utf8Locale reports whether the terminal is said to show UTF-8 (POSIX: LC_ALL, then LC_CTYPE, then LANG). Without any
// of them it is believed to: containers and batch jobs set none.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

func (v *ttyView) errorText() bool { return true }

func (v *ttyView) event(e progress.Event) {
	t := v.active.find(e.Task)
	switch {
	case e.Kind == progress.Start:
		v.active = append(v.active, newTask(e))
	case e.Kind == progress.Warning || e.Kind == progress.Note:
		v.scroll.WriteString(v.quick.take(v.style) + v.style.message(e))
		v.settle()
	case t == nil: // a late report of a task that has ended
	case e.Kind == progress.Progress:
		t.progress(e)
	case e.Kind == progress.Log:
		v.log(t, e)
	default:
		v.end(t, e)
	}
}

func (v *ttyView) log(t *task, e progress.Event) {
	line := Clean(lastLine(e.Text))
	t.addLog(line)
	if v.opts.Verbose {
		fmt.Fprintf(&v.scroll, "%s | %s\n", t.title, line)
	}
}

func (v *ttyView) end(t *task, e progress.Event) {
	v.active = v.active.without(t)
	v.scroll.WriteString(v.quick.ended(t, e, v.opts.Verbose, v.style))
	v.allDone += max(t.current, e.Current)
	v.ended++
	v.settle()
}

// settle draws at once when nothing is in progress: what the command prints next must not wait for a tick.
func (v *ttyView) settle() {
	if len(v.active) == 0 {
		v.draw(time.Now())
		v.allDone, v.ended, v.total = 0, 0, meter{}
	}
}

func (v *ttyView) tick(now time.Time) {
	if v.quick.due(now) {
		v.scroll.WriteString(v.quick.take(v.style))
	}
	if len(v.active) > 0 || v.scroll.Len() > 0 || len(v.drawn) > 0 {
		v.draw(now)
	}
}

// flush shows what there is to show, before something else is written to the terminal.
func (v *ttyView) flush() {
	v.scroll.WriteString(v.quick.take(v.style))
	v.erase()
}

// close removes the live part.
func (v *ttyView) close() {
	v.active = nil
	v.flush()
}

// erase removes the live part until the next drawing.
func (v *ttyView) erase() {
	active := v.active
	v.active = nil
	v.draw(time.Now())
	v.active = active
}

const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearBelow = "\x1b[J"
)

// draw replaces the live part, with one write.
func (v *ttyView) draw(now time.Time) {
	width, height := v.size()
	lines := v.lines(now, width, height)
	if len(lines) == 0 && len(v.drawn) == 0 && v.scroll.Len() == 0 {
		return
	}
	var b strings.Builder
	b.WriteString(hideCursor)
	b.WriteString(v.backToTop(width, height))
	b.WriteString(clearBelow)
	b.WriteString(v.scroll.String())
	v.scroll.Reset()
	v.drawn = v.drawn[:0]
	for _, l := range lines {
		b.WriteString(v.spell(l.text) + "\n")
		v.drawn = append(v.drawn, l.width)
	}
	b.WriteString(showCursor)
	io.WriteString(v.w, b.String())
}

// spell writes a line in what the terminal can show.
func (v *ttyView) spell(s string) string {
	if v.ascii {
		return asciiOnly.Replace(s)
	}
	return s
}

var asciiOnly = strings.NewReplacer("━", "#", "─", "-", "…", "~", "·", "-")

// backToTop moves the cursor to the first line of the live part. When the terminal became narrower, its lines were
// wrapped and are more than were written.
func (v *ttyView) backToTop(width, height int) string {
	rows := 0
	for _, w := range v.drawn {
		rows += max(1, (w+width-1)/width)
	}
	rows = min(rows, height-1) // what has left the screen cannot be reached
	if rows <= 0 {
		return "\r"
	}
	return fmt.Sprintf("\r\x1b[%dA", rows)
}

// liveLine is a line of the live part: as it is written, and the columns that it takes.
type liveLine struct {
	text  string
	width int
}

func plainLine(s string, width int) liveLine {
	s = Cut(s, width)
	return liveLine{s, textWidth(s)}
}

// maxLive is how many tasks are shown at once on a tall terminal.
const maxLive = 12

// lines makes the live part.
func (v *ttyView) lines(now time.Time, width, height int) []liveLine {
	if len(v.active) == 0 {
		return nil
	}
	width-- // a full line would wrap on some terminals
	shown := slices.Clone(v.active)
	room := max(1, min(maxLive, height-3))
	if len(shown) > room {
		slices.SortStableFunc(shown, byWeight)
		shown = shown[:room]
	}
	var lines []liveLine
	for _, t := range shown {
		lines = append(lines, v.taskLine(t, now, width))
	}
	if len(v.active) > 1 {
		lines = append(lines, v.totalLine(now, len(v.active)-len(shown), width))
	}
	return lines
}

// byWeight puts what is worth watching first: steps that count nothing, then the largest downloads.
func byWeight(a, b *task) int {
	if (a.total == 0) != (b.total == 0) {
		return cmp.Compare(min(a.total, 1), min(b.total, 1))
	}
	return cmp.Compare(b.total, a.total)
}

const (
	verbWidth   = 9
	barWidth    = 20
	figureWidth = 42 // "1234.5 MB of 1234.5 MB  123.4 MB/s  12m34s"
	nameWidth   = 16 // the least that a name needs to be recognised
)

// taskLine shows verb, name, bar and figures; what does not fit is left out, the bar first.
func (v *ttyView) taskLine(t *task, now time.Time, width int) liveLine {
	figures := fit(figures(t), figureWidth)
	if t.total == 0 && t.current == 0 {
		return v.runningLine(t, now, width)
	}
	room := width - verbWidth - 1
	bar := ""
	if t.total > 0 && room-figureWidth-barWidth-4 >= nameWidth {
		bar = v.bar(float64(t.current) / float64(t.total))
	}
	if room-figureWidth-2 < nameWidth {
		return narrowLine(t, width)
	}
	name := room - figureWidth - 2
	if bar != "" {
		name -= barWidth + 2
		bar += "  "
	}
	text := v.style.strong(fit(t.verb, verbWidth)) + " " + fit(t.name, name) + "  " + bar + figures
	return liveLine{text, width}
}

// narrowLine shows a task where there is no room for all figures.
func narrowLine(t *task, width int) liveLine {
	figure := fmt.Sprintf("%9s", units.Size(t.current))
	if t.total > 0 {
		figure = fmt.Sprintf("%3d%%", min(100, 100*t.current/t.total))
	}
	room := width - verbWidth - 1 - 2 - textWidth(figure)
	if room < 1 {
		return plainLine(t.name, width)
	}
	return plainLine(fit(t.verb, verbWidth)+" "+fit(t.name, room)+"  "+figure, width)
}

// runningLine shows a task that counts nothing: the last line its program printed, and the time it has taken.
func (v *ttyView) runningLine(t *task, now time.Time, width int) liveLine {
	took := units.Duration(now.Sub(t.started).Truncate(100 * time.Millisecond))
	text := t.name
	if len(t.log) > 0 && !v.opts.Verbose {
		text += "  " + t.log[len(t.log)-1]
	}
	room := width - verbWidth - 1 - 2 - len(took)
	if room < nameWidth {
		return plainLine(fit(t.verb, verbWidth)+" "+t.name, width)
	}
	line := v.style.strong(fit(t.verb, verbWidth)) + " " + fit(text, room) + "  " + v.style.dim(took)
	return liveLine{line, width}
}

func figures(t *task) string {
	text := fmt.Sprintf("%9s", units.Size(t.current))
	if t.total > 0 {
		text += fmt.Sprintf(" of %9s", units.Size(t.total))
	}
	if r := t.meter.rate(); r > 0 {
		text += fmt.Sprintf("  %8s/s", units.Size(int64(r)))
	}
	if left := t.left(); left > 0 {
		text += "  " + units.Coarse(left)
	}
	return text
}

func (v *ttyView) bar(done float64) string {
	n := min(barWidth, max(0, int(done*barWidth)))
	return v.style.accent(strings.Repeat("━", n)) + v.style.dim(strings.Repeat("─", barWidth-n))
}

// totalLine sums up what is in progress and what has ended since the live part appeared.
func (v *ttyView) totalLine(now time.Time, hidden, width int) liveLine {
	current, total, known := v.allDone, v.allDone, true
	for _, t := range v.active {
		current += t.current
		total += t.total
		known = known && (t.total > 0 || t.current == 0)
	}
	v.total.add(now, current)
	parts := []string{fmt.Sprintf("%d in progress, %d ended", len(v.active), v.ended)}
	if hidden > 0 {
		parts[0] = fmt.Sprintf("%d in progress (%d not shown), %d ended", len(v.active), hidden, v.ended)
	}
	switch {
	case total > 0 && known:
		parts = append(parts, units.Size(current)+" of "+units.Size(total))
	case current > 0:
		parts = append(parts, units.Size(current))
	}
	if r := v.total.rate(); r > 0 {
		parts = append(parts, units.Size(int64(r))+"/s")
		if left := timeLeft(total-current, r); known && left > 0 {
			parts = append(parts, units.Coarse(left)+" left")
		}
	}
	line := plainLine(fit("total", verbWidth)+" "+strings.Join(parts, " · "), width)
	line.text = v.style.dim(line.text)
	return line
}
