package rpm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A list of packages is up to a gigabyte of XML, and going through it with encoding/xml, which makes a value of every token, takes a minute.
// What follows reads the XML that such lists are: UTF-8, names in ASCII, no document type. Anything else is refused, as is whatever
// encoding/xml refuses, token by token, and elements that do not end; tests hold them against each other.

// maxItem is the most that a tag, a comment or the text between two tags may have, in bytes: a text has to be in memory as a whole, and of
// one that is longer than maxText nothing is kept.
const maxItem = 1 << 20

// maxDepth is how deep elements lie in each other; those of lists do five deep.
const maxDepth = 100

// scanner goes through the elements of a list, which is too long to be kept.
type scanner struct {
	in  io.Reader
	buf []byte
	at  int // in buf: what comes next
	end error

	open  []string // elements that have begun, without prefixes
	text  []byte   // in the element since its last tag, as it is meant
	tag   tag
	names map[string]string // of elements and attributes
}

// tag is the beginning of an element. Names are without prefixes. Bytes are good until the next one.
type tag struct {
	name       string
	attributes []attribute
	closed     bool // it is the end as well
}

type attribute struct {
	name  string
	value []byte
}

// get returns the value of an attribute, nil when there is none.
func (t *tag) get(name string) []byte {
	for i := range t.attributes {
		if t.attributes[i].name == name {
			return t.attributes[i].value
		}
	}
	return nil
}

func newScanner(r io.Reader) *scanner {
	return &scanner{in: r, buf: make([]byte, 0, 64<<10), names: map[string]string{}}
}

// run calls start at the beginning of each element, and end at its end with the text in it.
func (s *scanner) run(start func(*tag) error, end func(name string, text []byte) error) error {
	for {
		rest, err := s.have(1)
		switch {
		case err != nil:
			return damaged(err)
		case len(rest) == 0:
			return s.finish()
		case rest[0] != '<':
			if err := s.characters(); err != nil {
				return damaged(err)
			}
			continue
		}
		if rest, err = s.have(len("<![CDATA[")); err != nil {
			return damaged(err)
		}
		switch {
		case bytes.HasPrefix(rest, []byte("</")):
			name, err := s.endTag()
			if err != nil {
				return damaged(err)
			}
			err = end(name, bytes.TrimSpace(s.text))
			s.text = s.text[:0]
			if err != nil {
				return err
			}
		case bytes.HasPrefix(rest, []byte("<!")) || bytes.HasPrefix(rest, []byte("<?")):
			if err := s.other(rest); err != nil {
				return damaged(err)
			}
		default:
			if err := s.startTag(); err != nil {
				return damaged(err)
			}
			s.text = s.text[:0]
			err := start(&s.tag)
			if err == nil && s.tag.closed {
				err = end(s.tag.name, nil)
			}
			if err != nil {
				return err
			}
		}
	}
}

// finish returns an error when an element has no end.
func (s *scanner) finish() error {
	if len(s.open) == 0 {
		return nil
	}
	return damaged(fmt.Errorf("the element %s: %w", s.open[len(s.open)-1], io.ErrUnexpectedEOF))
}

func damaged(err error) error {
	return fmt.Errorf("it is damaged: %w", err)
}

// have returns what comes next: n bytes or more, or as many as there are.
func (s *scanner) have(n int) ([]byte, error) {
	for len(s.buf)-s.at < n && s.end == nil {
		if s.at > 0 {
			s.buf = s.buf[:copy(s.buf, s.buf[s.at:])]
			s.at = 0
		}
		if len(s.buf) == cap(s.buf) {
			s.buf = append(make([]byte, 0, 2*cap(s.buf)), s.buf...)
		}
		var read int
		read, s.end = s.in.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+read]
	}
	if s.end != nil && !errors.Is(s.end, io.EOF) {
		return nil, s.end
	}
	return s.buf[s.at:], nil
}

// until returns what comes before the next mark behind the first skip bytes, and whether that is there at all.
func (s *scanner) until(mark string, skip int) (before []byte, there bool, err error) {
	for seen := skip; ; {
		rest, err := s.have(seen + len(mark))
		if err != nil {
			return nil, false, err
		}
		if i := bytes.Index(rest[min(seen, len(rest)):], []byte(mark)); i >= 0 {
			return rest[:seen+i], true, nil
		}
		if s.end != nil {
			return rest, false, nil //nolint:nilerr // the next call returns it
		}
		if len(rest) >= maxItem {
			return nil, false, fmt.Errorf("something in it is longer than %d MiB", maxItem>>20)
		}
		seen = max(skip, len(rest)-len(mark)+1)
	}
}

