package fatbin

import (
	"bytes"
	"errors"
)

// chunkSize is how much of a section is searched at once, in bytes.
const chunkSize = 1 << 20

// Programs that load code by their own means keep it in plain data: libcufft has thousands of regions in .rodata or .ldata, and
// profilers have bare cubins. They are found by how they begin, and believed when all of their headers agree.
var (
	cubinMagic = []byte("\x7fELF\x02\x01\x01")
	strayHeads = [...][]byte{regionMagic, cubinMagic}
)

// strays searches the data of an object. Without section headers it searches the segments.
func (s *scanner) strays(o *object) error {
	for _, sec := range o.sections {
		switch sec.name {
		case executableSection, relocatableSection, wrapperSection, hipSection, ".eh_frame", ".gcc_except_table":
			continue
		}
		if sec.isData() {
			if err := s.straysIn(sec); err != nil {
				return err
			}
		}
	}
	if o.sections != nil {
		return nil
	}
	for _, p := range o.segments {
		if p.off+p.size <= o.start+elfHeaderSize {
			continue
		}
		from := max(p.off, o.start+elfHeaderSize) // the file is no stray of its own
		if err := s.straysIn(section{off: from, size: p.off + p.size - from}); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) straysIn(sec section) error {
	search := search{source: s.source, pos: sec.off, end: sec.off + sec.size}
	for {
		off, err := search.next()
		if err != nil || off < 0 {
			return err
		}
		r, err := s.stray(off, search.end)
		if err != nil {
			return err
		}
		if r.Size == 0 {
			search.pos++
			continue
		}
		r.Section = sec.name
		if err := s.add(r); err != nil {
			return err
		}
		search.pos += r.Size
	}
}

// stray reads what begins at off. It gives an empty region when that is nothing sound.
func (s *scanner) stray(off, end int64) (Region, error) {
	before := s.entries
	r, err := s.strayRegion(off, end)
	if err == nil && r.Size > 0 {
		return r, nil
	}
	s.guesses += s.entries - before + 1
	s.entries = before
	if s.guesses > maxGuesses {
		return Region{}, limitError("too much of its data looks like regions and is not")
	}
	var bad formatError
	if errors.As(err, &bad) {
		err = nil
	}
	return Region{}, err
}

func (s *scanner) strayRegion(off, end int64) (Region, error) {
	r := Region{Place: Stray, Offset: off}
	head, err := s.head(off, end)
	if err != nil {
		return r, err
	}
	if bytes.HasPrefix(head, cubinMagic) {
		e, err := s.cubin(off, end)
		if err != nil {
			return r, err
		}
		r.Headerless, r.Size, r.Entries = true, e.PaddedSize, []Entry{e}
		return r, s.count()
	}
	size, err := s.regionSize(off, end)
	if err != nil {
		return r, err
	}
	if r.Entries, err = s.regionEntries(off, size); err != nil {
		return r, err
	}
	for i := range r.Entries {
		if !r.Entries[i].Kind.known() {
			return r, nil
		}
	}
	if len(r.Entries) > 0 {
		r.Size = size
	}
	return r, nil
}

// search finds the heads of strays in [pos, end).
type search struct {
	*source
	pos, end int64
	start    int64 // of the chunk
	chunk    []byte
	found    [len(strayHeads)]int64 // the next head of each kind in the chunk, or its end
}

// next moves to the next head at pos or after it, and gives its offset, -1 when there is none.
func (f *search) next() (int64, error) {
	for f.end-f.pos >= int64(len(regionMagic)) {
		if err := f.fill(); err != nil {
			return -1, err
		}
		chunkEnd := f.start + int64(len(f.chunk))
		first := chunkEnd
		for i, head := range strayHeads {
			if f.found[i] < f.pos {
				f.found[i] = f.index(head)
			}
			first = min(first, f.found[i])
		}
		if first < chunkEnd {
			f.pos = first
			return first, nil
		}
		if chunkEnd == f.end {
			return -1, nil
		}
		f.pos = chunkEnd - int64(len(regionMagic)) + 1 // a head may be cut
	}
	return -1, nil
}

// fill reads the chunk of pos, unless that is still in the last one with room for a head.
func (f *search) fill() error {
	if f.chunk != nil && within(f.pos, int64(len(regionMagic)), f.start, f.start+int64(len(f.chunk))) {
		return nil
	}
	n := min(chunkSize, f.end-f.pos)
	if int64(cap(f.chunk)) < n {
		f.chunk = make([]byte, n)
	}
	f.start, f.chunk = f.pos, f.chunk[:n]
	for i := range f.found {
		f.found[i] = -1
	}
	return f.read(f.chunk, f.pos)
}

// index gives where head is next, or the end of the chunk.
func (f *search) index(head []byte) int64 {
	if i := bytes.Index(f.chunk[f.pos-f.start:], head); i >= 0 {
		return f.pos + int64(i)
	}
	return f.start + int64(len(f.chunk))
}
