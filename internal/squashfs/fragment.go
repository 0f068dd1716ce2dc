package squashfs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
)

// noTail is the number of the tail of a file that has none.
const noTail = -1

// groupEnds is the mask of a tail's hash that ends a group: one tail in 64 does. What is added or removed somewhere in a
// segment so changes the groups around it only, and the others can still be copied from packs.
const groupEnds = 64 - 1

// groupLimit is how many fragments a file system may have: their number has 32 bits, and the highest means none.
const groupLimit = math.MaxInt32

// A segment is what was placed since StartSegment.
type segment struct {
	number     int
	start, end int64 // in the file system
	packs      []*Pack
	files      []placedFile
	fresh      int

	tails  []packTail
	byHash map[digest]int // the tails
	groups []*packGroup   // the offsets and sizes are the placing goroutine's
	before uint32         // the fragments of earlier segments
	open   tailGroup
}

// A placedFile is a file of a segment, for its pack.
type placedFile struct {
	key  Key
	data *Data
	tail int
}

// tailGroup is the fragment that is being collected.
type tailGroup struct {
	first int   // tail of the segment
	bytes int   // of all tails
	slot  *slot // has the bytes of those tails that were read; nil: none was
	holes []hole
}

// A hole is a part of a fragment that was not read but stands in a pack.
type hole struct {
	offset int
	pack   *Pack
	tail   int
}

func newSegment(number int, fragments uint32, packs []*Pack) *segment {
	return &segment{number: number, packs: packs, byHash: make(map[digest]int), before: fragments}
}

// find looks for a file in the packs.
func (s *segment) find(key Key, size int64) (*Pack, packFile) {
	for _, p := range s.packs {
		if f, ok := p.files[key]; ok && f.size == size {
			return p, f
		}
	}
	return nil, packFile{}
}

// addTail puts the last part of a file, or a small file, into a fragment. p is not kept.
func (w *Writer) addTail(ctx context.Context, d *Data, p []byte) (tail int, err error) {
	sum := sha256.Sum256(p)
	if i, ok := w.seg.byHash[sum]; ok {
		w.seg.useTail(d, i)
		return i, nil
	}
	offset, err := w.makeRoomForTail(ctx, len(p))
	if err != nil {
		return noTail, err
	}
	if err := w.groupMemory(ctx); err != nil {
		return noTail, err
	}
	copy(w.seg.open.slot.raw[offset:], p)
	return w.joinGroup(ctx, d, sum, len(p))
}

// reuseTail does the same with the tail of a pack.
func (w *Writer) reuseTail(ctx context.Context, d *Data, p *Pack, t int) (tail int, err error) {
	sum, size := p.tails[t].sum, int(p.tails[t].size)
	if i, ok := w.seg.byHash[sum]; ok {
		w.seg.useTail(d, i)
		return i, nil
	}
	offset, err := w.makeRoomForTail(ctx, size)
	if err != nil {
		return noTail, err
	}
	w.seg.open.holes = append(w.seg.open.holes, hole{offset: offset, pack: p, tail: t})
	return w.joinGroup(ctx, d, sum, size)
}

// useTail makes a tail of the segment the file's.
func (s *segment) useTail(d *Data, tail int) {
	t := s.tails[tail]
	d.fragment, d.offset = s.before+t.group, t.offset
}

// makeRoomForTail closes the group if a tail of n bytes does not fit into it, and returns the tail's place.
func (w *Writer) makeRoomForTail(ctx context.Context, n int) (offset int, err error) {
	if w.seg.open.bytes+n > w.opts.BlockSize {
		if err := w.closeGroup(ctx); err != nil {
			return 0, err
		}
	}
	return w.seg.open.bytes, nil
}

// groupMemory makes sure that the open group has a slot.
func (w *Writer) groupMemory(ctx context.Context) error {
	if w.seg.open.slot != nil {
		return nil
	}
	s, err := w.takeSlot(ctx)
	if err != nil {
		return err
	}
	s.raw = s.buffer(w.opts.BlockSize)
	w.seg.open.slot = s
	return nil
}