// characters takes the text up to the next tag.
func (s *scanner) characters() error {
	raw, _, err := s.until("<", 0)
	if err != nil {
		return err
	}
	s.at += len(raw)
	if bytes.Contains(raw, []byte("]]>")) {
		return errors.New("a text has ]]>")
	}
	return s.keep(raw, true)
}

func (s *scanner) keep(raw []byte, entities bool) error {
	text, err := meant(raw, entities)
	if err == nil && len(s.text)+len(text) <= maxText {
		s.text = append(s.text, text...)
	}
	return err
}

// other takes what is neither text nor a tag.
func (s *scanner) other(begin []byte) error {
	opening, closing := "<?", "?>"
	switch {
	case bytes.HasPrefix(begin, []byte("<!--")):
		opening, closing = "<!--", "-->"
	case bytes.HasPrefix(begin, []byte("<![CDATA[")):
		opening, closing = "<![CDATA[", "]]>"
	case begin[1] == '!':
		return fmt.Errorf("it has %.20q, which no list has", begin)
	}
	all, there, err := s.until(closing, len(opening))
	if err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("%s: %w", opening, io.ErrUnexpectedEOF)
	}
	inside := all[len(opening):]
	s.at += len(all) + len(closing)
	switch opening {
	case "<?":
		return instruction(inside)
	case "<!--":
		if bytes.Contains(inside, []byte("--")) || bytes.HasSuffix(inside, []byte("-")) {
			return errors.New("a comment has --")
		}
		return nil
	}
	return s.keep(inside, false)
}

// instruction checks the first line: another encoding would have to be decoded, and nobody writes one.
func instruction(inside []byte) error {
	text := string(inside)
	switch name, rest, _ := strings.Cut(text, " "); {
	case name == "" || !isNameStart(name[0]) || !validName(inside[:len(name)]):
		return fmt.Errorf("it has an instruction %.20q", text)
	case name != "xml":
		return nil
	default:
		for _, word := range strings.Fields(strings.ReplaceAll(rest, "'", `"`)) {
			switch strings.ToLower(word) {
			case `version="1.0"`, `encoding="utf-8"`, `standalone="yes"`, `standalone="no"`:
			default:
				return fmt.Errorf("it is XML with %.40s, and 1.0 in UTF-8 is known", word)
			}
		}
		return nil
	}
}

// endTag takes an element's end, and returns its name.
func (s *scanner) endTag() (string, error) {
	all, there, err := s.until(">", 0)
	if err != nil {
		return "", err
	}
	if !there {
		return "", io.ErrUnexpectedEOF
	}
	s.at += len(all) + 1
	name, err := s.name(bytes.TrimRight(all[len("</"):], " \t\r\n"))
	if err != nil {
		return "", err
	}
	last := len(s.open) - 1
	if last < 0 || s.open[last] != name {
		return "", fmt.Errorf("the element %s ends where it has not begun", name)
	}
	s.open = s.open[:last]
	return name, nil
}

// startTag takes an element's beginning.
func (s *scanner) startTag() error {
	var all []byte
	var quote byte
	for skip := 0; ; skip = len(all) + 1 { // a value may have > in it
		var there bool
		var err error
		if all, there, err = s.until(">", skip); err != nil {
			return err
		}
		if !there {
			return io.ErrUnexpectedEOF
		}
		if quote = quoteAfter(all[min(skip, len(all)):], quote); quote == 0 {
			break
		}
	}
	s.at += len(all) + 1
	inside := all[len("<"):]
	s.tag.closed = bytes.HasSuffix(inside, []byte("/"))
	if s.tag.closed {
		inside = inside[:len(inside)-1]
	}
	n := bytes.IndexAny(inside, " \t\r\n")
	if n < 0 {
		n = len(inside)
	}
	var err error
	if s.tag.name, err = s.name(inside[:n]); err != nil {
		return err
	}
	if !s.tag.closed {
		if len(s.open) == maxDepth {
			return fmt.Errorf("elements lie more than %d deep in each other", maxDepth)
		}
		s.open = append(s.open, s.tag.name)
	}
	return s.readAttributes(inside[n:])
}

// quoteAfter returns the quote that a value stands in behind b, 0 outside of values, with that before b.
func quoteAfter(b []byte, quote byte) byte {
	for _, c := range b {
		switch {
		case quote == c:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		}
	}
	return quote
}

