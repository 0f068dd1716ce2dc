package elfx

import (
	"bytes"
	"errors"
	"io"
)

// Stripped is a file without what [Strip] takes out of it.
type Stripped struct {
	Size    int64    // bytes
	Zeroed  int64    // bytes that became zeros
	Removed []string // names of sections, in their order

	pieces []piece
}

// piece is a part of the stripped file: bytes of the old one, or new ones.
type piece struct {
	from, size int64
	data       []byte // instead of old bytes
	zeros      bool   // instead of old bytes
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// Reader gives the stripped file, made of the old one, which is read from its start and not to its end.
func (s *Stripped) Reader(old io.Reader) io.Reader {
	parts := make([]io.Reader, 0, len(s.pieces))
	at := int64(0)
	for _, p := range s.pieces {
		switch {
		case p.zeros:
			parts = append(parts, io.LimitReader(zeros{}, p.size))
			continue
		case p.data != nil:
			parts = append(parts, bytes.NewReader(p.data))
			continue
		}
		parts = append(parts, &passage{r: old, skip: p.from - at, left: p.size})
		at = p.from + p.size
	}
	return io.MultiReader(parts...)
}

// passage reads some bytes after skipping others.
type passage struct {
	r          io.Reader
	skip, left int64
}

func (p *passage) Read(b []byte) (int, error) {
	if p.skip > 0 {
		if _, err := io.CopyN(io.Discard, p.r, p.skip); err != nil {
			return 0, unexpectedEnd(err)
		}
		p.skip = 0
	}
	if p.left == 0 {
		return 0, io.EOF
	}
	n, err := p.r.Read(b[:min(int64(len(b)), p.left)])
	p.left -= int64(n)
	if p.left > 0 {
		err = unexpectedEnd(err)
	} else if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReaderAt gives the stripped file, made of the old one.
func (s *Stripped) ReaderAt(old io.ReaderAt) io.ReaderAt { return strippedAt{s, old} }

type strippedAt struct {
	s   *Stripped
	old io.ReaderAt
}

func (r strippedAt) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	total, start := 0, int64(0)
	for _, p := range r.s.pieces {
		n := p.size
		if at := off + int64(total); at < start+n && total < len(b) {
			want := b[total:min(int64(len(b)), int64(total)+start+n-at)]
			if p.zeros {
				clear(want)
			} else if p.data != nil {
				copy(want, p.data[at-start:])
			} else if got, err := r.old.ReadAt(want, p.from+at-start); got < len(want) {
				return total + got, unexpectedEnd(err)
			}
			total += len(want)
		}
		start += n
	}
	if total < len(b) {
		return total, io.EOF
	}
	return total, nil
}
