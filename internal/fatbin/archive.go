package fatbin

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// The ar format, as GNU and BSD write it: a magic and members, each with a header of 60 bytes, on even offsets.
const (
	archiveMagic     = "!<arch>\n"
	thinMagic        = "!<thin>\n"
	memberHeaderSize = 60
	maxMembers       = 1 << 18
	maxMemberName    = 1 << 10
)

// archive reads the members of a static archive.
func (s *scanner) archive() error {
	defer func() { s.member = "" }()
	var names section // GNU's table of long names
	off := int64(len(archiveMagic))
	for n := 0; off < s.size; n++ {
		if n == maxMembers {
			return limitError(fmt.Sprintf("it has more than %d members", maxMembers))
		}
		m, err := s.archiveMember(off, names)
		if err != nil {
			return s.note(err)
		}
		switch {
		case m.table:
			names = section{off: m.start, size: m.end - m.start}
		case m.name != "":
			s.member = m.name
			if _, err := s.object(m.start, m.end); err != nil {
				return err
			}
		}
		off = m.end + m.end%2
	}
	return nil
}

type archiveMember struct {
	name       string // empty for tables of symbols
	table      bool   // of long names
	start, end int64
}

func (s *scanner) archiveMember(off int64, names section) (archiveMember, error) {
	s.member = ""
	if !within(off, memberHeaderSize, 0, s.size) {
		return archiveMember{}, badf(off, "an archive ends inside a member's header")
	}
	head, err := s.bytes(off, memberHeaderSize)
	if err != nil {
		return archiveMember{}, err
	}
	size, err := strconv.ParseUint(strings.TrimSpace(string(head[48:58])), 10, 63)
	m := archiveMember{start: off + memberHeaderSize}
	if err != nil || string(head[58:60]) != "`\n" || !within(m.start, int64(size), 0, s.size) {
		return m, badf(off, "no member of an archive, or one that goes beyond its end")
	}
	m.end = m.start + int64(size)
	field := strings.TrimRight(string(head[:16]), " ")
	switch {
	case field == "//":
		m.table = true
	case field == "/", field == "/SYM64/", strings.HasPrefix(field, "__.SYMDEF"):
	case strings.HasPrefix(field, "/"):
		m.name, err = s.gnuName(field[1:], names)
	case strings.HasPrefix(field, "#1/"):
		err = s.bsdName(field[3:], &m)
	default:
		m.name = strings.TrimSuffix(field, "/")
	}
	return m, err
}

// gnuName reads a name that ends with "/\n" at a decimal offset of the table.
func (s *scanner) gnuName(digits string, names section) (string, error) {
	at, err := strconv.ParseUint(digits, 10, 62)
	if err != nil || int64(at) >= names.size {
		return "", badf(names.off, "a member's name at %q, which the table of names does not have", digits)
	}
	b, err := s.bytes(names.off+int64(at), min(maxMemberName, names.size-int64(at)))
	if err != nil {
		return "", err
	}
	name, _, _ := bytes.Cut(b, []byte("/\n"))
	return string(name), nil
}

// bsdName reads a name that precedes the member's data, padded with zeros.
func (s *scanner) bsdName(digits string, m *archiveMember) error {
	n, err := strconv.ParseUint(digits, 10, 62)
	if err != nil || n > maxMemberName || !within(m.start, int64(n), 0, m.end) {
		return badf(m.start, "a member's name of %q bytes", digits)
	}
	b, err := s.bytes(m.start, int64(n))
	if err != nil {
		return err
	}
	m.name = string(bytes.TrimRight(b, "\x00"))
	if strings.HasPrefix(m.name, "__.SYMDEF") {
		m.name = ""
	}
	m.start += int64(n)
	return nil
}
