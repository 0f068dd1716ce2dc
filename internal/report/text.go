package report

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// visible writes out what would not be seen in a text, or would make it look like another: bytes that are not UTF-8, control
// characters, and format characters such as those that turn the direction of text (Unicode's categories Cc, Cf, Zl and Zp).
func visible(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, unseen) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unseen(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

func unseen(r rune) bool {
	if ' ' <= r && r <= '~' {
		return false
	}
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// maxText bounds a text of the image, in bytes: old images have whole scripts in their history.
const maxText = 2000

// shown is a text of the image as the page has it.
func shown(s string) string {
	if len(s) > maxText {
		return visible(strings.ToValidUTF8(s[:maxText], "")) + " …"
	}
	return visible(s)
}

// number writes a count with its noun.
func number(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

// thousands writes a number in groups of three digits.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:] // a narrow space that does not break
	}
	return s
}

// cut shortens a text to at most n characters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}
