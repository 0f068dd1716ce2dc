package elfx

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
)

// layInPlace replaces parts of the file, each by as many bytes.
func (s *stripper) layInPlace() *Stripped {
	out := &Stripped{}
	table := piece{from: int64(le64.Uint64(s.head[fieldSections:])), data: s.tableInPlace(out)}
	head := bytes.Clone(s.head)
	edits := []piece{{data: head}}
	if !s.tableLoaded {
		edits = append(edits, table)
	}
	for i := range s.sections {
		if sec := &s.sections[i]; !s.keep[i] && !sec.takesNothing {
			edits = append(edits, piece{from: int64(sec.off), size: int64(sec.size), zeros: true})
			out.Zeroed += int64(sec.size)
		}
	}
	slices.SortFunc(edits, func(a, b piece) int { return cmp.Compare(a.from, b.from) })
	for _, e := range edits {
		out.add(piece{from: out.Size, size: e.from - out.Size})
		out.add(e)
	}
	out.add(piece{from: out.Size, size: s.size - out.Size})
	if s.tableLoaded {
		out.align(8)
		le64.PutUint64(head[fieldSections:], uint64(out.Size))
		out.add(table)
	}
	return out
}

// tableInPlace is the table of sections with nothing where sections were (gABI, chapter 4, SHT_NULL).
func (s *stripper) tableInPlace(out *Stripped) []byte {
	var table []byte
	for i := range s.sections {
		b := bytes.Clone(s.sections[i].bytes)
		if link := s.sections[i].link; !s.keep[i] {
			clear(b)
			out.Removed = append(out.Removed, s.sections[i].name)
		} else if !s.keep[link] {
			le64.PutUint32(b[40:], 0)
		}
		table = append(table, b...)
	}
	return table
}

// lay puts the stripped file together.
func (s *stripper) lay() *Stripped {
	if s.inPlace {
		return s.layInPlace()
	}
	out := &Stripped{}
	numbers, names := s.number(), newNameTable()
	head := bytes.Clone(s.head)
	out.add(piece{data: head})
	out.add(piece{from: header64, size: s.end - header64})
	own := int(le64.Uint16(s.head[fieldSectionNames:]))
	headers := map[int]section{}
	order := make([]int, 0, len(s.sections))
	for i := range s.sections {
		if s.keep[i] {
			order = append(order, i)
			names.add(s.sections[i].name)
		} else {
			out.Removed = append(out.Removed, s.sections[i].name)
		}
	}
	byPlace := slices.SortedStableFunc(slices.Values(order), func(a, b int) int { return cmp.Compare(s.sections[a].off, s.sections[b].off) })
	for _, i := range byPlace {
		sec := s.sections[i]
		switch {
		case i == 0 || sec.allocated:
		case i == own:
			out.align(1)
			sec.off, sec.size = uint64(out.Size), uint64(len(names.bytes))
			out.add(piece{data: names.bytes})
		default:
			out.align(int64(max(sec.align, 1)))
			old := int64(sec.off)
			sec.off = uint64(out.Size)
			if !sec.takesNothing {
				out.add(piece{from: old, size: int64(sec.size)})
			}
		}
		headers[i] = sec
	}
	out.align(8)
	le64.PutUint64(head[fieldSections:], uint64(out.Size))
	le64.PutUint16(head[fieldSectionCount:], uint16(len(order)))
	le64.PutUint16(head[fieldSectionNames:], uint16(numbers[own]))
	var table []byte
	for _, i := range order {
		sec := headers[i]
		b := bytes.Clone(sec.bytes)
		le64.PutUint32(b, names.at[sec.name])
		le64.PutUint64(b[24:], sec.off)
		le64.PutUint64(b[32:], sec.size)
		le64.PutUint32(b[40:], uint32(numbers[sec.link]))
		if sec.infoIsSection() {
			le64.PutUint32(b[44:], uint32(numbers[sec.info]))
		}
		table = append(table, b...)
	}
	out.add(piece{data: table})
	return out
}

// number gives the new numbers of sections; those that go have 0, which means none.
func (s *stripper) number() []int {
	numbers := make([]int, len(s.sections))
	n := 0
	for i := range s.sections {
		if s.inPlace {
			numbers[i] = i
		} else if s.keep[i] {
			numbers[i] = n
			n++
		}
	}
	return numbers
}

func (s *Stripped) add(p piece) {
	if p.data != nil {
		p.size = int64(len(p.data))
	}
	if p.size > 0 {
		s.pieces = append(s.pieces, p)
		s.Size += p.size
	}
}

func (s *Stripped) align(n int64) { s.add(piece{data: make([]byte, -s.Size&(n-1))}) }

// nameTable is a string table (gABI, chapter 4, "String Table").
type nameTable struct {
	bytes []byte
	at    map[string]uint32
}

func newNameTable() *nameTable { return &nameTable{bytes: []byte{0}, at: map[string]uint32{"": 0}} }

func (t *nameTable) add(name string) {
	if _, ok := t.at[name]; !ok {
		t.at[name] = uint32(len(t.bytes)) // at most maxSectionNames
		t.bytes = append(append(t.bytes, name...), 0)
	}
}

// prove reads the stripped file and compares it with what should be in it.
func (s *stripper) prove(out *Stripped) error {
	after := &stripper{r: out.ReaderAt(s.r), size: out.Size}
	for _, step := range []func() error{after.readHeader, after.readTables, after.readNames, after.findEnd} {
		if err := step(); err != nil {
			var kept *KeptError
			if errors.As(err, &kept) || errors.Is(err, ErrFormat) || errors.Is(err, ErrNotELF) {
				return keptf("the stripped file would be damaged: %v", err)
			}
			return err
		}
	}
	same := after.end == s.end && bytes.Equal(after.segments, s.segments) && bytes.Equal(after.head[:fieldSections], s.head[:fieldSections]) &&
		bytes.Equal(after.head[fieldSections+8:fieldSectionCount], s.head[fieldSections+8:fieldSectionCount])
	numbers := s.number()
	for i := range s.sections {
		if !s.keep[i] || !same {
			continue
		}
		a, b := &s.sections[i], &after.sections[numbers[i]]
		same = a.name == b.name && bytes.Equal(a.bytes[4:24], b.bytes[4:24]) && bytes.Equal(a.bytes[48:], b.bytes[48:])
		if a.allocated {
			same = same && i == numbers[i] && a.off == b.off && a.size == b.size && a.info == b.info && (a.link == b.link || looseLink(a))
		}
	}
	if !same {
		return keptf("the stripped file would be another")
	}
	return nil
}
