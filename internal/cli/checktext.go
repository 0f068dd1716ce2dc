package cli

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// How much of what was found is printed; JSON and --verbose have all of it.
const (
	seenLines    = 4   // lines of evidence for a finding
	ruleFindings = 8   // findings of a rule
	textColumns  = 100 // that text is wrapped to where the width is not known, as in a log
	maxColumns   = 110
)

// printFindings prints findings for a person: the worst first, those of one rule together, with one word on why it matters and
// what to do.
func (a *app) printFindings(c *checked) error {
	p := &findingsText{width: columns(a.stdout), paint: painter(a.colorOnStdout()), all: a.flags.verbose}
	counted, allowed := split(c.Findings)
	for _, group := range groups(counted) {
		p.group(group)
	}
	for _, group := range groups(allowed) {
		p.allowed(group)
	}
	p.summary(c)
	_, err := a.out.Write([]byte(p.String()))
	return err
}

// split takes apart what counts and what is allowed.
func split(findings []audit.Finding) (counted, allowed []audit.Finding) {
	for _, f := range findings {
		if f.Allowed != "" {
			allowed = append(allowed, f)
		} else {
			counted = append(counted, f)
		}
	}
	return counted, allowed
}

// groups puts neighbours of one rule and severity together, with the same advice.
func groups(findings []audit.Finding) [][]audit.Finding {
	var all [][]audit.Finding
	for i, f := range findings {
		if i > 0 {
			if last := findings[i-1]; last.Rule == f.Rule && last.Severity == f.Severity && last.Why == f.Why && last.Remedy == f.Remedy {
				all[len(all)-1] = append(all[len(all)-1], f)
				continue
			}
		}
		all = append(all, []audit.Finding{f})
	}
	return all
}

// findingsText is the text that is being written.
type findingsText struct {
	strings.Builder
	width int
	paint func(code, text string) string
	all   bool
}

// The colours (ECMA-48, SGR). No message needs them to be understood.
var severityColors = map[audit.Severity]string{audit.Error: "1;31", audit.Warning: "1;33", audit.Note: "1;36"}

const dim = "2"

func (p *findingsText) group(findings []audit.Finding) {
	first := findings[0]
	brief := strings.HasPrefix(first.Remedy, audit.NothingToDo) && !p.all
	for i, f := range findings {
		if i == ruleFindings && !p.all {
			fmt.Fprintf(p, "%s %d more\n", p.paint(severityColors[first.Severity], string(first.Severity)+":"), len(findings)-i)
			break
		}
		head := string(f.Severity) + ": "
		text := wrap(ui.Clean(f.Message)+" ["+f.Rule+"]", p.width, "  ", len(head))
		text = strings.Replace(text, "["+f.Rule+"]", p.paint(dim, "["+f.Rule+"]"), 1)
		p.WriteString(p.paint(severityColors[f.Severity], head[:len(head)-1]) + " " + text + "\n")
		if !brief {
			p.seen(f.Seen)
		}
	}
	if brief {
		p.WriteString("\n")
		return
	}
	p.advice("why", first.Why)
	p.advice("fix", first.Remedy)
	p.WriteString("\n")
}

func (p *findingsText) seen(lines []string) {
	for i, line := range lines {
		if i == seenLines && len(lines) > seenLines+1 && !p.all { // one more line is no longer than saying so
			fmt.Fprintf(p, "    … and %d more\n", len(lines)-i)
			return
		}
		p.WriteString("    " + wrap(ui.Clean(line), p.width, "      ", 4) + "\n")
	}
}

func (p *findingsText) advice(title, text string) {
	if text == "" {
		return
	}
	p.WriteString("  " + p.paint(dim, title) + "  " + wrap(ui.Clean(text), p.width, "       ", 7) + "\n")
}

func (p *findingsText) allowed(findings []audit.Finding) {
	for _, f := range findings {
		p.WriteString("allowed: " + wrap(ui.Clean(f.Message)+" ["+f.Rule+"]", p.width, "  ", 9) + "\n")
	}
	p.advice("why", findings[0].Allowed)
	p.WriteString("\n")
}

func (p *findingsText) summary(c *checked) {
	name := ui.Clean(c.Image)
	if c.Platform != "" {
		name += " (" + c.Platform + ")"
	}
	text := countWords(c.Count) + ": " + name
	if words := c.Target.Words(); words != "" {
		text += ", for " + ui.Clean(words)
	}
	p.WriteString(wrap(text, p.width, "  ", 0) + "\n")
	if len(c.Unknown) > 0 {
		text := "not judged, as the target does not say: " + strings.Join(c.Unknown, ", ")
		if c.Target.Empty() {
			text = "no target was named, so the image was only judged by itself; --cluster NAME judges it for a cluster. " +
				"There was nothing to compare with for: " + strings.Join(c.Unknown, ", ")
		}
		p.WriteString(p.paint(dim, wrap(text, p.width, "  ", 0)) + "\n")
	}
	if c.Count.Errors == 0 && c.Count.Warnings == 0 && !c.Target.Empty() {
		p.WriteString("nothing speaks against running it there\n")
	}
}

// countWords says how many findings there are: "2 errors, 1 warning".
func countWords(c audit.Count) string {
	var parts []string
	for _, n := range []struct {
		n    int
		noun string
	}{{c.Errors, "error"}, {c.Warnings, "warning"}, {c.Notes, "note"}} {
		if n.n > 0 {
			parts = append(parts, units.Number(n.n, n.noun))
		}
	}
	if c.Allowed > 0 {
		parts = append(parts, fmt.Sprintf("%d allowed", c.Allowed))
	}
	if len(parts) == 0 {
		return "nothing found"
	}
	return strings.Join(parts, ", ")
}

// wrap breaks text between words into lines of at most width columns, those after the first set off by indent. first is how
// many columns of the first line are taken. A word that is wider stays whole.
func wrap(text string, width int, indent string, first int) string {
	var b strings.Builder
	column := first
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// columns is how wide text for w may be.
func columns(w any) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return min(max(width, 40), maxColumns)
		}
	}
	return textColumns
}

// colorOnStdout reports whether data may be coloured.
func (a *app) colorOnStdout() bool {
	switch a.flags.color {
	case "always":
		return true
	case "never":
		return false
	default:
		return ui.WantColor(a.stdout)
	}
}

// painter returns a function that colours text, or not.
func painter(color bool) func(code, text string) string {
	return func(code, text string) string {
		if !color {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
}
