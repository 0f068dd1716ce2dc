package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"sconce.dev/sconce/internal/fault"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain – ünï 漢":                  "plain – ünï 漢",
		"a\x1b[31mred\x1b[0m":            "ared",
		"a\x1b]8;;http://x\x1b\\link":    "alink",
		"a\x1b]0;title\ab":               "ab",
		"a\x1b[999":                      "a",
		"a\x1b":                          "a",
		"a\nb\tc\rd":                     "a b c d",
		"bell\a back\b nul\x00 del\x7f":  "bell back nul del",
		"c1 \u009b31m":                   "c1 31m",
		"bidi \u202eevil\u2066x":         "bidi evilx",
		"bad utf8 \xff\xfe":              "bad utf8 \ufffd\ufffd",
		"unended \x1bPpayload\nnextline": "unended  nextline",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := CleanLines("a\r\nb\x1b[2J\nc"); got != "a\nb\nc" {
		t.Errorf("CleanLines = %q", got)
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "a\x1b[31mred", "\x1b]0;x\a", "\xff\n\t\r", "\u202e\u009b", "\x1b[\x1b[31m31m", "\x1bP\x1b\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range []string{Clean(s), strings.ReplaceAll(CleanLines(s), "\n", "")} {
			if !utf8.ValidString(c) || strings.ContainsFunc(c, unicode.IsControl) || len(c) > 3*len(s) {
				t.Errorf("%q becomes %q", s, c)
			}
		}
		for width := range 10 {
			if got := fit(Clean(s), width); textWidth(got) != width {
				t.Errorf("fit(%q, %d) = %q, %d columns", s, width, got, textWidth(got))
			}
		}
	})
}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		in    string
		width int
		want  string
	}{
		{"short", 8, "short   "},
		{"torch-2.7.0-cp311-linux_x86_64.whl", 20, "torch-2.7.0-c…64.whl"},
		{"漢字漢字", 5, "漢…字"},
		{"漢字漢字", 6, "漢字… "},
		{"abc", 1, "a"},
		{"abc", 0, ""},
	} {
		got := fit(c.in, c.width)
		if textWidth(got) != c.width {
			t.Errorf("fit(%q, %d) = %q: %d columns", c.in, c.width, got, textWidth(got))
		}
		if c.in[0] < 0x80 && got != c.want {
			t.Errorf("fit(%q, %d) = %q, want %q", c.in, c.width, got, c.want)
		}
	}
}

// excerptError is an error that shows its place, as those of recipes do.
type excerptError struct{ error }

func (excerptError) Excerpt() string { return "  3 | pakages = []\x1b[2J\n    | ^^^^^^^" }

func TestPrintError(t *testing.T) {
	long := strings.Repeat("long ", 20)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"short": {fmt.Errorf("open store: %w", errors.New("denied")), "error: open store: denied\n"},
		"long": {
			fmt.Errorf("outer %s: %w", long, fault.Hint(fmt.Errorf("middle: %w", errors.New("inner")), "do this")),
			"error: outer " + long + "\n  because: middle\n  because: inner\nhint: do this\n",
		},
		"lines":          {fmt.Errorf("lock: %w", errors.New("first\nsecond")), "error: lock\n  because: first\n  | second\n"},
		"excerpt":        {fmt.Errorf("read: %w", excerptError{errors.New("unknown key")}), "error: read: unknown key\n  3 | pakages = []\n    | ^^^^^^^\n"},
		"joined":         {errors.Join(errors.New("a"), context.Canceled, errors.New("b"), errors.New("a")), "error: a\nerror: b\n"},
		"full":           {fmt.Errorf("write: %w", syscall.ENOSPC), "error: write: no space left on device\nhint: make room: `sconce cache prune` removes what is not needed any more; or set SCONCE_STORE to a directory on a larger disk\n"},
		"evil":           {errors.New("server says \x1b[2J\x1b]0;x\aboo"), "error: server says boo\n"},
		"only cancelled": {errors.Join(context.Canceled), "error: context canceled\n"},
	} {
		var out bytes.Buffer
		PrintError(&out, c.err, false)
		if out.String() != c.want {
			t.Errorf("%s:\n%q\nwant\n%q", name, out.String(), c.want)
		}
	}
}
