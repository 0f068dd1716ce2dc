package inflate

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
)

// serialSize is how many bytes the sequencer decodes before it passes them on.
const serialSize = 256 << 10

type serialBuffer [windowSize + serialSize + outputMargin]byte

var serialBuffers = sync.Pool{New: func() any { return new(serialBuffer) }}

// isReady is for pieces that need not be resolved.
var isReady = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// errStopped ends the sequencer when nobody reads any more.
var errStopped = errors.New("stopped")

// The sequencer puts together what comes out, and decodes what no trial has.
type sequencer struct {
	z      *ParallelGzipReader
	cur    *chunk
	last   error // why there is no chunk behind cur
	at     int64 // the next bit of the file; at the start of a block, or inside a trailer or header
	member int64 // the byte where the deflate stream of the member starts

	window window

	d      decoder
	wasted int // trials in a row that were of no use
}

// sequence passes on all pieces. The last one has an error.
func (z *ParallelGzipReader) sequence() {
	defer close(z.solves)
	s := &sequencer{z: z}
	if err := s.run(); !errors.Is(err, errStopped) {
		_ = s.emit(&piece{err: err, ready: isReady})
	}
	z.quit()
	s.d.start(nil, nil, nil)
	if s.cur != nil {
		s.leave(s.cur)
	}
	for c := range z.order {
		s.leave(c)
	}
}

// run ends in io.EOF, in what is wrong with the file, or in errStopped.
func (s *sequencer) run() error {
	for {
		if _, err := s.rest(); err != nil {
			return noEOF(err)
		}
		end := 8 * (s.cur.at + int64(s.cur.size))
		if err := s.follow(s.cur); err != nil {
			return err
		}
		if err := s.serial(end); err != nil {
			return err
		}
	}
}

// follow goes on with what the trial of a chunk has made, if there is something and it is right.
func (s *sequencer) follow(c *chunk) error {
	s.wait(c)
	at, g := c.at, c.made
	c.made = nil
	if g == nil {
		if c.begun {
			s.waste()
		}
		return nil
	}
	start := 8*at + int64(g.start)
	if err := s.serial(start); err != nil { // which may leave the chunk
		s.dropGuess(g)
		return err
	}
	if s.at != start || !s.fits(g) {
		s.dropGuess(g)
		s.waste()
		return nil
	}
	s.wasted = 0
	return s.accept(at, g)
}

// How many trials have to be in vain in a row, and how many chunks are then not tried: nothing is to be found in a file of
// blocks that are stored or have the fixed codes, or in a part of one.
const (
	muchWaste  = 8
	pauseAfter = 24
)

func (s *sequencer) waste() {
	if s.wasted++; s.wasted >= muchWaste {
		s.wasted = 0
		s.z.pause.Store(pauseAfter)
	}
}

func (s *sequencer) dropGuess(g *guess) {
	g.drop()
	<-trialsAtOnce()
}

// wait waits for the trial of a chunk. One that has not begun does not begin any more.
func (s *sequencer) wait(c *chunk) {
	select {
	case <-c.wanted:
	default:
		close(c.wanted)
	}
	<-c.tried
}

// leave lets go of a chunk.
func (s *sequencer) leave(c *chunk) {
	s.wait(c)
	if c.made != nil {
		s.dropGuess(c.made)
		c.made = nil
	}
	s.z.release(c)
}

// rest returns the bytes from the place of the next bit to the end of its chunk, one or more.
func (s *sequencer) rest() ([]byte, error) {
	for s.cur == nil || s.at/8 >= s.cur.at+int64(s.cur.size) {
		if err := s.advance(); err != nil {
			return nil, err
		}
	}
	return s.cur.src[s.at/8-s.cur.at : s.cur.size], nil
}

// advance goes on to the next chunk.
func (s *sequencer) advance() error {
	if s.last != nil {
		return s.last
	}
	if s.cur != nil {
		s.last = s.cur.end
		s.leave(s.cur)
		if s.cur = nil; s.last != nil {
			return s.last
		}
	}
	c, ok := <-s.z.order
	if !ok {
		return errStopped
	}
	s.cur = c
	return nil
}

// next gives the serial decoder the bytes of the next chunk.
func (s *sequencer) next(int) ([]byte, error) {
	for {
		if err := s.advance(); err != nil {
			return nil, noEOF(err)
		}
		if s.cur.size > 0 {
			return s.cur.src[:s.cur.size], nil
		}
	}
}

// Read reads from the file, at the start of a byte.
func (s *sequencer) Read(p []byte) (int, error) {
	b, err := s.rest()
	n := copy(p, b)
	s.at += 8 * int64(n)
	return n, err
}

// ReadByte does so too.
func (s *sequencer) ReadByte() (byte, error) {
	var b [1]byte
	_, err := s.Read(b[:])
	return b[0], err
}

// emit passes a piece on.
func (s *sequencer) emit(p *piece) error {
	select {
	case s.z.out <- p:
		return nil
	case <-s.z.stop:
		<-p.ready
		p.drop()
		return errStopped
	}
}

