package inflate

import "encoding/binary"

// Symbols stand for bytes while it is not known what was before the place where decoding began. Below 256 they are bytes,
// and from marker on they are bytes of the window before that place, counted from its start.
const marker = 1 << 15

// markedSize is how many symbols a trial may decode before it knows its window, with the window before them.
const markedSize = windowSize + plainSize + outputMargin

// markedBuffer is a window of markers, which is never written to, and symbols behind it.
type markedBuffer [markedSize]uint16

func newMarkedBuffer() *markedBuffer {
	b := new(markedBuffer)
	for i := range b[:windowSize] {
		b[i] = marker | uint16(i)
	}
	return b
}

// markedCodes decodes a compressed block to symbols, or gives up near the end of input or room.
func (t *trial) markedCodes() error {
	if end, err := t.fastMarked(); end || err != nil {
		return err
	}
	return errNoRoom
}

// markedStored turns a block without compression into symbols.
func (t *trial) markedStored() error {
	if t.left > len(t.src)-t.pos || t.left > len(t.marked)-t.n {
		return errNoRoom
	}
	for i, b := range t.src[t.pos : t.pos+t.left] {
		t.marked[t.n+i] = uint16(b)
	}
	t.pos += t.left
	t.n += t.left
	t.left = 0
	t.endBlock()
	return nil
}

// fastMarked is [decoder.fast] for symbols. A match cannot start too far back: there is a whole window of markers.
//
//nolint:gocognit // as for fast
func (t *trial) fastMarked() (end bool, err error) {
	wrong := false
	src, pos := t.src, t.pos
	dst, out := t.marked[:], t.n
	bits, count := t.bits, t.count
	literals, distances := &t.tables.literals, &t.tables.distances
	for len(src)-pos >= inputMargin && len(dst)-out >= outputMargin {
		in := (*[inputMargin]byte)(src[pos : pos+inputMargin : pos+inputMargin])
		bits |= binary.LittleEndian.Uint64(in[:8]) << (count & 63)
		filled := ^count >> 3 & 7
		pos += int(filled)
		count |= 56

		e := literals[bits&(1<<literalBits-1)]
		isLiteral := uint32(int32(e) >> 31)
		dst[out] = uint16(e >> valueShift & 0xff)
		out += int(isLiteral & 1)
		bits >>= e & isLiteral & takeMask
		count -= uint(e & isLiteral)

		e = literals[bits&(1<<literalBits-1)]
		if e&flagLiteral != 0 {
			dst[out] = uint16(e >> valueShift & 0xff)
			out++
			bits >>= e & takeMask
			count -= uint(e)
			e = literals[bits&(1<<literalBits-1)]
		}
		if e&flagSubtable != 0 {
			bits >>= literalBits
			count -= literalBits
			e = literals[uint64(e>>valueShift)+bits&(1<<(maxCodeLength-literalBits)-1)]
		}
		if e&flagLiteral != 0 {
			dst[out] = uint16(e >> valueShift & 0xff)
			out++
			bits >>= e & takeMask
			count -= uint(e)
			continue
		}
		if e&flagSpecial != 0 {
			if end = e&flagEnd != 0; !end {
				wrong = true
				break
			}
			bits >>= e & takeMask
			count -= uint(e)
			break
		}
		length := int(e>>valueShift) + int(bits&(1<<(e&takeMask)-1)>>(e>>lengthShift&lengthMask))
		bits >>= e & takeMask
		count -= uint(e)

		if count&63 < 28 {
			bits |= binary.LittleEndian.Uint64(in[filled:filled+8]) << (count & 63)
			pos += int(^count >> 3 & 7)
			count |= 56
		}
		e = distances[bits&(1<<distanceBits-1)]
		if e&flagSpecial != 0 {
			if e&flagSubtable != 0 {
				bits >>= distanceBits
				count -= distanceBits
				e = distances[uint64(e>>valueShift)+bits&(1<<(maxCodeLength-distanceBits)-1)]
			}
			if e&flagSpecial != 0 {
				wrong = true
				break
			}
		}
		distance := int(e>>valueShift) + int(bits&(1<<(e&takeMask)-1)>>(e>>lengthShift&lengthMask))
		bits >>= e & takeMask
		count -= uint(e)

		from := out - distance
		if distance < 8 {
			for i := range length {
				dst[out+i] = dst[from+i]
			}
			out += length
			continue
		}
		copyMarked(dst, out, from)
		for ; length > 16; length -= 16 {
			out += 16
			from += 16
			copyMarked(dst, out, from)
		}
		out += length
	}
	t.pos, t.n, t.bits, t.count = pos, out, bits, count&63
	t.unread()
	if wrong {
		return false, t.corrupt(unknownCode)
	}
	if end {
		t.endBlock()
	}
	return end, nil
}

// copyMarked copies 16 symbols in two steps, the second of which may have to read what the first one wrote. More than 16 bytes at once would
// be a call of memmove.
func copyMarked(b []uint16, to, from int) {
	t := (*[16]uint16)(b[to : to+16 : to+16])
	f := (*[16]uint16)(b[from : from+16 : from+16])
	*(*[8]uint16)(t[:8]) = *(*[8]uint16)(f[:8])
	*(*[8]uint16)(t[8:]) = *(*[8]uint16)(f[8:])
}

// meanings says which byte a symbol is: itself, or one of the window.
type meanings [1 << 16]byte

func newMeanings() *meanings {
	m := new(meanings)
	for i := range 256 {
		m[i] = byte(i)
	}
	return m
}

// resolve turns symbols into bytes, of which there are as many.
func (m *meanings) resolve(dst []byte, symbols []uint16) {
	dst = dst[:len(symbols)]
	for i, s := range symbols {
		dst[i] = m[s]
	}
}
