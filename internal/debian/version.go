package debian

import (
	"cmp"
	"fmt"
	"strings"
)

// CheckVersion refuses what is no version (deb-version(7)): [EPOCH:]UPSTREAM[-REVISION].
func CheckVersion(v string) error {
	epoch, rest, ok := strings.Cut(v, ":")
	if !ok {
		epoch, rest = "0", v
	}
	upstream, revision := rest, "0"
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		upstream, revision = rest[:i], rest[i+1:]
	}
	if len(v) > 1000 || !all(epoch, digit) || !all(upstream, func(c byte) bool { return inVersion(c) || c == '-' || c == ':' }) || !all(revision, inVersion) {
		return fmt.Errorf("%.80q is no version", v)
	}
	return nil
}

func inVersion(c byte) bool {
	return digit(c) || letter(c) || c == '.' || c == '+' || c == '~'
}

func digit(c byte) bool  { return '0' <= c && c <= '9' }
func letter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// all reports whether s has characters, and only such.
func all(s string, is func(byte) bool) bool {
	for i := range len(s) {
		if !is(s[i]) {
			return false
		}
	}
	return s != ""
}

// WrittenVersion is v as dpkg writes it in what it says of installed packages: without an epoch of 0, where nothing else has a colon, and
// without zeros before another (dpkg's varbufversion).
func WrittenVersion(v string) string {
	epoch, rest, ok := strings.Cut(v, ":")
	if !ok {
		return v
	}
	epoch = strings.TrimLeft(epoch, "0")
	if epoch == "" && !strings.Contains(rest, ":") {
		return rest
	}
	return cmp.Or(epoch, "0") + ":" + rest
}

// CompareVersions returns -1, 0 or 1: whether version a is before b (deb-version(7), "Sorting algorithm").
func CompareVersions(a, b string) int {
	ea, ua, ra := splitVersion(a)
	eb, ub, rb := splitVersion(b)
	return cmp.Or(comparePart(ea, eb), comparePart(ua, ub), comparePart(ra, rb))
}

func splitVersion(v string) (epoch, upstream, revision string) {
	if e, rest, ok := strings.Cut(v, ":"); ok {
		epoch, v = e, rest
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return epoch, v[:i], v[i+1:]
	}
	return epoch, v, ""
}

// comparePart compares by turns what is not digits, by letters before others and "~" before all and before the end, and
// numbers. No number at all is 0.
func comparePart(a, b string) int {
	for a != "" || b != "" {
		var x, y string
		x, a = cut(a, func(c byte) bool { return !digit(c) })
		y, b = cut(b, func(c byte) bool { return !digit(c) })
		for i := range max(len(x), len(y)) {
			if c := cmp.Compare(order(x, i), order(y, i)); c != 0 {
				return c
			}
		}
		x, a = cut(a, digit)
		y, b = cut(b, digit)
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
			return c
		}
	}
	return 0
}

// cut takes from the beginning of s what is of a kind.
func cut(s string, is func(byte) bool) (taken, rest string) {
	i := 0
	for i < len(s) && is(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// order is the place of a character of a part without digits; that of its end is 0.
func order(s string, i int) int {
	switch {
	case i >= len(s):
		return 0
	case s[i] == '~':
		return -1
	case letter(s[i]):
		return int(s[i])
	default:
		return int(s[i]) + 256
	}
}