// fits says whether the symbols of a guess are bytes that there are. Near the start of a member the window is not full. Nor does a guess fit
// that goes on behind a header that is not a plain one, where all must be.
func (s *sequencer) fits(g *guess) bool {
	if s.z.notes != nil && slices.ContainsFunc(g.members, func(m memberEnd) bool { return !m.plain }) {
		return false // which is an error, in its turn
	}
	if s.window.known == windowSize {
		return true
	}
	least := marker + windowSize - s.window.known // one more than any symbol when nothing is known
	for _, symbol := range g.marked[windowSize : windowSize+g.markedLen] {
		if symbol >= marker && int(symbol) < least {
			return false
		}
	}
	return true
}

// accept passes on what the trial of the chunk at a byte of the file has made, which is right.
func (s *sequencer) accept(at int64, g *guess) error {
	m := meaningsPool.Get().(*meanings)
	copy(m[marker:], s.window.last[:])
	s.slide(g, m)
	s.at = 8*at + int64(g.end)
	if n := len(g.members); n > 0 {
		s.member = at + int64(g.members[n-1].next)
	}
	if g.plain == nil {
		g.plain = plainBuffers.Get().(*plainBuffer)
	}
	p := &piece{data: g.plain[:g.total], members: g.members, ends: g.ends, from: 8 * at, guess: g, meanings: m, ready: make(chan struct{})}
	ended := g.ended
	s.z.solves <- p
	if err := s.emit(p); err != nil {
		return err
	}
	if ended {
		return s.nextMember()
	}
	return nil
}

// slide makes the window what it is behind a guess. What had the window of an earlier member ended with it.
func (s *sequencer) slide(g *guess, m *meanings) {
	from := 0 // of the member that goes on
	if n := len(g.members); n > 0 {
		from, s.window.known = g.members[n-1].at, 0
	}
	if g.plain == nil || g.total == g.markedLen && from == 0 {
		m.resolve(s.window.last[:], g.marked[g.markedLen:][:windowSize])
		s.window.known = min(windowSize, s.window.known+g.markedLen)
		return
	}
	s.window.keep(g.plain[from:g.total])
}

// window is what matches may reach back into.
type window struct {
	last  [windowSize]byte // the last bytes of the member, at its end
	known int              // how many there are
}

// keep makes the window the last bytes of what was decoded, behind those that it has.
func (w *window) keep(b []byte) {
	b = b[max(0, len(b)-windowSize):]
	copy(w.last[:], w.last[len(b):])
	copy(w.last[windowSize-len(b):], b)
	w.known = min(windowSize, w.known+len(b))
}

func (w *window) bytes() []byte { return w.last[windowSize-w.known:] }

// serial decodes up to the start of a block at or behind a bit of the file, or into another member behind it.
func (s *sequencer) serial(until int64) error {
	for s.at < until {
		if err := s.serialMember(until); err != nil {
			return err
		}
	}
	return nil
}

// serialMember does so up to the end of the member at most, and then goes to the next one.
func (s *sequencer) serialMember(until int64) error {
	src, err := s.rest()
	if err != nil {
		return noEOF(err)
	}
	d := &s.d
	d.start(nil, src, s)
	d.base = s.at/8 - s.member
	err = d.seek(int(s.at & 7))
	for err == nil && d.state != atEnd && (d.state != atHeader || s.bit() < until) {
		err = s.serialPiece(until)
	}
	if err != nil {
		return err
	}
	s.at = s.bit()
	if d.state == atEnd {
		return s.nextMember()
	}
	return nil
}

// bit is the place in the file of the serial decoder's next bit.
func (s *sequencer) bit() int64 { return 8*(s.member+s.d.base) + int64(s.d.bit()) }

// serialPiece decodes one piece.
func (s *sequencer) serialPiece(until int64) error {
	b := serialBuffers.Get().(*serialBuffer)
	d := &s.d
	d.dst, d.out = b[:], copy(b[:], s.window.bytes())
	known := d.out
	p := &piece{serial: b, ready: isReady}
	var err error
	for err == nil && len(d.dst)-d.out >= outputMargin && d.state != atEnd && (d.state != atHeader || s.bit() < until) {
		err = d.step()
		if err == nil && (d.state == atHeader || d.state == atEnd) {
			p.ends.add(blockEnd{bit: s.bit(), at: int32(d.out - known), final: d.state == atEnd})
		}
	}
	p.data = b[known:d.out]
	s.window.keep(p.data)
	if stopped := s.emit(p); err == nil {
		err = stopped
	}
	return err
}

// nextMember reads a trailer and the header behind it. It returns io.EOF when there is none.
func (s *sequencer) nextMember() error {
	s.at = (s.at + 7) &^ 7
	var trailer [gzipTrailer]byte
	if _, err := io.ReadFull(s, trailer[:]); err != nil {
		return noEOF(err)
	}
	end := memberEnd{crc: binary.LittleEndian.Uint32(trailer[:]), size: binary.LittleEndian.Uint32(trailer[4:])}
	if err := s.emit(&piece{members: []memberEnd{end}, ready: isReady}); err != nil {
		return err
	}
	if err := s.z.readHeader(s); err != nil {
		return err
	}
	s.member, s.window.known = s.at/8, 0
	return nil
}
