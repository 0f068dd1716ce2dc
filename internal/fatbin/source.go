package fatbin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// windowSize is how much is read at once: a page, since most headers stand alone between long payloads.
const windowSize = 4 << 10

// source reads small pieces of a file through a window.
type source struct {
	r      io.ReaderAt
	size   int64
	start  int64 // of the window
	window []byte
	room   []byte
	left   int64 // bytes that may still be read
}

// rereads and spare bound what a file can make us read, by tables that name the same bytes over and over: a multiple of its size,
// and bytes. Sound files need less than once their size, but a window is read for each header.
const (
	rereads = 4
	spare   = 256 << 20
)

func newSource(r io.ReaderAt, size int64) *source {
	return &source{r: r, size: size, left: min(size, 1<<60)*rereads + spare}
}

// bytes gives n bytes at off, valid until the next call. Callers bound n.
func (s *source) bytes(off, n int64) ([]byte, error) {
	if !within(off, n, 0, s.size) {
		return nil, badf(off, "%d bytes here lie outside the file", n)
	}
	if !within(off, n, s.start, s.start+int64(len(s.window))) {
		if err := s.load(off, n); err != nil {
			return nil, err
		}
	}
	return s.window[off-s.start:][:n], nil
}

func (s *source) load(off, n int64) error {
	n = max(n, min(windowSize, s.size-off))
	if int64(cap(s.room)) < n {
		s.room = make([]byte, n)
	}
	s.start, s.window = off, s.room[:0]
	b := s.room[:n]
	if err := s.read(b, off); err != nil {
		return err
	}
	s.window = b
	return nil
}

// read fills b from off, past the window.
func (s *source) read(b []byte, off int64) error {
	n := int64(len(b))
	if s.left -= n; s.left < 0 {
		return limitError("its tables name the same bytes too often")
	}
	if got, err := s.r.ReadAt(b, off); int64(got) < n {
		return fmt.Errorf("read %d bytes at byte %d: %w", n, off, unexpected(err))
	}
	return nil
}

// unexpected makes of an end an unexpected one.
func unexpected(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// within tells whether n bytes at off lie in [start, end), for any numbers.
func within(off, n, start, end int64) bool {
	return off >= start && n >= 0 && off <= end && n <= end-off
}

var le = binary.LittleEndian

// alignUp gives the next multiple of 8.
func alignUp(n int64) int64 { return (n + 7) &^ 7 }
