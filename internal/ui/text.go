package ui

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"sconce.dev/sconce/internal/quote"
)

// Clean makes s safe to print within a line, as [quote.Clean] does.
func Clean(s string) string { return quote.Clean(s) }

// CleanLines is [Clean] for text of several lines: line breaks stay.
func CleanLines(s string) string { return quote.CleanLines(s) }

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
