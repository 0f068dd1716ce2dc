package xz

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Limits of a chunk, in bytes (LZMA2 has 16 and 21 bits for them).
const (
	maxPacked   = 1 << 16
	maxUnpacked = 1 << 21
	// overrun is more than a symbol can take: 48 bits at most, of which each takes a byte or none.
	overrun = 64
)

// lzma2 decodes the chunks of a block.
type lzma2 struct {
	in         io.Reader
	dictionary int
	ended      bool

	buf  []byte // what was decoded: of what lies before len, the last dictionary bytes may be referred to
	from int    // in buf: what follows has not been read yet
	base int    // in buf: where the dictionary was reset, or 0 when that is no longer there
	at   uint32 // bytes since then

	packed []byte // the chunk as it was read, and room behind it
	state  state

	needDictionary, needProperties bool
}

// reset begins a block. Buffers are kept.
func (l *lzma2) reset(in io.Reader, dictionary int) {
	*l = lzma2{in: in, dictionary: dictionary, buf: l.buf[:0], packed: l.packed, state: l.state, needDictionary: true, needProperties: true}
}

// Read returns io.EOF at the end of the block, when nothing is left.
func (l *lzma2) Read(p []byte) (int, error) {
	for l.from == len(l.buf) {
		if l.ended {
			return 0, io.EOF
		}
		if err := l.chunk(); err != nil {
			l.ended = true
			return 0, unexpected(err)
		}
	}
	n := copy(p, l.buf[l.from:])
	l.from += n
	if l.ended && l.from == len(l.buf) {
		return n, io.EOF
	}
	return n, nil
}

// chunk decodes the next chunk. Its first byte says what it is:
//
//	0          the end
//	1, 2       bytes as they are, with a new dictionary or without
//	0x80-0xff  LZMA: two bits that say what begins anew, and the upper five of the size
func (l *lzma2) chunk() error {
	var head [6]byte
	if _, err := io.ReadFull(l.in, head[:1]); err != nil {
		return err
	}
	control := head[0]
	if control == 0 {
		l.ended = true
		return nil
	}
	if control == 1 || control >= 0xe0 {
		l.needDictionary, l.needProperties = false, true
		l.base, l.at = len(l.buf), 0
	} else if l.needDictionary {
		return fmt.Errorf("a chunk refers to what is not there: %w", errDamaged)
	}
	if control < 0x80 {
		if control > 2 {
			return fmt.Errorf("a chunk of the kind %#x: %w", control, errDamaged)
		}
		return l.stored(head[:2])
	}
	return l.compressed(control, head[:])
}

func (l *lzma2) stored(head []byte) error {
	if _, err := io.ReadFull(l.in, head); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint16(head)) + 1
	end := l.grow(size)
	_, err := io.ReadFull(l.in, l.buf[len(l.buf):end])
	if err == nil {
		l.buf, l.at = l.buf[:end], l.at+uint32(size)
	}
	return err
}

func (l *lzma2) compressed(control byte, head []byte) error {
	const newState, newProperties = 0xa0, 0xc0
	n := 4
	if control >= newProperties {
		n = 5
	}
	if _, err := io.ReadFull(l.in, head[:n]); err != nil {
		return err
	}
	unpacked := int(control&0x1f)<<16 + int(binary.BigEndian.Uint16(head)) + 1
	packed := int(binary.BigEndian.Uint16(head[2:])) + 1
	switch {
	case control >= newProperties:
		if !l.state.setProperties(head[4]) {
			return fmt.Errorf("LZMA with the properties %d: %w", head[4], errDamaged)
		}
		l.needProperties = false
	case l.needProperties:
		return fmt.Errorf("a chunk without properties: %w", errDamaged)
	}
	if control >= newState {
		l.state.reset()
	}
	if l.packed == nil {
		l.packed = make([]byte, maxPacked+overrun)
	}
	if _, err := io.ReadFull(l.in, l.packed[:packed]); err != nil {
		return err
	}
	clear(l.packed[packed : packed+overrun])
	end := l.grow(unpacked)
	if !l.state.decode(l.buf[l.base:end], len(l.buf)-l.base, l.dictionary, l.at, l.packed[:packed+overrun]) {
		return errDamaged
	}
	l.buf, l.at = l.buf[:end], l.at+uint32(unpacked)
	return nil
}

// grow makes room for n bytes more, and returns where they end. What lies before the dictionary is given up when the buffer is full: as
// the buffer has room for a chunk and a quarter of the dictionary, a byte is moved four times at most. It grows with what is in it, so
// that a small file takes no more memory than it needs.
func (l *lzma2) grow(n int) int {
	if len(l.buf)+n <= cap(l.buf) {
		return len(l.buf) + n
	}
	drop := max(l.base, len(l.buf)-l.dictionary)
	kept := l.buf[drop:]
	if most := l.dictionary + l.dictionary/4 + maxUnpacked; cap(l.buf) < most {
		size := min(most, max(2*cap(l.buf), len(kept)+n))
		l.buf = append(make([]byte, 0, size), kept...)
	} else {
		l.buf = l.buf[:copy(l.buf, kept)]
	}
	l.base = max(0, l.base-drop)
	l.from = len(l.buf)
	return len(l.buf) + n
}
