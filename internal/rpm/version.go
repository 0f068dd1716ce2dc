package rpm

import (
	"cmp"
	"strings"
)

// Version is a version as rpm understands it: epoch:version-release.
type Version struct {
	Epoch            string // "" counts as 0
	Version, Release string
}

// ParseVersion reads [EPOCH:]VERSION[-RELEASE].
func ParseVersion(s string) Version {
	var v Version
	if epoch, rest, ok := strings.Cut(s, ":"); ok {
		v.Epoch, s = epoch, rest
	}
	v.Version, v.Release, _ = strings.Cut(s, "-")
	return v
}

// String writes the version as rpm's %{EVR} does: without an epoch of none, and without a release of none.
func (v Version) String() string {
	s := v.Version
	if v.Epoch != "" && v.Epoch != "0" {
		s = v.Epoch + ":" + s
	}
	if v.Release != "" {
		s += "-" + v.Release
	}
	return s
}

// Compare orders versions as rpm does. A release counts only where both have one.
func (v Version) Compare(w Version) int {
	if c := compareParts(cmp.Or(v.Epoch, "0"), cmp.Or(w.Epoch, "0")); c != 0 {
		return c
	}
	if c := compareParts(v.Version, w.Version); c != 0 || v.Release == "" || w.Release == "" {
		return c
	}
	return compareParts(v.Release, w.Release)
}

// compareParts compares versions, or releases, piece by piece (https://rpm-software-management.github.io/rpm/manual/dependencies.html,
// "Versioning"): numbers by their value and above letters, letters by their order. "~" is below everything, the end too; "^" is
// above the end and below everything else.
func compareParts(a, b string) int {
	if a == b {
		return 0
	}
	for a != "" || b != "" {
		a, b = strings.TrimLeftFunc(a, separates), strings.TrimLeftFunc(b, separates)
		if c, is := compareMark(a, b, '~', -1, -1); is {
			if c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
			continue
		}
		if c, is := compareMark(a, b, '^', -1, 1); is {
			if c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
			continue
		}
		if a == "" || b == "" {
			break
		}
		belongs := isLetter
		if isDigit(a[0]) {
			belongs = isDigit
		}
		var x, y string
		x, a = cutWhile(a, belongs)
		y, b = cutWhile(b, belongs)
		if c := comparePieces(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// compareMark compares where one side has a mark: with against what is something else, and atEnd against the end.
func compareMark(a, b string, mark byte, with, atEnd int) (result int, is bool) {
	inA, inB := a != "" && a[0] == mark, b != "" && b[0] == mark
	switch {
	case inA && inB:
		return 0, true
	case inA && b == "":
		return atEnd, true
	case inA:
		return with, true
	case inB && a == "":
		return -atEnd, true
	case inB:
		return -with, true
	}
	return 0, false
}

func comparePieces(x, y string) int {
	numeric := isDigit(x[0])
	if y == "" { // the other has a piece of the other kind there
		if numeric {
			return 1
		}
		return -1
	}
	if numeric {
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Compare(len(x), len(y)); c != 0 {
			return c
		}
	}
	return strings.Compare(x, y)
}

func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func separates(r rune) bool {
	return r != '~' && r != '^' && (r > 0x7f || !isDigit(byte(r)) && !isLetter(byte(r)))
}

func cutWhile(s string, belongs func(byte) bool) (piece, rest string) {
	n := 0
	for n < len(s) && belongs(s[n]) {
		n++
	}
	return s[:n], s[n:]
}
