package inflate

import (
	"encoding/binary"

	"sconce.dev/sconce/internal/racewatch"
)

const (
	// inputMargin is what a round of the fast loop may read: two words, the second one up to 7 bytes on.
	inputMargin = 16
	// outputMargin is what a round may write: some literals, a match, and what copying by words writes beyond its end.
	outputMargin = 8 + maxMatch + 32
)

// fast decodes a block while there is plenty of input and of room. It says whether the block ended.
//
// A round takes up to three literals and a match. After the refill there are 56 bits or more: enough for two literals by
// the primary table, and then for a third or for a length (2*11 + 20 bits); a distance takes up to 28.
//
// The race detector does not look at the loop, as it would take twenty times as long: watchedFast tells it what is read and written.
//
//go:norace
//nolint:gocognit // calls and spilled registers would cost what the loop is there to gain
func (d *decoder) fast() (end bool, err error) {
	wrong := ""
	src, pos := d.src, d.pos
	dst, out := d.dst, d.out
	bits, count := d.bits, d.count // of count, only the 6 low bits mean anything: entries are subtracted whole
	literals, distances := &d.tables.literals, &d.tables.distances
	for len(src)-pos >= inputMargin && len(dst)-out >= outputMargin {
		in := (*[inputMargin]byte)(src[pos : pos+inputMargin : pos+inputMargin])
		bits |= binary.LittleEndian.Uint64(in[:8]) << (count & 63)
		filled := ^count >> 3 & 7
		pos += int(filled)
		count |= 56

		// One literal or none are as likely, which no processor predicts: this is done without a branch.
		e := literals[bits&(1<<literalBits-1)]
		isLiteral := uint32(int32(e) >> 31)
		dst[out] = byte(e >> valueShift)
		out += int(isLiteral & 1)
		bits >>= e & isLiteral & takeMask
		count -= uint(e & isLiteral)

		e = literals[bits&(1<<literalBits-1)]
		if e&flagLiteral != 0 {
			dst[out] = byte(e >> valueShift)
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
			dst[out] = byte(e >> valueShift)
			out++
			bits >>= e & takeMask
			count -= uint(e)
			continue
		}
		if e&flagSpecial != 0 {
			if end = e&flagEnd != 0; !end {
				wrong = unknownCode
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
				wrong = unknownCode
				break
			}
		}
		distance := int(e>>valueShift) + int(bits&(1<<(e&takeMask)-1)>>(e>>lengthShift&lengthMask))
		bits >>= e & takeMask
		count -= uint(e)

		if distance > out {
			wrong = tooFar
			break
		}
		from := out - distance
		if distance < 16 {
			copyNear(dst[from:], distance, length)
			out += length
			continue
		}
		copy32(dst, out, from)
		for ; length > 32; length -= 32 {
			out += 32
			from += 32
			copy32(dst, out, from)
		}
		out += length
	}
	d.pos, d.out, d.bits, d.count = pos, out, bits, count&63
	d.unread()
	if wrong != "" {
		return false, d.corrupt(wrong)
	}
	if end {
		d.endBlock()
	}
	return end, nil
}

// watchedFast is fast, and tells the race detector of it: what it used of the input, the window, and what it has put out.
func (d *decoder) watchedFast() (end bool, err error) {
	pos, out := d.pos, d.out
	end, err = d.fast()
	racewatch.Read(d.src[min(pos, d.pos):d.pos])
	racewatch.Read(d.dst[max(0, out-windowSize):out])
	racewatch.Write(d.dst[out:d.out])
	return end, err
}

// copy32 copies 32 bytes in two steps, the second of which may have to read what the first one wrote.
func copy32(b []byte, to, from int) {
	t := (*[32]byte)(b[to : to+32 : to+32])
	f := (*[32]byte)(b[from : from+32 : from+32])
	*(*[16]byte)(t[:16]) = *(*[16]byte)(f[:16])
	*(*[16]byte)(t[16:]) = *(*[16]byte)(f[16:])
}

// copyNear repeats the first bytes of b, as many as distance says and less than 16, until length bytes follow them. It is a part of the loop.
//
//go:norace
func copyNear(b []byte, distance, length int) {
	end := distance + length
	if distance >= 8 {
		for i := distance; i < end; i += 8 {
			*(*[8]byte)(b[i : i+8 : i+8]) = *(*[8]byte)(b[i-distance:])
		}
		return
	}
	n := 8 * uint(distance)
	v := binary.LittleEndian.Uint64(b) & (1<<n - 1)
	v |= v << n
	v |= v << (2 * n)
	v |= v << (4 * n)
	whole := 8 - 8%distance // what of the word is whole repetitions
	for i := distance; i < end; i += whole {
		binary.LittleEndian.PutUint64(b[i:], v)
	}
}
