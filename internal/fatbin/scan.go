package fatbin

import (
	"bytes"
	"errors"
	"fmt"
)

// Limits on what a file may make us keep or do. libcufft of CUDA 12, the largest known, has 24,454 entries.
const (
	maxEntries  = 1 << 18
	maxRegions  = 1 << 18
	maxProblems = 100
	maxGuesses  = 1 << 20 // entries of stray regions that turned out to be none
)

// scanner is one run of [Scan].
type scanner struct {
	*source
	file    *File
	options Options
	member  string // of the archive, where we are
	entries int
	guesses int
}

// limitError says that a file has more than anything known, so it is not read on.
type limitError string

func (e limitError) Error() string { return string(e) }

func (s *scanner) scan() error {
	err := s.whole()
	var limit limitError
	if errors.As(err, &limit) {
		s.problem(0, "the rest is not listed: %v", limit)
		return nil
	}
	return s.note(err)
}

// whole reads the file by its first bytes.
func (s *scanner) whole() error {
	head, err := s.head(0, s.size)
	if err != nil {
		return err
	}
	if bytes.HasPrefix(head, []byte(archiveMagic)) {
		s.file.Format = Archive
		return s.archive()
	}
	refused := refusal(head) // before the window moves
	format, err := s.object(0, s.size)
	s.file.Format = format
	if format == "" && err == nil {
		return refused
	}
	return err
}

// refusal explains why a file that begins with head is not read.
func refusal(head []byte) error {
	switch {
	case bytes.HasPrefix(head, []byte(thinMagic)):
		return fmt.Errorf("%w: a thin archive holds only the names of its members; scan those", ErrFormat)
	case bytes.HasPrefix(head, []byte("\x7fELF")):
		return fmt.Errorf("%w: of ELF files only those of 64-bit little-endian machines are read", ErrFormat)
	}
	return ErrFormat
}

// head gives the first bytes at off of something that ends at end: at most 64, fewer at the end.
func (s *scanner) head(off, end int64) ([]byte, error) {
	return s.bytes(off, min(64, end-off))
}

// object reads a file that is no archive and fills [start, end). It gives "" for all that holds no GPU code.
func (s *scanner) object(start, end int64) (Format, error) {
	head, err := s.head(start, end)
	if err != nil {
		return "", err
	}
	switch {
	case isELF(head) && le.Uint16(head[18:]) == machineCUDA:
		return Cubin, s.bareCubin(start, end)
	case isELF(head):
		return ELF, s.elf(start, end)
	case bytes.HasPrefix(head, regionMagic):
		return Fatbin, s.regions(start, end, Region{Place: Bare})
	case isBundle(head):
		return Offload, s.bundles(start, end, "")
	}
	is, err := s.barePTX(start, end)
	if is {
		return PTXText, err
	}
	return "", err
}

// problem notes a departure from the format.
func (s *scanner) problem(off int64, format string, args ...any) {
	if len(s.file.Problems) < maxProblems {
		s.file.Problems = append(s.file.Problems, Problem{Member: s.member, Offset: off, Text: fmt.Sprintf(format, args...)})
	}
}

// add keeps a region.
func (s *scanner) add(r Region) error {
	if len(s.file.Regions) == maxRegions {
		return limitError(fmt.Sprintf("it has more than %d regions", maxRegions))
	}
	r.Member = s.member
	s.file.Regions = append(s.file.Regions, r)
	return nil
}
