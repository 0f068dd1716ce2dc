package quote_test

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/tooltest"
)

// payloads are words that mean something to shells, terminals or readers.
var payloads = []string{
	"", "plain", "my image.sqsh", "it's.sqsh", "a;touch M;=b.sqsh", "$(touch M)", "`touch M`", "${IFS}", "a${HOME}b", "--flag=$(touch M)", "-x", "=ls", "*", "~", "~root", `\`, `a\`, `\';touch M;#`, `'\''\\`,
	"a\nb", "a\r\nb", "a\tb", "!!", "'!!\n'", "#", "a #b", "a&b|c>d<e", "{a,b}", "[a]", "%1", "\u202egnp\u202c.sh", "\u009b31m", "\x1b[31m", "\x1b]0;x\a", "\x7f", "ünï 漢", "a\xffb",
	"\u2028", strings.Repeat("é'", 2048),
}

// A word is read back as what it was, by every shell in which it may be pasted, and no character of it misleads a terminal on the way.
func TestWord(t *testing.T) {
	for _, shell := range [][]string{{"bash"}, {"bash", "--posix"}, {"busybox", "sh"}, {"dash"}, {"fish", "--no-config"}} {
		var lines []string
		var want strings.Builder
		for _, p := range payloads {
			word := quote.Word(p)
			if strings.ContainsFunc(word, quote.Harmful) || !utf8.ValidString(word) {
				t.Errorf("Word(%q) = %q", p, word)
			}
			if (shell[0] == "dash" || shell[0] == "fish") && strings.HasPrefix(word, "$'") {
				continue // which POSIX has since 2024 only, and fish has not
			}
			lines = append(lines, "printf '%s\\n' "+word)
			want.WriteString(p + "\n")
		}
		cmd := exec.Command(tooltest.Path(t, shell[0]), append(shell[1:], "-c", strings.Join(lines, "\n"))...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != want.String() {
			t.Errorf("%s: %v\n%q\nwant\n%q", shell, err, out, want.String())
		}
	}
}

// Every other way to write a stranger's text gives one line, without what is harmful.
func TestLines(t *testing.T) {
	for _, p := range payloads {
		for name, got := range map[string]string{
			"Clean": quote.Clean(p), "Comment": quote.Comment(p), "Words": quote.Words("a", p, "b"),
			"Sprintf": quote.Sprintf("%s, %q, %v, %v, %d", p, p, errors.New(p), []string{p}, 7),
		} {
			if strings.ContainsFunc(got, quote.Harmful) {
				t.Errorf("%s(%q) = %q", name, p, got)
			}
		}
	}
	if got := quote.Sprintf("a\n%s", "b\nerror: c"); got != "a\nb error: c" {
		t.Errorf("the lines of a message are %q", got)
	}
}

// JSON holds nothing harmful, and means what it meant.
func TestJSON(t *testing.T) {
	for _, indent := range []string{"", "  "} {
		in := map[string][]string{"a\u202eb": append(payloads, `\u003c`, "<&>", `\\u202e`)}
		data, err := quote.JSON(in, indent)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsFunc(string(data), quote.HarmfulInLines) || strings.Contains(string(data), `"\u003c&`) {
			t.Errorf("%q", data)
		}
		var out map[string][]string
		if err := json.Unmarshal(data, &out); err != nil {
			t.Fatal(err)
		}
		for i, want := range in["a\u202eb"] {
			if got := out["a\u202eb"][i]; got != strings.ToValidUTF8(want, "\ufffd") {
				t.Errorf("%q became %q", want, got)
			}
		}
	}
}
