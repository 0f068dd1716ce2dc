package inflate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
)

// errNoRoom ends a trial that came to the end of its input or of its room.
var errNoRoom = errors.New("no room")

// plainSize is the most bytes that a trial may decode. It is eight times the size of a chunk: half of the chunks with the
// libraries of a PyTorch image unpack to more than four times theirs.
const plainSize = 4 << 20

type plainBuffer [plainSize]byte

var (
	markedBuffers = sync.Pool{New: func() any { return newMarkedBuffer() }}
	plainBuffers  = sync.Pool{New: func() any { return new(plainBuffer) }}
	trials        = sync.Pool{New: func() any { return new(trial) }}
)

// A trial decodes a part of a stream without knowing what is before it: first to symbols, and once none of the last 32 KiB
// are markers, which then are a window, to bytes.
type trial struct {
	decoder // of a trial that knows its window, also of what comes out

	marked  *markedBuffer
	n       int // symbols of marked that are there, with the window before them
	scanned int // of them, those that were looked at for markers
	dirty   int // behind the last marker

	plain *plainBuffer // nil while the window is unknown; what marked has is left out at its beginning
	base  int          // where decoder.dst starts in plain

	members []memberEnd
	ends    blockEnds
}

// memberEnd is where a member of a gzip file ends, and what it promises.
type memberEnd struct {
	at        int // how many bytes of the piece belong to it and those before it
	crc, size uint32
	next      int  // where the deflate stream of the member behind it starts, in bytes of the piece's input
	plain     bool // the header before that is a plain one
}

// guess is what a trial made of a part of a stream. Whether it is right depends on whether a block starts at its first bit.
type guess struct {
	start, end int // bits of src; both are where a block starts, or ended
	ended      bool
	marked     *markedBuffer // the first markedLen bytes, as symbols; they stand behind the window
	markedLen  int
	plain      *plainBuffer // those that follow, at their place; nil: there are none
	total      int          // bytes in all
	members    []memberEnd  // that ended on the way, the beginning of the next one known
	ends       blockEnds    // of all blocks, counted from the first bit of src
}

// drop gives the memory back.
func (g *guess) drop() {
	if g.marked != nil {
		markedBuffers.Put(g.marked)
	}
	if g.plain != nil {
		plainBuffers.Put(g.plain)
	}
	g.marked, g.plain = nil, nil
}

// trialCost is what it costs to try a place where no block starts, in bytes decoded.
const trialCost = 2 << 10

// try looks for the first block that starts in the first size bytes of src, and decodes from there up to the first block
// behind them that another trial can find, or as far as src and room allow. It returns nil when there is none. Time is bounded:
// places that look right and are not cost as much as a whole chunk at most.
func try(src []byte, size int, cancelled func() bool) *guess {
	t := trials.Get().(*trial)
	defer trials.Put(t)
	t.marked, t.plain = markedBuffers.Get().(*markedBuffer), nil
	g := t.run(src, size, cancelled)
	if g == nil {
		markedBuffers.Put(t.marked)
	}
	if t.plain != nil && (g == nil || g.plain == nil) {
		plainBuffers.Put(t.plain)
	}
	t.decoder.start(nil, nil, nil)
	t.marked, t.plain, t.members, t.ends = nil, nil, nil, nil
	return g
}

func (t *trial) run(src []byte, size int, cancelled func() bool) *guess {
	budget := plainSize
	for at := 0; budget > 0 && !cancelled(); at++ {
		if at = findBlock(src, at, 8*size); at < 0 {
			return nil
		}
		if g := t.from(src, at, 8*size); g != nil {
			return g
		}
		budget -= trialCost + t.total()
	}
	return nil
}

// from decodes what starts at a bit. It returns nil when not even a block can be decoded.
func (t *trial) from(src []byte, start, goal int) *guess {
	t.decoder.start(nil, src, nil)
	t.n, t.scanned, t.dirty, t.members, t.ends = windowSize, windowSize, windowSize, nil, nil
	if t.plain != nil {
		plainBuffers.Put(t.plain)
		t.plain = nil
	}
	last := &guess{start: start, end: start, marked: t.marked}
	if t.seek(start) != nil {
		return nil
	}
	for {
		if t.state == atHeader || t.state == atEnd {
			t.note(last)
			if !t.ready(goal) {
				break
			}
		}
		if t.step() != nil {
			break
		}
	}
	if last.end == start {
		return nil
	}
	return last
}

// note completes g with what was decoded up to here, the end of a block.
func (t *trial) note(g *guess) {
	g.end, g.ended, g.total = t.bit(), t.state == atEnd, t.total()
	g.plain, g.markedLen, g.members = t.plain, t.n-windowSize, t.members
	t.ends.add(blockEnd{bit: int64(g.end), at: int32(g.total), final: g.ended})
	g.ends = t.ends
}

// ready prepares the next block, and says whether there is one to be decoded.
func (t *trial) ready(goal int) bool {
	if t.state == atEnd {
		return t.nextMember()
	}
	if t.bit() >= goal && t.need(3) == nil && t.bits&7 == 4 { // what findBlock looks for
		return false
	}
	if t.plain == nil && t.clean() {
		t.know()
	}
	return true
}

// seek goes to a bit of src, before which nothing was decoded.
func (d *decoder) seek(bit int) error {
	d.pos, d.bits, d.count = bit/8, 0, 0
	if n := uint(bit & 7); n > 0 {
		if err := d.need(n); err != nil {
			return err
		}
		d.take(n)
	}
	return nil
}

// bit is the place in src of the next bit.
func (d *decoder) bit() int { return 8*d.pos - int(d.count) }

// total is how many bytes were decoded.
func (t *trial) total() int {
	if t.plain == nil {
		return t.n - windowSize
	}
	return t.base + t.out
}

func (t *trial) step() error {
	if t.plain == nil {
		switch t.state {
		case inStored:
			return t.markedStored()
		case inCodes:
			return t.markedCodes()
		case atHeader, atEnd:
		}
	}
	return t.decoder.step()
}

// clean says whether the last 32 KiB have no markers.
func (t *trial) clean() bool {
	for i := t.n; i > t.scanned; i-- {
		if t.marked[i-1] >= marker {
			t.dirty = i
			break
		}
	}
	t.scanned = t.n
	return t.n-t.dirty >= windowSize
}

// know goes on with bytes, behind what is known now. Before it is left room for what was decoded before.
func (t *trial) know() {
	t.plain, t.base = plainBuffers.Get().(*plainBuffer), 0
	t.dst, t.out = t.plain[:], t.n-windowSize
	for i, s := range t.marked[t.n-windowSize : t.n] {
		t.plain[t.out-windowSize+i] = byte(s)
	}
}

// nextMember goes on with the member that follows, if it is all there.
func (t *trial) nextMember() bool {
	if len(t.src)-t.pos < gzipTrailer {
		return false
	}
	trailer := t.src[t.pos:]
	r := bytes.NewReader(trailer[gzipTrailer:])
	if readGzipHeader(r) != nil {
		return false
	}
	total := t.total()
	if t.plain == nil {
		t.plain = plainBuffers.Get().(*plainBuffer)
	}
	t.base, t.dst, t.out = total, t.plain[total:], 0
	t.pos = len(t.src) - r.Len()
	t.bits, t.count, t.state = 0, 0, atHeader
	end := memberEnd{at: total, next: t.pos, plain: bytes.HasPrefix(trailer[gzipTrailer:], plainHeader)}
	end.crc, end.size = binary.LittleEndian.Uint32(trailer), binary.LittleEndian.Uint32(trailer[4:])
	t.members = append(t.members, end)
	return true
}