// joinGroup adds a tail whose bytes are in place to the open group, and closes the group if the tail is one that ends it.
func (w *Writer) joinGroup(ctx context.Context, d *Data, sum digest, size int) (tail int, err error) {
	s := w.seg
	if int64(s.before)+int64(len(s.groups)) >= groupLimit {
		return noTail, errors.New("too many fragments")
	}
	tail = len(s.tails)
	s.tails = append(s.tails, packTail{
		sum:    sum,
		size:   uint32(size),
		group:  uint32(len(s.groups)),
		offset: uint32(s.open.bytes),
	})
	s.byHash[sum] = tail
	s.useTail(d, tail)
	s.open.bytes += size
	if sum[0]&groupEnds == 0 {
		return tail, w.closeGroup(ctx)
	}
	return tail, nil
}

// closeGroup queues the open group: for copying if a pack has the same group, else for compression.
func (w *Writer) closeGroup(ctx context.Context) error {
	s := w.seg
	if s.open.bytes == 0 {
		return nil
	}
	g := &packGroup{first: s.open.first, count: len(s.tails) - s.open.first, raw: uint32(s.open.bytes)}
	g.id = groupID(s.tails[g.first:])
	if p, old := s.findGroup(g.id); p != nil {
		if s.open.slot != nil {
			w.free <- s.open.slot
		}
		w.queue(step{place: func() error { return w.placeCopiedGroup(s, g, p, old) }})
	} else {
		if err := w.groupMemory(ctx); err != nil {
			return err
		}
		slot := s.open.slot
		slot.kind, slot.raw, slot.holes = fragmentBlock, slot.raw[:s.open.bytes], s.open.holes
		w.compress(slot, func() error { return w.placeGroup(s, g, slot) })
	}
	s.groups = append(s.groups, g)
	s.open = tailGroup{first: len(s.tails)}
	return nil
}

func (s *segment) findGroup(id digest) (*Pack, *packGroup) {
	for _, p := range s.packs {
		if i, ok := p.byGroup[id]; ok {
			return p, p.groups[i]
		}
	}
	return nil, nil
}

// groupID names a fragment by what it is made of.
func groupID(tails []packTail) (id digest) {
	h := sha256.New()
	for i := range tails {
		h.Write(tails[i].sum[:])
	}
	h.Sum(id[:0])
	return id
}

// placeGroup writes a fragment that was compressed.
func (w *Writer) placeGroup(s *segment, g *packGroup, b *slot) error {
	w.placedGroup(s, g, b.size)
	return w.out.write(b.out)
}

// placeCopiedGroup copies a fragment.
func (w *Writer) placeCopiedGroup(s *segment, g *packGroup, p *Pack, old *packGroup) error {
	w.placedGroup(s, g, old.size)
	return w.out.copy(p.from, p.base+old.offset, int64(old.size&blockMask))
}

// placedGroup notes where a fragment goes.
func (w *Writer) placedGroup(s *segment, g *packGroup, size uint32) {
	g.offset, g.size = w.out.pos-s.start, size
	w.parts = append(w.parts, fragmentEntry{start: w.out.pos, size: size})
}

// fillHoles takes the tails that were not read out of the fragments of packs.
func (w *Writer) fillHoles(s *slot) error {
	var (
		raw  []byte // the last fragment
		from *packGroup
	)
	for _, h := range s.holes {
		t := h.pack.tails[h.tail]
		g := h.pack.groups[t.group]
		if g != from {
			var err error
			if raw, err = w.readGroup(h.pack, g); err != nil {
				return err
			}
			from = g
		}
		p := raw[t.offset : t.offset+t.size]
		if sha256.Sum256(p) != t.sum {
			return packError("a fragment has other bytes than its index says")
		}
		copy(s.raw[h.offset:], p)
	}
	s.holes = nil
	return nil
}

// readGroup decompresses a fragment of a pack.
func (w *Writer) readGroup(p *Pack, g *packGroup) ([]byte, error) {
	b := make([]byte, g.size&blockMask)
	if n, err := p.from.ReadAt(b, p.base+g.offset); n < len(b) {
		return nil, packError("read a fragment: %w", atEnd(err))
	}
	if g.size&blockStored != 0 {
		return b, nil
	}
	expand, err := w.expander()
	if err != nil {
		return nil, err
	}
	raw := make([]byte, g.raw)
	n, err := expand(raw, b)
	if err != nil {
		return nil, packError("decompress a fragment: %w", err)
	}
	if n != len(raw) {
		return nil, packError("a fragment has %d bytes, not %d", n, len(raw))
	}
	return raw, nil
}

// packError wraps ErrPack.
func packError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrPack, fmt.Errorf(format, args...))
}
