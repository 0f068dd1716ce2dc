package python

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// Metadata is what sconce reads of a distribution's METADATA or PKG-INFO (packaging.python.org, "Core metadata
// specifications").
type Metadata struct {
	Name           string
	Version        string
	Summary        string
	License        string // License-Expression, else License
	RequiresPython string
	RequiresDist   []string
	ProvidesExtra  []string
}

// ParseMetadata reads the header fields of a METADATA file. Name and version must be there.
func ParseMetadata(data []byte) (Metadata, error) {
	h, err := parseHeaders(data)
	if err != nil {
		return Metadata{}, err
	}
	m := Metadata{
		Name:           h.get("Name"),
		Version:        h.get("Version"),
		Summary:        h.get("Summary"),
		License:        h.get("License-Expression"),
		RequiresPython: h.get("Requires-Python"),
		RequiresDist:   unfolded(h["requires-dist"]),
		ProvidesExtra:  h["provides-extra"],
	}
	if m.License == "" {
		m.License = h.get("License")
	}
	switch {
	case m.Name == "" || !validName(m.Name):
		return Metadata{}, fmt.Errorf("%q is not a distribution's name", m.Name)
	case m.Version == "":
		return Metadata{}, errors.New("it gives no version")
	}
	return m, nil
}

// unfolded puts values that go over several lines on one, as RFC 5322, section 2.2.3, reads them.
func unfolded(values []string) []string {
	for i, v := range values {
		values[i] = strings.ReplaceAll(v, "\n", " ")
	}
	return values
}

// validName says whether name has the form that "Names and normalization" demands: ASCII letters and digits, with ".",
// "_" and "-" between them.
func validName(name string) bool {
	for i, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		case (r == '.' || r == '_' || r == '-') && i > 0 && i < len(name)-1:
		default:
			return false
		}
	}
	return name != ""
}

// headers are the fields of a file in the email header format, by lower-case name, in order.
type headers map[string][]string

func (h headers) get(name string) string {
	if v := h[strings.ToLower(name)]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// parseHeaders reads fields up to the first empty line. A line that starts with white space continues the one before.
func parseHeaders(data []byte) (headers, error) {
	h := make(headers)
	last := ""
	number := 0
	for line := range bytes.Lines(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))) {
		number++
		text := strings.TrimRight(string(line), "\r\n")
		if text == "" {
			break
		}
		if text[0] == ' ' || text[0] == '\t' {
			if values := h[last]; len(values) > 0 {
				values[len(values)-1] += "\n" + strings.TrimSpace(text)
			}
			continue
		}
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return nil, fmt.Errorf("line %d is not of the form Name: value", number)
		}
		last = strings.ToLower(strings.TrimSpace(name))
		h[last] = append(h[last], strings.TrimSpace(value))
	}
	return h, nil
}
