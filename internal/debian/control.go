// Package debian reads what Debian and its kin publish: control files (deb822(5)), versions and relations between packages
// (deb-version(7), Debian Policy 7), .deb files (deb(5)), and the signed indices of an archive (apt-secure(8)).
//
//	control.go   paragraphs of fields        release.go    the index of an archive's indices
//	version.go   the order of versions       signature.go  who signed it, and the keys that come with sconce
//	relation.go  what a package needs        universe.go   all packages of some archives
//	deb.go       package files               closure.go    which of them an installation takes
//
// All of it comes from elsewhere: everything has limits, and what is not understood is an error.
package debian

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of a control file, in bytes. The longest paragraph of Debian has 60 kB.
const (
	maxLine      = 1 << 20
	maxParagraph = 4 << 20
)

// Field is one field of a paragraph.
type Field struct {
	Name  string
	Value string // without the blanks around it; further lines follow a newline, as they are
}

// Paragraph is a paragraph of a control file: its fields in their order, no two of one name.
type Paragraph []Field

// Get returns the value of a field, "" when there is none. Upper and lower case are the same in names.
func (p Paragraph) Get(name string) string {
	for _, f := range p {
		if sameName(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// sameName compares names, which are ASCII: of another length it is another one.
func sameName(a, b string) bool { return len(a) == len(b) && strings.EqualFold(a, b) }

// String writes the paragraph as it is read, without the empty line behind it.
func (p Paragraph) String() string {
	var b strings.Builder
	for _, f := range p {
		b.WriteString(f.Name)
		b.WriteByte(':')
		if f.Value != "" && f.Value[0] != '\n' {
			b.WriteByte(' ')
		}
		b.WriteString(f.Value)
		b.WriteByte('\n')
	}
	return b.String()
}

// Reader reads paragraphs.
type Reader struct {
	lines *bufio.Scanner
	line  int
}

// NewReader returns a reader of the paragraphs in r.
func NewReader(r io.Reader) *Reader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	return &Reader{lines: s}
}

// Next returns the next paragraph, or io.EOF.
func (r *Reader) Next() (Paragraph, error) {
	var p Paragraph
	var value strings.Builder
	size := 0
	finish := func() {
		if len(p) > 0 {
			p[len(p)-1].Value = value.String()
		}
	}
	for r.lines.Scan() {
		r.line++
		line := r.lines.Text()
		if size += len(line); size > maxParagraph {
			return nil, r.bad("the paragraph is longer than %d MiB", maxParagraph>>20)
		}
		if strings.IndexByte(line, 0) >= 0 {
			return nil, r.bad("there is a NUL in it")
		}
		blank := strings.TrimRight(line, " \t\r") == ""
		switch {
		case blank && len(p) == 0, strings.HasPrefix(line, "#"):
		case blank:
			finish()
			return p, nil
		case line[0] == ' ' || line[0] == '\t':
			if len(p) == 0 {
				return nil, r.bad("a line goes on with a field, and there is none")
			}
			value.WriteByte('\n')
			value.WriteString(strings.TrimRight(line, " \t\r"))
		default:
			name, rest, ok := strings.Cut(line, ":")
			if !ok || !isFieldName(name) {
				return nil, r.bad("%.40q is no field", line)
			}
			if p.has(name) {
				return nil, r.bad("the field %s stands there twice", name)
			}
			finish()
			value.Reset()
			value.WriteString(strings.Trim(rest, " \t\r"))
			p = append(p, Field{Name: name})
		}
	}
	if err := r.lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, r.bad("the line is longer than %d MiB", maxLine>>20)
		}
		return nil, err
	}
	if len(p) == 0 {
		return nil, io.EOF
	}
	finish()
	return p, nil
}

func (r *Reader) bad(format string, args ...any) error {
	return fmt.Errorf("line %d of the control file: %s", r.line, fmt.Sprintf(format, args...))
}

func (p Paragraph) has(name string) bool {
	for _, f := range p {
		if sameName(f.Name, name) {
			return true
		}
	}
	return false
}

// isFieldName follows deb822(5): printable ASCII without blanks and colon, and no "-" first.
func isFieldName(s string) bool {
	if s == "" || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
