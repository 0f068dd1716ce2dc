package slim

import (
	"fmt"
	"io"
	"slices"
	"sort"
)

// edit replaces Size bytes at Off by Data and zeros.
type edit struct {
	Off  int64  `json:"off"`
	Size int64  `json:"size"`
	Data []byte `json:"data,omitempty"` // no longer than Size
}

func (e edit) end() int64 { return e.Off + e.Size }

// apply changes what of b, the bytes at off, the edit covers.
func (e edit) apply(b []byte, off int64) {
	from, to := max(e.Off, off), min(e.end(), off+int64(len(b)))
	if from >= to {
		return
	}
	b = b[from-off : to-off]
	n := 0
	if skip := from - e.Off; skip < int64(len(e.Data)) {
		n = copy(b, e.Data[skip:])
	}
	clear(b[n:])
}

// Plan is what slimming does to one file: which of its bytes change.
type Plan struct {
	Report FileReport

	edits []edit // by offset, apart from each other
}

// Empty is whether nothing changes.
func (p *Plan) Empty() bool { return len(p.edits) == 0 }

// Reader gives the changed file, read from its start in r.
func (p *Plan) Reader(r io.Reader) io.Reader {
	return &reader{r: r, edits: p.edits}
}

// ReaderAt gives the changed file, read from r.
func (p *Plan) ReaderAt(r io.ReaderAt) io.ReaderAt {
	return readerAt{r: r, edits: p.edits}
}

// sortEdits brings the edits into order. Edits that touch the same bytes are an error: two parts of the file overlap.
func (p *Plan) sortEdits() error {
	slices.SortFunc(p.edits, func(a, b edit) int {
		if a.Off < b.Off {
			return -1
		}
		return 1
	})
	for i := 1; i < len(p.edits); i++ {
		if p.edits[i].Off < p.edits[i-1].end() {
			return fmt.Errorf("two regions share the bytes at %d", p.edits[i].Off)
		}
	}
	return nil
}

// after is the index of the first edit that ends after off.
func after(edits []edit, off int64) int {
	return sort.Search(len(edits), func(i int) bool { return edits[i].end() > off })
}

// touches is whether some byte in [off, end) is edited.
func (p *Plan) touches(off, end int64) bool {
	i := after(p.edits, off)
	return i < len(p.edits) && p.edits[i].Off < end
}

// reader applies edits to what it reads, in order.
type reader struct {
	r     io.Reader
	off   int64
	edits []edit // that end after off
}

func (r *reader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	b = b[:max(n, 0)]
	for len(r.edits) > 0 && r.edits[0].Off < r.off+int64(len(b)) {
		r.edits[0].apply(b, r.off)
		if r.edits[0].end() > r.off+int64(len(b)) {
			break
		}
		r.edits = r.edits[1:]
	}
	r.off += int64(len(b))
	return n, err
}

// readerAt applies edits to what it reads.
type readerAt struct {
	r     io.ReaderAt
	edits []edit
}

func (r readerAt) ReadAt(b []byte, off int64) (int, error) {
	n, err := r.r.ReadAt(b, off)
	b = b[:max(n, 0)]
	for _, e := range r.edits[after(r.edits, off):] {
		if e.Off >= off+int64(len(b)) {
			break
		}
		e.apply(b, off)
	}
	return n, err
}
