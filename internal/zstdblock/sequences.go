package zstdblock

import (
	"encoding/binary"
	"math/bits"
)

// The kinds of symbols of a sequence, in the order of their tables.
const (
	kindLiteral = iota // codes of the lengths of literals
	kindOffset
	kindMatch
	kinds
)

// How a table is transmitted, RFC 8878 section 3.1.1.3.2.1.
const (
	modePredefined = iota
	modeRLE
	modeCompressed
	modeRepeat
)

// sequenceTable is the table of one kind: the current one is that of the decoder after the block.
type sequenceTable struct {
	current fseTable
	fresh   fseTable // not built
	known   bool     // the next block may use the current one again
}

// A sequence is packed in 64 bits: length of the literals, length of the match - minMatch, and the value of the offset
// (1 to 3 are repeats, others the distance + 3).
const (
	lengthBits = 18
	lengthMask = 1<<lengthBits - 1
	minMatch   = 3
)

func pack(literals, match, offset int) uint64 {
	return uint64(literals) | uint64(match-minMatch)<<lengthBits | uint64(offset)<<(2*lengthBits)
}

// mostLogs is the largest table of each kind, RFC 8878 section 3.1.1.3.2.1.1.
var mostLogs = [kinds]int{9, 8, 9}

// The first values and numbers of extra bits of the codes, RFC 8878 section 3.1.1.3.2.1.1.
var (
	literalExtra = [36]uint8{16: 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	matchExtra   = [53]uint8{32: 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

	literalCodes = codesOf(literalExtra[:25])
	matchCodes   = codesOf(matchExtra[:43])
)

// A code and its number of extra bits, code<<8 | bits.
type lengthCode uint16

// codesOf lists the codes of short lengths.
func codesOf(extra []uint8) (codes [128]lengthCode) {
	n := 0
	for code, e := range extra {
		for end := n + 1<<e; n < end && n < len(codes); n++ {
			codes[n] = lengthCode(code<<8) | lengthCode(e)
		}
	}
	return codes
}

// literalCode is the code of the length of literals. From 64 on there is one for every power of two.
func literalCode(n uint32) uint32 {
	if n < 64 {
		return uint32(literalCodes[n])
	}
	width := uint32(bits.Len32(n)) - 1
	return (width+19)<<8 | width
}

// matchCode is the code of the length of a match - minMatch. From 128 on there is one for every power of two.
func matchCode(n uint32) uint32 {
	if n < 128 {
		return uint32(matchCodes[n])
	}
	width := uint32(bits.Len32(n)) - 1
	return (width+36)<<8 | width
}

// The probabilities of the predefined tables, RFC 8878 section 3.1.1.3.2.2.
var predefined = [kinds]fseTable{
	kindLiteral: predefinedTable(6, []int16{
		4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1,
		2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1,
	}),
	kindOffset: predefinedTable(5, []int16{
		1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
	}),
	kindMatch: predefinedTable(6, []int16{
		1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
		1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
	}),
}

func predefinedTable(log int, norm []int16) (t fseTable) {
	t.log, t.count = log, len(norm)
	copy(t.norm[:], norm)
	t.build(&t)
	return t
}

// histogram counts the codes of one kind.
type histogram [64]uint32

// used cuts h after the highest symbol that occurs and counts the different ones.
func (h *histogram) used() (hist []uint32, different int) {
	end := 0
	for s, n := range h {
		if n > 0 {
			end = s + 1
			different++
		}
	}
	return h[:end], different
}

// appendSequences writes the sequences section of a block. It returns false if that does not fit in the capacity of dst.
func (e *Encoder) appendSequences(dst []byte) ([]byte, bool) {
	n := e.nsequences
	switch {
	case n < 128:
		dst = append(dst, byte(n))
	case n < 0x7f00:
		dst = append(dst, byte(n>>8)+128, byte(n))
	default:
		dst = binary.LittleEndian.AppendUint16(append(dst, 255), uint16(n-0x7f00))
	}
	if n == 0 {
		return dst, true
	}
	at := len(dst)
	dst = append(dst, 0)
	for k := range e.hist {
		var mode int
		dst, mode = e.tables[k].choose(dst, k, &e.hist[k], n)
		dst[at] |= byte(mode << (6 - 2*k))
	}
	return e.appendBits(dst)
}

// split collects the literals of the block from:to, replaces every sequence by its extra bits, writes its codes beside
// and counts them. The race detector does not look at it: see find.
//
//go:norace
func (e *Encoder) split(from, to int) {
	at, nlit := from, 0
	clear(e.hist[:])
	for i := range min(e.nsequences, len(e.sequences)) {
		s := e.sequences[i]
		ll := uint32(s) & lengthMask
		ml := uint32(s>>lengthBits) & lengthMask
		of := uint32(s >> (2 * lengthBits))
		e.copyLiterals(nlit, at, int(ll))
		nlit += int(ll)
		at += int(ll+ml) + minMatch

		lc, mc, ow := literalCode(ll), matchCode(ml), uint32(bits.Len32(of)-1)&31
		lw, mw := lc&31, mc&31
		lc, mc = lc>>8&63, mc>>8&63
		e.hist[kindLiteral][lc]++
		e.hist[kindMatch][mc]++
		e.hist[kindOffset][ow]++
		// The lowest value of every code ends in as many zeros as there are extra bits.
		x := uint64(of & (1<<ow - 1))
		x = x<<mw | uint64(ml&(1<<mw-1))
		e.sequences[i] = x<<lw | uint64(ll&(1<<lw-1))
		e.codes[i] = lc | ow<<8 | mc<<16 | (lw+mw+ow)<<24
	}
	e.nliterals = nlit + copy(e.literals[nlit:], e.window[at:to])
}

// choose selects how to transmit the table of kind k for n sequences, and appends its description.
func (t *sequenceTable) choose(dst []byte, k int, h *histogram, n int) ([]byte, int) {
	hist, different := h.used()
	if different == 1 {
		symbol := len(hist) - 1
		t.current.single(symbol)
		t.known = false
		return append(dst, byte(symbol)), modeRLE
	}
	t.fresh.normalize(hist, n, tableLog(n, different, mostLogs[k]))
	price, _ := t.fresh.price(hist)
	out := t.fresh.appendTable(dst)
	price += 8 * (len(out) - len(dst))
	fixed, ok := predefined[k].price(hist)
	if t.known {
		if again, can := t.current.price(hist); can && again < price && (!ok || again <= fixed) {
			return dst, modeRepeat
		}
	}
	if ok && fixed < price {
		t.current, t.known = predefined[k], false
		return dst, modePredefined
	}
	t.current.build(&t.fresh)
	t.known = true
	return out, modeCompressed
}

// appendBits writes the bit stream of the sequences, RFC 8878 section 3.1.1.3.2.1.2: from the last to the first, as the
// decoder reads it backwards. It returns false if that would be longer than any block.
func (e *Encoder) appendBits(dst []byte) ([]byte, bool) {
	e.writeBits()
	return append(dst, e.bits[:e.nbits]...), e.nbits > 0
}

// writeBits has all it needs at a fixed distance from e, because there are too few registers for more pointers. The race detector does not
// look at it: see find.
//
//go:norace
func (e *Encoder) writeBits() {
	n := e.nsequences
	lt, ot, mt := &e.tables[kindLiteral].current, &e.tables[kindOffset].current, &e.tables[kindMatch].current
	c := e.codes[n-1]
	ls, os, ms := lt.start(c), ot.start(c>>8), mt.start(c>>16)
	held, width, at := e.sequences[n-1], c>>24, uint(0)
	e.nbits = 0
	for i := n - 2; i >= 0; i-- {
		if at > maxBlock {
			return
		}
		binary.LittleEndian.PutUint64(e.bits[at:at+8], held)
		at += uint(width >> 3)
		held >>= width & 0x38
		width &= 7

		c := e.codes[i]
		t := ot.coding[c>>8&63]
		w := (os + t.bits) >> 16 & 31
		held |= uint64(os&(1<<w-1)) << (width & 63)
		width += w
		os = uint32(ot.next[(os>>w+t.find)&(1<<maxTableLog-1)])

		t = mt.coding[c>>16&63]
		w = (ms + t.bits) >> 16 & 31
		held |= uint64(ms&(1<<w-1)) << (width & 63)
		width += w
		ms = uint32(mt.next[(ms>>w+t.find)&(1<<maxTableLog-1)])

		t = lt.coding[c&63]
		w = (ls + t.bits) >> 16 & 31
		held |= uint64(ls&(1<<w-1)) << (width & 63)
		width += w
		ls = uint32(lt.next[(ls>>w+t.find)&(1<<maxTableLog-1)])

		if width+(c>>24) > 63 {
			binary.LittleEndian.PutUint64(e.bits[at:at+8], held)
			at += uint(width >> 3)
			held >>= width & 0x38
			width &= 7
		}
		held |= e.sequences[i] << (width & 63)
		width += c >> 24
	}
	b := bitAppender{dst: e.bits[:at]}
	b.add(uint32(held)&0xffffff, int(min(width, 24)))
	b.add(uint32(held>>24)&0xffffff, int(min(max(width, 24)-24, 24)))
	b.add(uint32(held>>48), int(max(width, 48)-48))
	b.add(ms&(1<<mt.log-1), mt.log)
	b.add(os&(1<<ot.log-1), ot.log)
	b.add(ls&(1<<lt.log-1), lt.log)
	b.add(1, 1) // the end of the stream
	e.nbits = len(b.end())
}
