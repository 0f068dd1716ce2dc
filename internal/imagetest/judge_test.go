package imagetest

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/quote"
)

// What a program said last is quoted in a result, and from there on terminals, in evidence and in JSON.
func TestLastWords(t *testing.T) {
	for log, want := range map[string]string{
		"first\n\x1b]0;P\x07\xc2\x9b1m\u202e last\xff words\nsrun: error: x\n": ": 1m last\ufffd words",
		"a\tb\x00\x7fc": ": a bc",
		"":              "",
	} {
		if got := lastWords([]byte(log)); got != want || strings.ContainsFunc(got, quote.Harmful) {
			t.Errorf("%q: %q, want %q", log, got, want)
		}
	}
}
