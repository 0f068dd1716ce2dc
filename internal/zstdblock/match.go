package zstdblock

import (
	"math/bits"
)

const (
	posBits = 20
	posMask = 1<<posBits - 1

	longLog  = 17 // tables of this size are for the largest input
	shortLog = 16

	prime8 = 0xcf1bbcdcb7a56463
	prime5 = 889523592379

	margin = 8 // bytes at the end of a block where no match starts
)

// repeats are the last distances, RFC 8878 section 3.1.1.5. The third is never used.
type repeats struct{ first, second int }

// window is the content of the frame. Its size is fixed and indexes are masked, so that no load has to be checked.
type window [MaxSize + 16]byte

// at64 is the little-endian number at i. The compiler makes one load of it.
func (w *window) at64(i int) uint64 {
	i &= posMask
	return uint64(w[i]) | uint64(w[i+1])<<8 | uint64(w[i+2])<<16 | uint64(w[i+3])<<24 |
		uint64(w[i+4])<<32 | uint64(w[i+5])<<40 | uint64(w[i+6])<<48 | uint64(w[i+7])<<56
}

func (w *window) at32(i int) uint32 {
	i &= posMask
	return uint32(w[i]) | uint32(w[i+1])<<8 | uint32(w[i+2])<<16 | uint32(w[i+3])<<24
}

// extend returns where the equal bytes from a and b, a < b, end after b; up to 7 too many after the end.
func (w *window) extend(a, b, end int) int {
	for b < end {
		if d := w.at64(a) ^ w.at64(b); d != 0 {
			return b + bits.TrailingZeros64(d)>>3
		}
		a += 8
		b += 8
	}
	return end
}

// finder splits a block into sequences: literals, and a match with something before.
type finder struct {
	// Where the last 8 and the last 5 equal bytes were, by their hash. An entry is a position in the low posBits, and
	// above it more of the hash, so that a look at the window is nearly always worth it. As short inputs use only a
	// part of the tables there is less to clear.
	long                [1 << longLog]uint32
	short               [1 << shortLog]uint32
	longMask, shortMask uint64

	window     window
	reps       repeats
	sequences  [maxBlock/4 + 1]uint64 // from find to split as pack makes them, then their extra bits
	codes      [maxBlock/4 + 1]uint32 // of the lengths of literals, offset, length of the match, and the number of extra bits, from the low byte
	nsequences int
	literals   [maxBlock + 64]byte
	nliterals  int
}

// begin takes src for the content of the frame.
func (f *finder) begin(src []byte) {
	size := 1 << bits.Len(uint(len(src)-1))
	f.longMask = uint64(min(size/2, 1<<longLog) - 1)
	f.shortMask = uint64(min(size/4, 1<<shortLog) - 1)
	clear(f.long[:f.longMask+1])
	clear(f.short[:f.shortMask+1])
	copy(f.window[:], src)
	f.reps = repeats{1, 4}
}

// find makes the sequences of the block from:to. The race detector does not look at it, as it would take ten times as long: it reads and
// writes the finder alone, and [finder.begin], which copies the content into it, is seen.
//
//go:norace
//nolint:gocognit // it is one loop, and what it carries along has to stay in registers
func (f *finder) find(from, to int) {
	w := &f.window
	anchor, nseq := from, 0
	limit := to - margin
	longMask, shortMask := f.longMask, f.shortMask
	rep1, rep2 := f.reps.first, f.reps.second
	p := max(from, 1)
	for p < limit {
		x := w.at64(p)
		hl, hs := x*prime8, (x<<24)*prime5
		tl, ts := uint32(hl>>12)&^posMask, uint32(hs>>12)&^posMask
		il, is := hl>>(64-longLog)&longMask, hs>>(64-shortLog)&shortMask
		cl, cs := f.long[il]-tl, f.short[is]-ts
		f.long[il] = tl + uint32(p)
		f.short[is] = ts + uint32(p)

		var c, end int
		if uint32(x>>8) == w.at32(p+1-rep1) {
			p++
			end = p + 4
			if d := w.at64(end-rep1) ^ w.at64(end); d != 0 {
				end += bits.TrailingZeros64(d) >> 3
			} else {
				end = w.extend(end+8-rep1, end+8, to)
			}
			end = min(end, to)
			f.sequences[nseq] = pack(p-anchor, end-p, 1)
			nseq++
			goto after
		}
		if cl <= posMask || cs <= posMask {
			if cl > posMask {
				cl = cs
			}
			c = int(cl)
			d := w.at64(c) ^ x
			if d == 0 {
				end = min(w.extend(c+8, p+8, to), to)
				goto found
			}
			if uint32(d) == 0 {
				end = p + bits.TrailingZeros64(d)>>3
				x = w.at64(p + 1)
				hl = x * prime8
				il = hl >> (64 - longLog) & longMask
				tl = uint32(hl>>12) &^ posMask
				cl = f.long[il] - tl
				f.long[il] = tl + uint32(p+1)
				if cl <= posMask && w.at64(int(cl)) == x {
					p++
					c = int(cl)
					end = min(w.extend(c+8, p+8, to), to)
				}
				goto found
			}
		}
		p++
		if p-anchor >= 256 { // nothing for long: look less closely
			p += (p - anchor) >> 8
		}
		continue

	found:
		for c > 0 && p > anchor && w[(c-1)&posMask] == w[(p-1)&posMask] {
			c--
			p--
		}
		rep2, rep1 = rep1, p-c
		f.sequences[nseq] = pack(p-anchor, end-p, rep1+3)
		nseq++

	after:
		if end < limit {
			f.putShort(w.at64(p+1), p+1)
			f.putLong(w.at64(p+2), p+2)
			f.putLong(w.at64(end-2), end-2)
			f.putShort(w.at64(end-1), end-1)
		}
		p = end
		anchor = end
		for p < limit && p >= rep2 {
			x := w.at64(p)
			d := w.at64(p-rep2) ^ x
			if uint32(d) != 0 {
				break
			}
			end = p + bits.TrailingZeros64(d)>>3
			if d == 0 {
				end = min(w.extend(p+8-rep2, p+8, to), to)
			}
			rep1, rep2 = rep2, rep1
			f.putLong(x, p)
			f.putShort(x, p)
			f.sequences[nseq] = pack(0, end-p, 1)
			nseq++
			p = end
			anchor = p
		}
	}
	f.nsequences = nseq
	f.reps.first, f.reps.second = rep1, rep2
}

// matched is the number of bytes in matches, if there are at most so many of them. Otherwise it is large.
func (f *finder) matched(most int) int {
	if f.nsequences > most {
		return maxBlock
	}
	sum := 0
	for _, s := range f.sequences[:f.nsequences] {
		sum += int(s>>lengthBits&lengthMask) + minMatch
	}
	return sum
}

// putLong notes that the 8 bytes x are at p.
func (f *finder) putLong(x uint64, p int) {
	h := x * prime8
	f.long[h>>(64-longLog)&f.longMask] = uint32(h>>12)&^posMask + uint32(p)
}

// putShort notes that the first 5 bytes of x are at p.
func (f *finder) putShort(x uint64, p int) {
	h := (x << 24) * prime5
	f.short[h>>(64-shortLog)&f.shortMask] = uint32(h>>12)&^posMask + uint32(p)
}

// copyLiterals copies n bytes, 16 at a time: there is room behind, and most literals are that short.
func (f *finder) copyLiterals(to, from, n int) {
	*(*[16]byte)(f.literals[to:]) = *(*[16]byte)(f.window[from&posMask:])
	if n > 16 {
		copy(f.literals[to:], f.window[from:from+n])
	}
}
