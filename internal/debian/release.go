package debian

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Release is the index of an archive's indices (repository format of Debian, "Release" files).
type Release struct {
	Suite, Codename string
	Date            time.Time
	ValidUntil      time.Time // zero: for ever
	ByHash          bool      // indices can be had under their hash
	SeparateAll     bool      // packages of architecture all have indices of their own
	Components      []string
	Architectures   []string
	Files           map[string]File // by path, relative to the file itself
}

// File is what a Release file says of an index.
type File struct {
	Size   int64  // bytes
	SHA256 string // hexadecimal
}

// ParseRelease reads a Release file.
func ParseRelease(text []byte) (*Release, error) {
	p, err := NewReader(bytes.NewReader(text)).Next()
	if err != nil {
		return nil, fmt.Errorf("the Release file cannot be read: %w", err)
	}
	r := &Release{
		Suite: p.Get("Suite"), Codename: p.Get("Codename"), ByHash: p.Get("Acquire-By-Hash") == "yes",
		Components: strings.Fields(p.Get("Components")), Architectures: strings.Fields(p.Get("Architectures")),
		Files: map[string]File{},
	}
	r.SeparateAll = slices.Contains(r.Architectures, "all") && !slices.Contains(strings.Fields(p.Get("No-Support-for-Architecture-all")), "Packages")
	if r.Date, err = parseDate(p.Get("Date")); err != nil {
		return nil, fmt.Errorf("the Release file has a bad date: %w", err)
	}
	if until := p.Get("Valid-Until"); until != "" {
		if r.ValidUntil, err = parseDate(until); err != nil {
			return nil, fmt.Errorf("the Release file has a bad date: %w", err)
		}
	}
	for line := range strings.Lines(p.Get("SHA256")) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("the Release file has a line that is not understood: %.80q", strings.TrimSpace(line))
		}
		size, err := strconv.ParseInt(words[1], 10, 64)
		if sum, hexErr := hex.DecodeString(words[0]); err != nil || size < 0 || hexErr != nil || len(sum) != 32 || !fs.ValidPath(words[2]) {
			return nil, fmt.Errorf("the Release file has a line that is not understood: %.80q", strings.TrimSpace(line))
		}
		r.Files[words[2]] = File{Size: size, SHA256: words[0]}
	}
	if len(r.Files) == 0 {
		return nil, errors.New("the Release file has no SHA-256 of any index")
	}
	return r, nil
}

// parseDate reads a date of RFC 1123 in UTC, as Release files have it.
func parseDate(s string) (time.Time, error) {
	t, err := time.Parse("Mon, 2 Jan 2006 15:04:05 MST", s)
	if err != nil {
		t, err = time.Parse("Mon, 2 Jan 2006 15:04:05 -0700", s)
	}
	if err == nil && t.Year() < 1990 {
		err = fmt.Errorf("%q is before there were any", s)
	}
	return t.UTC(), err
}

// ExpiredError says that an index was good until a time that is over: a mirror that stands still, or one that hides news.
type ExpiredError struct {
	Until time.Time
}

func (e *ExpiredError) Error() string {
	return "it was good until " + e.Until.Format(time.RFC3339) + " and may hide newer packages"
}

// Check refuses a Release file that is not for the suite that was asked for, or not for the time now.
func (r *Release) Check(suite string, now time.Time) error {
	name := strings.TrimSuffix(suite, "/updates") // of the time before bullseye-security
	if name != r.Suite && name != r.Codename && suite != r.Suite && suite != r.Codename {
		return fmt.Errorf("it is for %s (%s), and not for %s", r.Codename, r.Suite, suite)
	}
	if !r.ValidUntil.IsZero() && now.After(r.ValidUntil) {
		return &ExpiredError{Until: r.ValidUntil}
	}
	// A day: clocks go wrong, and an index of the future would stay the newest.
	if r.Date.After(now.Add(24 * time.Hour)) {
		return fmt.Errorf("it is of %s, which is still to come", r.Date.Format(time.RFC3339))
	}
	return nil
}
