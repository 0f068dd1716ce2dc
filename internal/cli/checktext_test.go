package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
)

func TestWrap(t *testing.T) {
	for _, test := range []struct {
		text  string
		width int
		first int
		want  string
	}{
		{"", 10, 0, ""},
		{"one", 10, 0, "one"},
		{"one two three", 7, 0, "one two\n  three"},
		{"one two", 7, 4, "one\n  two"},
		{"averylongwordthatstayswhole b", 10, 0, "averylongwordthatstayswhole\n  b"},
		{"ä ö ü ß", 5, 0, "ä ö ü\n  ß"},
	} {
		if got := wrap(test.text, test.width, "  ", test.first); got != test.want {
			t.Errorf("wrap(%q, %d) = %q, want %q", test.text, test.width, got, test.want)
		}
	}
}

// What is printed names everything that counts, keeps to the width, and cannot be misled by names in the image.
func TestPrintFindings(t *testing.T) {
	var findings []audit.Finding
	for i := range 12 {
		findings = append(findings, audit.Finding{
			Rule: "r", Severity: audit.Error, Message: fmt.Sprintf("file %d is bad\x1b[2J", i), Why: "it is so", Remedy: "do that", Seen: strings.Split("abcdefgh", ""),
		})
	}
	findings = append(findings,
		audit.Finding{Rule: "r", Severity: audit.Error, Message: "another of it", Why: "for another reason", Remedy: "do that"},
		audit.Finding{Rule: "s", Severity: audit.Warning, Message: strings.Repeat("word ", 60), Why: "so", Remedy: "do"},
		audit.Finding{Rule: "t", Severity: audit.Error, Message: "known", Allowed: "we know"},
		audit.Finding{Rule: "u", Severity: audit.Note, Message: "usual", Seen: []string{"/usr/bin/su"}, Why: "w", Remedy: audit.NothingToDo + ", for a reason"},
	)
	c := &checked{Image: "app:1", Platform: "linux/amd64", Target: cluster.Profile{Name: "x", GPU: []string{"9.0"}}, Findings: findings, Count: audit.CountOf(findings)}
	var out bytes.Buffer
	a := &app{stdout: &out, out: &out, flags: globalFlags{color: "never"}}
	if err := a.printFindings(c); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"error: file 0 is bad [r]\n    a\n", "    … and 4 more\n", "error: 4 more\n  why  it is so\n  fix  do that\n", "error: another of it [r]\n",
		"allowed: known [t]\n  why  we know\n", "note: usual [u]\n\n", "13 errors, 1 warning, 1 note, 1 allowed: app:1 (linux/amd64), for x: GPU 9.0\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if len(strings.TrimRight(line, "\n")) > textColumns+len("…") {
			t.Errorf("too wide: %q", line)
		}
	}
	if strings.Contains(text, "nothing speaks") {
		t.Errorf("something does:\n%s", text)
	}
	if strings.Contains(text, "\x1b") {
		t.Errorf("an escape sequence got through: %q", text)
	}
	out.Reset()
	a.flags.color, a.flags.verbose = "always", true
	if err := a.printFindings(c); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\x1b[1;31merror:\x1b[0m file 11 is bad") || strings.Contains(out.String(), "more\n") {
		t.Errorf("in colour, with all:\n%s", out.String())
	}
}
