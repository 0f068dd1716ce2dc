package quote

import (
	"strings"
	"unicode/utf8"
)

// Clean makes s safe to print within a line: without escape sequences, control characters, marks that change the
// direction of text, or bytes that are not UTF-8. Line breaks and tabs become spaces.
func Clean(s string) string {
	return clean(s, ' ')
}

// CleanLines is [Clean] for text of several lines: line breaks stay.
func CleanLines(s string) string {
	return clean(strings.ReplaceAll(s, "\r\n", "\n"), '\n')
}

func clean(s string, newline rune) string {
	if isClean(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		if n := escapeLength(s); n > 0 {
			s = s[n:]
			continue
		}
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '\n':
			b.WriteRune(newline)
		case r == '\t' || r == '\r':
			b.WriteByte(' ')
		case r == utf8.RuneError && n <= 1:
			b.WriteRune(utf8.RuneError)
		case !Harmful(r):
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

func isClean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, Harmful)
}

// escapeLength returns the length of the escape sequence (ECMA-48) that s begins with, or 0. One that does not end takes
// the rest of the line.
func escapeLength(s string) int {
	if len(s) < 2 || s[0] != '\x1b' {
		return 0
	}
	switch s[1] {
	case '[': // CSI: parameters, then a final byte
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				return i + 1
			}
			if s[i] < 0x20 || s[i] > 0x7e {
				return i
			}
		}
		return len(s)
	case ']', 'P', 'X', '^', '_': // strings, ended by BEL or ST
		for i := 2; i < len(s); i++ {
			switch {
			case s[i] == '\a':
				return i + 1
			case s[i] == '\x1b' && i+1 < len(s) && s[i+1] == '\\':
				return i + 2
			case s[i] == '\n':
				return i
			}
		}
		return len(s)
	}
	return 1
}
