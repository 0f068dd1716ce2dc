package ui

import (
	"strings"
	"unicode"
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
		case !harmful(r):
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

func isClean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, harmful)
}

// harmful reports whether a terminal or a reader may be misled by r: control characters of C0 and C1, and the bidi
// controls of Unicode (UAX #9).
func harmful(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
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

// lastLine returns what a terminal would show of a line in which a program went back to its beginning to overwrite it.
func lastLine(s string) string {
	s = strings.TrimRight(s, "\r\n")
	return s[strings.LastIndexByte(s, '\r')+1:]
}

// wide holds the blocks whose characters take two columns (UAX #11, the larger blocks).
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115f, Stride: 1},
		{Lo: 0x2e80, Hi: 0x303e, Stride: 1},
		{Lo: 0x3041, Hi: 0xa4cf, Stride: 1},
		{Lo: 0xac00, Hi: 0xd7a3, Stride: 1},
		{Lo: 0xf900, Hi: 0xfaff, Stride: 1},
		{Lo: 0xfe30, Hi: 0xfe6f, Stride: 1},
		{Lo: 0xff00, Hi: 0xff60, Stride: 1},
		{Lo: 0xffe0, Hi: 0xffe6, Stride: 1},
	},
	R32: []unicode.Range32{{Lo: 0x1f300, Hi: 0x1faff, Stride: 1}, {Lo: 0x20000, Hi: 0x3fffd, Stride: 1}},
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// textWidth returns how many columns s takes.
func textWidth(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// fit cuts s, with a sign that something is missing, or fills it with spaces, to exactly width columns.
func fit(s string, width int) string {
	s = Cut(s, width)
	return s + strings.Repeat(" ", max(0, width-textWidth(s)))
}

// Cut cuts s to at most width columns. What is cut out is the middle: names differ at the end as often as at the beginning.
func Cut(s string, width int) string {
	if textWidth(s) <= width {
		return s
	}
	if width < 3 {
		return takeColumns(s, max(width, 0))
	}
	tail := (width - 1) / 3
	return takeColumns(s, width-1-tail) + "…" + lastColumns(s, tail)
}

func takeColumns(s string, width int) string {
	for i, r := range s {
		if width -= runeWidth(r); width < 0 {
			return s[:i]
		}
	}
	return s
}

func lastColumns(s string, width int) string {
	for i := len(s); i > 0; {
		r, n := utf8.DecodeLastRuneInString(s[:i])
		if width -= runeWidth(r); width < 0 {
			return s[i:]
		}
		i -= n
	}
	return s
}
