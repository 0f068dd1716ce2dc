package tomltext

import (
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/quote"
)

// A string is read back as it was, and holds nothing that misleads who looks at the file.
func TestString(t *testing.T) {
	for _, want := range []string{"", "plain", `a"b\c`, "a\nb\tc\x00\x1b", "\u009b31m", "a\u202eb\u2066c\u061c", "\u2028", "ünï 漢"} {
		text := String(want)
		var got struct{ A string }
		if err := toml.Unmarshal([]byte("a = "+text), &got); err != nil || got.A != want || strings.ContainsFunc(text, quote.Harmful) {
			t.Errorf("%q is %s, which is read as %q: %v", want, text, got.A, err)
		}
	}
}
