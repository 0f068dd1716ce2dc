package squashfs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
)

// ErrPack is wrapped by errors about packs that are damaged, or whose blocks are: without them the same file system can
// be written.
var ErrPack = errors.New("damaged pack of compressed files")

// A Pack is the index of a segment: where the blocks of each of its files stand, and what they hold. It lets a Writer copy
// files instead of compressing them. It is safe for concurrent use.
type Pack struct {
	optionsKey string
	blockSize  int
	tailed     bool        // Options.TailPacking
	from       io.ReaderAt // the blocks; an *os.File where the kernel is to copy
	base       int64       // where the segment begins there
	size       int64       // of the segment

	runs    []packRun
	tails   []packTail
	groups  []*packGroup // one per fragment; their tails stand one behind the other
	files   map[Key]packFile
	byGroup map[digest]int
	has     int // files of which everything is here
}

// elsewhere is the offset of a run that an earlier segment of the file system has, so that this one does not.
const elsewhere = -1

// A packRun is the blocks of one file.
type packRun struct {
	offset int64 // in the segment, or elsewhere
	length int64
	sizes  []uint32 // of each block, with blockStored
	zeros  int64    // how many of them are blocks of zeros
	digest digest
}

// A packTail is a small file or the last part of one.
type packTail struct {
	sum    digest // of its bytes
	size   uint32
	group  uint32
	offset uint32 // in the group's bytes
}

// A packGroup is a fragment: the tails that are compressed together.
type packGroup struct {
	id     digest
	offset int64  // in the segment
	size   uint32 // compressed, with blockStored
	raw    uint32 // not compressed
	first  int    // of its tails
	count  int
}

// A packFile is a file: a run, a tail, or both.
type packFile struct {
	size      int64
	run, tail int32 // -1: none
}

// Has tells whether the pack has everything of a file.
func (p *Pack) Has(key Key) bool {
	f, ok := p.files[key]
	return ok && p.complete(f)
}

func (p *Pack) complete(f packFile) bool { return f.run < 0 || p.runs[f.run].offset != elsewhere }

// Len is the number of files that the pack has.
func (p *Pack) Len() int { return p.has }

// Covers tells whether the pack has every file that q has.
func (p *Pack) Covers(q *Pack) bool {
	if p.has < q.has {
		return false
	}
	for key, f := range q.files {
		if q.complete(f) && !p.Has(key) {
			return false
		}
	}
	return true
}

// link fills in what follows from the rest.
func (p *Pack) link() {
	p.byGroup = make(map[digest]int, len(p.groups))
	for i, g := range p.groups {
		p.byGroup[g.id] = i
	}
	for _, f := range p.files {
		if p.complete(f) {
			p.has++
		}
	}
}

// packOf makes the pack of a segment whose blocks are all placed.
func (w *Writer) packOf(s *segment) *Pack {
	p := &Pack{
		optionsKey: w.opts.Key(), blockSize: w.opts.BlockSize, tailed: w.opts.TailPacking,
		from: w.f, base: w.base + s.start, size: s.end - s.start,
		tails: s.tails, groups: s.groups,
		files: make(map[Key]packFile, len(s.files)),
	}
	runs := make(map[*run]int32)
	for _, f := range s.files {
		if _, twice := p.files[f.key]; twice {
			continue
		}
		number := int32(-1)
		if r := f.data.run; r != nil {
			known := false
			if number, known = runs[r]; !known {
				number = int32(len(p.runs))
				runs[r] = number
				p.runs = append(p.runs, r.packed(s))
			}
		}
		p.files[f.key] = packFile{size: f.data.size, run: number, tail: int32(f.tail)}
	}
	p.link()
	return p
}

// packed describes a run for the pack of a segment.
func (r *run) packed(s *segment) packRun {
	p := packRun{offset: elsewhere, length: r.length, sizes: r.sizes, zeros: r.zeros, digest: r.digest}
	switch {
	case r.length == 0:
		p.offset = 0
	case r.segment == s.number:
		p.offset = r.start - s.start
	}
	return p
}

// canReuse tells whether a file of a pack needs not be read: the pack has its blocks, or an earlier segment has.
func (w *Writer) canReuse(p *Pack, f packFile) bool {
	return p.complete(f) || w.runs.getBefore(p.runs[f.run].digest, w.seg.number) != nil
}

// reuse queues a file of a pack. It returns the number of the file's tail in the segment, or noTail.
func (w *Writer) reuse(ctx context.Context, p *Pack, f packFile, d *Data) (tail int, err error) {
	if f.run >= 0 {
		old := &p.runs[f.run]
		w.queue(step{place: func() error { return w.placeCopy(p, old, d) }})
	}
	if f.tail < 0 {
		return noTail, nil
	}
	return w.reuseTail(ctx, d, p, int(f.tail))
}

// placeCopy copies a run, unless the file system has the same already.
func (w *Writer) placeCopy(p *Pack, old *packRun, d *Data) error {
	r := &run{digest: old.digest, start: w.out.pos, length: old.length, sizes: old.sizes, zeros: old.zeros, segment: w.placing}
	if r.length == 0 {
		r.start = 0
	}
	d.run = w.runs.add(r)
	if d.run != r || r.length == 0 {
		return nil
	}
	return w.out.copy(p.from, p.base+old.offset, old.length)
}

// sortedKeys are the keys of the files in order.
func (p *Pack) sortedKeys() []Key {
	keys := make([]Key, 0, len(p.files))
	for k := range p.files {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Nth, b.Nth))
	})
	return keys
}
