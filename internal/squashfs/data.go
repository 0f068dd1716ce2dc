package squashfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"
)

// A digest is a SHA-256 sum.
type digest [32]byte

// Data is the content of a regular file in a file system that is being written.
type Data struct {
	owner    *Writer
	size     int64
	run      *run // its blocks; nil: it has none
	fragment uint32
	offset   uint32 // of its last part in that fragment, uncompressed
}

// Size is the length of the content in bytes.
func (d *Data) Size() int64 { return d.size }

// A run is the blocks of one file, which stand one behind the other.
type run struct {
	digest  digest // of its blocks' sizes and compressed bytes
	start   int64  // in the file system
	length  int64
	sizes   []uint32 // of each block, with blockStored; 0 is a block of zeros
	zeros   int64    // how many of them are blocks of zeros
	segment int      // in which it was placed
}

// runTable has the runs of a file system by what they hold. The placing goroutine adds to it; the calling one looks up.
type runTable struct {
	mu       sync.Mutex
	byDigest map[digest]*run
}

func (t *runTable) get(d digest) *run {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byDigest[d]
}

// getBefore returns a run of an earlier segment, whose presence does not depend on how far the placing is.
func (t *runTable) getBefore(d digest, segment int) *run {
	if r := t.get(d); r != nil && r.segment < segment {
		return r
	}
	return nil
}

// add returns the run with the same content that was there before, or r, which is then there.
func (t *runTable) add(r *run) *run {
	if r.length == 0 { // nothing but zeros: it takes no place that could be shared
		return r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.byDigest[r.digest]; old != nil {
		return old
	}
	t.byDigest[r.digest] = r
	return r
}

// runBuilder is the run that is being placed, block by block.
type runBuilder struct {
	open  bool
	start int64
	sizes []uint32
	sum   hash.Hash
	bytes int64
	empty int64 // blocks of zeros
}

// block adds a block whose compressed bytes have the sum.
func (b *runBuilder) block(size uint32, sum *digest) {
	b.sizes = append(b.sizes, size)
	b.bytes += int64(size & blockMask)
	var head [4 + len(sum)]byte
	binary.LittleEndian.PutUint32(head[:], size)
	copy(head[4:], sum[:])
	b.sum.Write(head[:])
}

// zeros adds n blocks of zeros.
func (b *runBuilder) zeros(n int64) {
	for range n {
		b.block(0, &digest{})
	}
	b.empty += n
}

// finish returns the run and begins another.
func (b *runBuilder) finish(segment int) *run {
	r := &run{start: b.start, length: b.bytes, sizes: slices.Clone(b.sizes), zeros: b.empty, segment: segment}
	if r.length == 0 {
		r.start = 0
	}
	b.sum.Sum(r.digest[:0])
	b.sum.Reset()
	b.open, b.sizes, b.bytes = false, b.sizes[:0], 0
	b.empty = 0
	return r
}

// read cuts a file into blocks and a tail, and returns the tail's number in the segment, or noTail.
func (w *Writer) read(ctx context.Context, d *Data, open func() (io.ReadCloser, error)) (tail int, err error) {
	r, err := open()
	if err != nil {
		return noTail, err
	}
	tail, err = w.readFrom(ctx, d, r)
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	return tail, err
}

func (w *Writer) readFrom(ctx context.Context, d *Data, r io.Reader) (tail int, err error) {
	blocks, rest := d.size/int64(w.opts.BlockSize), int(d.size%int64(w.opts.BlockSize))
	if blocks == 0 {
		if err := readFull(r, w.scratch[:rest]); err != nil {
			return noTail, err
		}
		return w.addTail(ctx, d, w.scratch[:rest])
	}
	zeros, err := w.readBlocks(ctx, r, blocks)
	if err != nil {
		return noTail, err
	}
	tailed := false
	if rest > 0 {
		if tailed, zeros, err = w.readRest(ctx, r, rest, zeros); err != nil {
			return noTail, err
		}
	}
	w.queue(step{place: func() error { return w.placeEnd(d, zeros) }})
	if tailed {
		return w.addTail(ctx, d, w.scratch[:rest])
	}
	return noTail, nil
}

// readBlocks queues whole blocks. It returns how many blocks of zeros there are at the end, which are not queued yet.
func (w *Writer) readBlocks(ctx context.Context, r io.Reader, blocks int64) (zeros int64, err error) {
	var s *slot
	for range blocks {
		if s == nil {
			if s, err = w.takeSlot(ctx); err != nil {
				return 0, err
			}
		}
		s.raw = s.buffer(w.opts.BlockSize)
		if err := readFull(r, s.raw); err != nil {
			w.free <- s
			return 0, err
		}
		if allZero(s.raw) { // the slot is good for the next block
			zeros++
			if err := w.interrupted(ctx); err != nil {
				w.free <- s
				return 0, err
			}
			continue
		}
		w.queueBlock(s, zeros)
		s, zeros = nil, 0
	}
	if s != nil {
		w.free <- s
	}
	return zeros, nil
}

// readRest reads what is behind the whole blocks. It becomes a short block, unless it is left in scratch to become a tail.
func (w *Writer) readRest(ctx context.Context, r io.Reader, n int, zeros int64) (tailed bool, _ int64, err error) {
	p := w.scratch[:n]
	if err := readFull(r, p); err != nil {
		return false, 0, err
	}
	if allZero(p) {
		return false, zeros + 1, nil
	}
	if w.opts.TailPacking {
		return true, zeros, nil
	}
	s, err := w.takeSlot(ctx)
	if err != nil {
		return false, 0, err
	}
	s.raw = s.buffer(n)
	copy(s.raw, p)
	w.queueBlock(s, zeros)
	return false, 0, nil
}

func (w *Writer) interrupted(ctx context.Context) error {
	if err := w.err(); err != nil {
		return err
	}
	return ctx.Err()
}

// queueBlock has a block compressed and placed behind some blocks of zeros.
func (w *Writer) queueBlock(s *slot, zeros int64) {
	s.kind = fileBlock
	w.compress(s, func() error { return w.placeBlock(s, zeros) })
}

// placeBlock puts a block behind the others of its file.
func (w *Writer) placeBlock(s *slot, zeros int64) error {
	w.openRun()
	w.building.zeros(zeros)
	w.building.block(s.size, &s.sum)
	return w.out.write(s.out)
}

func (w *Writer) openRun() {
	if !w.building.open {
		w.building.open, w.building.start = true, w.out.pos
	}
}

// placeEnd ends a file's blocks. If the same are there already the file gets those, and its own are overwritten.
func (w *Writer) placeEnd(d *Data, zeros int64) error {
	w.openRun()
	w.building.zeros(zeros)
	r := w.building.finish(w.placing)
	d.run = w.runs.add(r)
	if d.run != r {
		w.out.rewind(r.start)
	}
	return nil
}

// readFull fills p. A file that is too short is an error.
func readFull(r io.Reader, p []byte) error {
	n, err := io.ReadFull(r, p)
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is shorter than its size says, by %d bytes or more: %w", len(p)-n, io.ErrUnexpectedEOF)
	}
	return err
}

var zeroPage [4 << 10]byte

// allZero looks at the first word, which mostly decides, and then compares whole pages.
func allZero(p []byte) bool {
	if len(p) >= 8 && binary.LittleEndian.Uint64(p) != 0 {
		return false
	}
	for len(p) > len(zeroPage) {
		if !bytes.Equal(p[:len(zeroPage)], zeroPage[:]) {
			return false
		}
		p = p[len(zeroPage):]
	}
	return bytes.Equal(p, zeroPage[:len(p)])
}
