package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
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

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 1_500_000_000: "1.5 GB", 1<<63 - 1: "9.2 EB",
	} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
	for s, want := range map[string]int64{"0": 0, "1024": 1024, "500MB": 5e8, "20 GB": 2e10, "1.5k": 1500, "64GiB": 64 << 30, "1T": 1e12, "3b": 3} {
		if got, err := ParseSize(s); got != want || err != nil {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "GB", "-1", "1QB", "1GBB", "NaN", "Inf", "99999999E", "1 2", "1.2.3G"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d", s, got)
		}
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[int]string{0: "0 layers", 1: "1 layer", 12: "12 layers"} {
		if got := Number(n, "layer"); got != want {
			t.Errorf("Number(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.00s", 240 * time.Millisecond: "0.24s", 12300 * time.Millisecond: "12.3s", 59940 * time.Millisecond: "59.9s",
		59960 * time.Millisecond: "1m00s", 245 * time.Second: "4m05s", 123 * time.Minute: "2h03m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, want %q", d, got, want)
		}
	}
	for s, want := range map[string]time.Duration{"30d": 30 * day, "2w": 14 * day, "12h": 12 * time.Hour, "0": 0, "90m": 90 * time.Minute} {
		if got, err := ParseAge(s); got != want || err != nil {
			t.Errorf("ParseAge(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "d", "-1d", "-1h", "5", "1.5d", "99999d"} {
		if got, err := ParseAge(s); err == nil {
			t.Errorf("ParseAge(%q) = %v", s, got)
		}
	}
	for d, want := range map[time.Duration]string{time.Second: "just now", 90 * time.Second: "1 minute ago", 5 * time.Hour: "5 hours ago", 49 * time.Hour: "2 days ago"} {
		if got := Ago(t0.Add(-d), t0); got != want {
			t.Errorf("Ago(%v) = %q, want %q", d, got, want)
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
		"lines":          {fmt.Errorf("lock: %w", errors.New("first\nsecond")), "error: lock\n  because: first\n  second\n"},
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
