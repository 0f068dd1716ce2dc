package python

import (
	"errors"
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// Requirement is one dependency as packaging.python.org, "Dependency specifiers" (PEP 508), writes it:
//
//	name[extra,…] >=1.2,<2 ; marker
//	name[extra,…] @ address ; marker
type Requirement struct {
	Name       string   // as written; NormalizeName gives the form to compare
	Extras     []string // normalised
	Specifiers Specifiers
	URL        string
	Marker     *Marker // nil: always
}

// maxRequirement bounds a requirement's text, in bytes.
const maxRequirement = 64 << 10

var nameStart = lazyregexp.New(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`)

// ParseRequirement reads a requirement.
func ParseRequirement(s string) (Requirement, error) {
	if len(s) > maxRequirement {
		return Requirement{}, fmt.Errorf("a requirement of %d characters is too long", len(s))
	}
	r, err := parseRequirement(s)
	if err != nil {
		return Requirement{}, fmt.Errorf("%q is not a requirement: %w", strings.TrimSpace(s), err)
	}
	return r, nil
}

func parseRequirement(s string) (Requirement, error) {
	s = strings.Trim(s, blanks)
	var r Requirement
	r.Name = nameStart.FindString(s)
	if r.Name == "" {
		return r, errors.New("it must start with a package's name")
	}
	rest, err := r.parseExtras(strings.TrimLeft(s[len(r.Name):], blanks))
	if err != nil {
		return r, err
	}
	if address, ok := strings.CutPrefix(rest, "@"); ok {
		rest, err = r.parseURL(strings.TrimLeft(address, blanks))
	} else {
		rest, err = r.parseVersions(rest)
	}
	if err != nil {
		return r, err
	}
	return r, r.parseMarker(rest)
}

// blanks are the characters that the grammar passes over.
const blanks = " \t"

func (r *Requirement) parseExtras(s string) (rest string, err error) {
	if !strings.HasPrefix(s, "[") {
		return s, nil
	}
	list, rest, closed := strings.Cut(s[1:], "]")
	if !closed {
		return "", errors.New(`the "[" before the extras is not closed`)
	}
	if strings.Trim(list, blanks) == "" {
		return strings.TrimLeft(rest, blanks), nil
	}
	for extra := range strings.SplitSeq(list, ",") {
		extra = strings.Trim(extra, blanks)
		if !validName(extra) {
			return "", fmt.Errorf("%q is not the name of an extra", extra)
		}
		r.Extras = append(r.Extras, NormalizeName(extra))
	}
	return strings.TrimLeft(rest, blanks), nil
}

// parseURL takes the address, which ends at the first blank: a semicolon may be part of it.
func (r *Requirement) parseURL(s string) (rest string, err error) {
	end := strings.IndexAny(s, blanks)
	if end < 0 {
		end = len(s)
	}
	if r.URL = s[:end]; r.URL == "" {
		return "", errors.New("no address follows the @")
	}
	return strings.TrimLeft(s[end:], blanks), nil
}

func (r *Requirement) parseVersions(s string) (rest string, err error) {
	end := strings.IndexByte(s, ';')
	if end < 0 {
		end = len(s)
	}
	list, rest := strings.Trim(s[:end], blanks), s[end:]
	if inner, ok := strings.CutPrefix(list, "("); ok {
		if list, ok = strings.CutSuffix(inner, ")"); !ok {
			return "", errors.New(`the "(" before the versions is not closed`)
		}
	}
	for clause := range strings.SplitSeq(strings.TrimSuffix(strings.Trim(list, blanks), ","), ",") {
		clause = strings.Trim(clause, blanks)
		switch {
		case list != "" && clause == "":
			return "", errors.New("there is a comma without a version condition before it")
		case trimSpace(clause) != clause:
			return "", errors.New("only blanks and tabs may stand between its parts")
		}
	}
	r.Specifiers, err = ParseSpecifiers(list)
	return rest, err
}

func (r *Requirement) parseMarker(s string) error {
	if s == "" {
		return nil
	}
	text, ok := strings.CutPrefix(s, ";")
	if !ok {
		return fmt.Errorf("%q follows the address; a marker starts with a blank and a semicolon", s)
	}
	m, err := ParseMarker(text)
	if err != nil {
		return err
	}
	r.Marker = &m
	return nil
}
