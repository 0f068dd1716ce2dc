package python

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Version is the version of a distribution, in the order that packaging.python.org, "Version specifiers" (PEP 440),
// gives versions. The zero Version is not valid.
type Version struct {
	text    string // as written
	epoch   number
	release []number // at least one
	pre     string   // "a", "b", "rc" or ""
	preN    number
	post    *number
	dev     *number
	local   []string // lower case
}

// number is a decimal number of any length, without leading zeros; "" is 0. Versions made of dates and hashes need more
// than 64 bits, and nobody computes with them.
type number string

func parseNumber(s string) number { return number(strings.TrimLeft(s, "0")) }

func (n number) compare(m number) int {
	return cmp.Or(cmp.Compare(len(n), len(m)), strings.Compare(string(n), string(m)))
}

// maxVersion bounds a version's text, in bytes.
const maxVersion = 1024

// The groups are epoch, release, pre letter, pre number, "-N" post number, post letter, post number, dev, dev number, local.
const versionPattern = `v?(?:([0-9]+)!)?([0-9]+(?:\.[0-9]+)*)` +
	`(?:[-_.]?(alpha|beta|preview|pre|a|b|c|rc)[-_.]?([0-9]*))?` +
	`(?:-([0-9]+)|[-_.]?(post|rev|r)[-_.]?([0-9]*))?` +
	`(?:[-_.]?(dev)[-_.]?([0-9]*))?` +
	`(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?`

var versionForm = lazyregexp.New(`^(?i:` + versionPattern + `)$`)

// preNames are the spellings of pre-releases that have another normal form.
var preNames = map[string]string{"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}

// ParseVersion reads a version in any of the spellings that PEP 440 allows.
func ParseVersion(s string) (Version, error) {
	s = trimSpace(s)
	if len(s) > maxVersion {
		return Version{}, fmt.Errorf("a version of %d characters is too long", len(s))
	}
	m := versionForm.FindStringSubmatch(s)
	if m == nil || !isASCII(s) { // (?i) takes "ſ" for an s
		return Version{}, fmt.Errorf("%q is not a version", s)
	}
	v := Version{text: s, epoch: parseNumber(m[1]), pre: strings.ToLower(m[3]), preN: parseNumber(m[4])}
	for part := range strings.SplitSeq(m[2], ".") {
		v.release = append(v.release, parseNumber(part))
	}
	if normal, ok := preNames[v.pre]; ok {
		v.pre = normal
	}
	if m[5] != "" || m[6] != "" {
		n := parseNumber(m[5] + m[7])
		v.post = &n
	}
	if m[8] != "" {
		n := parseNumber(m[9])
		v.dev = &n
	}
	if m[10] != "" {
		v.local = strings.FieldsFunc(strings.ToLower(m[10]), func(r rune) bool { return strings.ContainsRune("-_.", r) })
	}
	return v, nil
}

// isSpace reports what Python calls white space (str.isspace): also the four separators of ASCII.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// trimSpace is Python's str.strip.
func trimSpace(s string) string { return strings.TrimFunc(s, isSpace) }

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

// String returns the version as it was written.
func (v Version) String() string { return v.text }

// Compare returns -1, 0 or +1 as v is before, equal to or after w.
func (v Version) Compare(w Version) int {
	return cmp.Or(v.comparePublic(w), compareLocal(v.local, w.local))
}

// comparePublic compares without the local labels.
func (v Version) comparePublic(w Version) int {
	return cmp.Or(
		v.compareBase(w),
		cmp.Compare(v.phase(), w.phase()),
		v.preN.compare(w.preN),
		compareOptional(v.post, w.post, -1), // no post-release comes before any
		compareOptional(v.dev, w.dev, +1),   // no development release comes after any
	)
}

// compareBase compares epoch and release.
func (v Version) compareBase(w Version) int {
	if c := v.epoch.compare(w.epoch); c != 0 {
		return c
	}
	for i := range max(len(v.release), len(w.release)) {
		if c := v.part(i).compare(w.part(i)); c != 0 {
			return c
		}
	}
	return 0
}

// part returns the i-th number of the release, which ends in as many zeros as one likes.
func (v Version) part(i int) number {
	if i < len(v.release) {
		return v.release[i]
	}
	return ""
}

// phase orders what a release goes through: development of it, pre-releases, itself.
func (v Version) phase() string {
	switch {
	case v.pre != "":
		return v.pre // a, b, rc
	case v.post == nil && v.dev != nil:
		return "" // 1.0.dev1 comes before 1.0a1
	default:
		return "~" // after every letter
	}
}

func (v Version) isPrerelease() bool { return v.pre != "" || v.dev != nil }

// compareOptional compares numbers that may be missing; a missing one compares as missing says.
func compareOptional(a, b *number, missing int) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return missing
	case b == nil:
		return -missing
	default:
		return a.compare(*b)
	}
}

// compareLocal compares local labels part by part: numbers come after words, and more parts after fewer.
func compareLocal(a, b []string) int {
	return slices.CompareFunc(a, b, func(x, y string) int {
		switch xn, yn := digits(x), digits(y); {
		case xn && yn:
			return parseNumber(x).compare(parseNumber(y))
		case xn:
			return 1
		case yn:
			return -1
		default:
			return strings.Compare(x, y)
		}
	})
}
