package fatbin

import (
	"bytes"
	"strconv"
	"strings"
)

// maxPreface is how much of a PTX text is read for its directives, in bytes. Only comments can stand before them.
const maxPreface = 16 << 10

// ptxHeader is what the first directives of a PTX text say (PTX ISA, "PTX Module Directives").
type ptxHeader struct {
	major, minor int
	arch         Arch
}

// decodePTX reads ".version 8.4" and ".target sm_90a, debug" from the start of a PTX text. False when they do not come first.
func decodePTX(text []byte) (h ptxHeader, is bool) {
	rest, is := bytes.CutPrefix(skipComments(text), []byte(".version"))
	if !is {
		return h, false
	}
	line, rest := cutLine(rest)
	major, minor, is := strings.Cut(line, ".")
	if !is || !number(major, &h.major) || !number(minor, &h.minor) {
		return h, false
	}
	if rest, is = bytes.CutPrefix(skipComments(rest), []byte(".target")); !is {
		return h, false
	}
	line, _ = cutLine(rest)
	target, _, _ := strings.Cut(line, ",")
	sm, is := strings.CutPrefix(strings.TrimSpace(target), "sm_")
	if n := len(sm); n > 0 && (sm[n-1] == 'a' || sm[n-1] == 'f') {
		sm, h.arch.Variant = sm[:n-1], sm[n-1:]
	}
	return h, is && number(sm, &h.arch.SM)
}

func number(s string, n *int) bool {
	v, err := strconv.ParseUint(s, 10, 16)
	*n = int(v)
	return err == nil
}

// cutLine gives the text before a comment or the line's end, trimmed, and what comes after it.
func cutLine(b []byte) (string, []byte) {
	line, rest := b, []byte(nil)
	if i := bytes.IndexAny(b, "\n\r\x00"); i >= 0 {
		line, rest = b[:i], b[i:]
	}
	if i := bytes.Index(line, []byte("//")); i >= 0 {
		line = line[:i]
	}
	return string(bytes.TrimSpace(line)), rest
}

// skipComments cuts off the white space and comments that b begins with.
func skipComments(b []byte) []byte {
	for {
		b = bytes.TrimLeft(b, " \t\r\n")
		end := ""
		switch {
		case bytes.HasPrefix(b, []byte("//")):
			end = "\n"
		case bytes.HasPrefix(b, []byte("/*")):
			end = "*/"
		default:
			return b
		}
		_, rest, is := bytes.Cut(b[2:], []byte(end))
		if !is {
			return nil
		}
		b = rest
	}
}

// barePTX reads a file, or a member of an archive, if it is PTX text.
func (s *scanner) barePTX(start, end int64) (bool, error) {
	text, err := s.bytes(start, min(maxPreface, end-start))
	if err != nil {
		return false, err
	}
	h, is := decodePTX(text)
	if !is {
		return false, nil
	}
	size := end - start
	e := Entry{
		Kind: PTX, Arch: h.arch, Major: h.major, Minor: h.minor, Compression: Stored,
		Offset: start, PaddedSize: size, PayloadSize: size, UncompressedSize: size,
	}
	return true, s.add(Region{Place: Bare, Offset: start, Size: size, Headerless: true, Entries: []Entry{e}})
}