func (s *scanner) readAttributes(b []byte) error {
	s.tag.attributes = s.tag.attributes[:0]
	for b = trimLeft(b); len(b) > 0; b = trimLeft(b) {
		equals := bytes.IndexByte(b, '=')
		if equals < 0 {
			return fmt.Errorf("an element has %.20q", b)
		}
		name, err := s.name(bytes.TrimRight(b[:equals], " \t\r\n"))
		if err != nil {
			return err
		}
		b = trimLeft(b[equals+1:])
		if len(b) == 0 || b[0] != '"' && b[0] != '\'' {
			return fmt.Errorf("the attribute %s has no quotes", name)
		}
		n := bytes.IndexByte(b[1:], b[0])
		if n < 0 {
			return fmt.Errorf("the attribute %s has one quote", name)
		}
		raw := b[1 : 1+n]
		if bytes.IndexByte(raw, '<') >= 0 {
			return fmt.Errorf("the attribute %s has a <", name)
		}
		value, err := meant(raw, true)
		if err != nil {
			return err
		}
		s.tag.attributes = append(s.tag.attributes, attribute{name, value})
		b = b[n+2:]
	}
	return nil
}

func trimLeft(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\r' || b[0] == '\n') {
		b = b[1:]
	}
	return b
}

// name returns a name without its prefix, and keeps one copy of each.
func (s *scanner) name(b []byte) (string, error) {
	if name, ok := s.names[string(b)]; ok {
		return name, nil
	}
	if !validName(b) {
		return "", fmt.Errorf("it has an element or attribute %.20q", b)
	}
	prefix, local, found := strings.Cut(string(b), ":")
	if !found {
		local = prefix
	}
	if local == "" || !isNameStart(local[0]) || strings.Contains(local, ":") {
		return "", fmt.Errorf("it has an element or attribute %.20q", b)
	}
	const most = 1000 // a hostile list has others every time
	if len(s.names) < most {
		s.names[string(b)] = local
	}
	return local, nil
}

func isNameStart(c byte) bool { return isLetter(c) || c == '_' }

func validName(b []byte) bool {
	for _, c := range b {
		if !isLetterOrDigit(c) && strings.IndexByte("_-.:", c) < 0 {
			return false
		}
	}
	return len(b) > 0 && isNameStart(b[0])
}

// plain are the bytes of a text that mean themselves, wherever they stand; others have to be looked at.
var plain = func() (is [256]bool) {
	for c := range is {
		is[c] = c >= ' ' && c < utf8.RuneSelf && c != '&' || c == '\t' || c == '\n'
	}
	return is
}()

// meant is what a text says: characters written by number or name are those characters, line ends are newlines.
func meant(raw []byte, entities bool) ([]byte, error) {
	first := 0
	for first < len(raw) && plain[raw[first]] {
		first++
	}
	if first == len(raw) {
		return raw, nil
	}
	out := append(make([]byte, 0, len(raw)), raw[:first]...)
	for i := first; i < len(raw); {
		c := raw[i]
		switch {
		case c == '\r':
			out = append(out, '\n')
			i++
			if i < len(raw) && raw[i] == '\n' {
				i++
			}
		case c == '&' && entities:
			character, size := entity(raw[i:])
			if size == 0 {
				return nil, fmt.Errorf("a text has %.12q", raw[i:])
			}
			out = utf8.AppendRune(out, character)
			i += size
		default:
			character, size := utf8.DecodeRune(raw[i:])
			if character == utf8.RuneError && size == 1 || !isCharacter(character) {
				return nil, fmt.Errorf("a text has %.4q, which is no character", raw[i:])
			}
			out = append(out, raw[i:i+size]...)
			i += size
		}
	}
	return out, nil
}

// isCharacter follows XML 1.0, 2.2.
func isCharacter(c rune) bool {
	return c == '\t' || c == '\n' || c == '\r' || c >= ' ' && c <= 0xd7ff || c >= 0xe000 && c <= 0xfffd || c >= 0x10000 && c <= utf8.MaxRune
}

// entities are those that every document has (XML 1.0, 4.6).
var entities = map[string]rune{"lt": '<', "gt": '>', "amp": '&', "apos": '\'', "quot": '"'}

// entity reads a character that is written by name or by number, and how many bytes that takes: 0 when it is none.
func entity(b []byte) (rune, int) {
	const longest = len("&#x0010ffff;")
	n := bytes.IndexByte(b[:min(len(b), longest)], ';')
	if n < 0 {
		return 0, 0
	}
	name := b[1:n]
	if c, ok := entities[string(name)]; ok {
		return c, n + 1
	}
	digits, isNumber := bytes.CutPrefix(name, []byte("#"))
	base := 10
	if hex, ok := bytes.CutPrefix(digits, []byte("x")); ok {
		digits, base = hex, 16
	}
	c, err := parseCharacter(string(digits), base)
	if !isNumber || err != nil || !isCharacter(c) {
		return 0, 0
	}
	return c, n + 1
}

func parseCharacter(digits string, base int) (rune, error) {
	v, err := strconv.ParseUint(digits, base, 31)
	return rune(v), err
}
