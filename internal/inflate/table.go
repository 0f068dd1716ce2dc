package inflate

import "math/bits"

// A table entry says what a code means and how many bits it takes, so that one look-up decodes a symbol:
//
//	bits 0-5    bits to take: the code and the extra bits behind it
//	bits 8-11   of lengths and distances: the code's own length, where the extra bits start
//	bits 12-14  the flags below
//	bits 16-30  the literal, the smallest length or distance of the code, or where a subtable starts
//	bit 31      whether it is a literal
//
// Codes longer than the primary table's index lead to a subtable, whose entries count from there.
const (
	flagLiteral  = 1 << 31
	flagSpecial  = 1 << 14 // neither literal, length nor distance: see the next two; none of them: not a valid code
	flagEnd      = 1 << 13
	flagSubtable = 1 << 12

	takeMask    = 63
	lengthShift = 8
	lengthMask  = 15
	valueShift  = 16

	invalid = flagSpecial | 1 // an unused code; where a code is incomplete, a bit says so
)

// What RFC 1951 section 3.2 allows.
const (
	maxCodeLength     = 15
	endOfBlock        = 256
	maxLiterals       = 286 // symbols of the literal and length code; the fixed one names two more, which are invalid
	maxDistances      = 30  // as above
	maxMatch          = 258
	windowSize        = 32 << 10
	codeLengthSymbols = 19
)

// Widths of the tables' indexes: wide enough that nearly all symbols need one look-up, narrow enough for the L1 cache.
const (
	literalBits    = 11
	distanceBits   = 8
	codeLengthBits = 7
)

// A subtable covers what is left of the longest code, and has two codes or more: the tables hold as many as can be.
type (
	literalTable    [1<<literalBits + (maxLiterals/2)<<(maxCodeLength-literalBits)]uint32
	distanceTable   [1<<distanceBits + (maxDistances/2)<<(maxCodeLength-distanceBits)]uint32
	codeLengthTable [1 << codeLengthBits]uint32
)

// Entries of the symbols before the lengths of their codes are known.
var (
	literalSymbols    = makeLiteralSymbols()
	distanceSymbols   = makeDistanceSymbols()
	codeLengthEntries = makeCodeLengthSymbols()
)

func makeLiteralSymbols() (s [288]uint32) {
	for i := range s {
		s[i] = flagSpecial
	}
	for i := range 256 {
		s[i] = flagLiteral | uint32(i)<<valueShift
	}
	s[endOfBlock] |= flagEnd
	length := uint32(3)
	for i := range uint32(28) { // RFC 1951 section 3.2.5: 8 codes without extra bits, then 4 of each number of them
		extra := max(i/4, 1) - 1
		s[257+i] = length<<valueShift | extra
		length += 1 << extra
	}
	s[285] = maxMatch << valueShift
	return s
}

func makeDistanceSymbols() (s [32]uint32) {
	distance := uint32(1)
	for i := range uint32(maxDistances) { // 4 codes without extra bits, then 2 of each number of them
		extra := max(i/2, 1) - 1
		s[i] = distance<<valueShift | extra
		distance += 1 << extra
	}
	s[30], s[31] = flagSpecial, flagSpecial
	return s
}

func makeCodeLengthSymbols() (s [codeLengthSymbols]uint32) {
	for i := range s {
		s[i] = uint32(i) << valueShift
	}
	return s
}

// fixedTables are those of blocks of type 1 (RFC 1951 section 3.2.6).
var fixedTables = func() *tables {
	var lengths [288]uint8
	for i := range lengths {
		switch {
		case i < 144:
			lengths[i] = 8
		case i < 256:
			lengths[i] = 9
		case i < 280:
			lengths[i] = 7
		default:
			lengths[i] = 8
		}
	}
	t := new(tables)
	buildTable(t.literals[:], literalBits, lengths[:], literalSymbols[:])
	for i := range lengths[:32] {
		lengths[i] = 5
	}
	buildTable(t.distances[:], distanceBits, lengths[:32], distanceSymbols[:])
	return t
}()

// tables decode the symbols of a block.
type tables struct {
	literals  literalTable
	distances distanceTable
}

// completeness is how much of the space of codes a set of lengths uses up.
type completeness int

const (
	oversubscribed completeness = iota // there is no such code
	incomplete
	single // one code of one bit: as zlib does, this is let pass where RFC 1951 section 3.2.7 has a use for it
	empty
	complete
)

// buildTable makes the table of the canonical code (RFC 1951 section 3.2.2) in which the symbol i has a code of lengths[i]
// bits, 0 for none. Its index has the width given. Nothing is made of codes that are oversubscribed or incomplete.
//
// The table of the codes up to n bits is twice that of those up to n-1 bits, with the codes of n bits put in: each symbol
// is written once, and everything else is done by copies that double the table.
func buildTable(table []uint32, width int, lengths []uint8, symbols []uint32) completeness {
	var count, next [maxCodeLength + 1]uint16
	for _, n := range lengths {
		count[n&maxCodeLength]++
	}
	used := uint16(len(lengths)) - count[0]
	count[0] = 0
	state := measure(&count, used)
	if state < single {
		return state
	}

	var sorted [288]uint16
	for n := 1; n < len(next); n++ {
		next[n] = next[n-1] + count[n-1]
	}
	for i, n := range lengths {
		if n &= maxCodeLength; n != 0 {
			sorted[next[n]] = uint16(i)
			next[n]++
		}
	}

	table[0] = invalid
	code := uint32(0) // the next one, its first bit the lowest, as they are in the stream
	left := sorted[:used]
	for n := 1; n <= width; n++ {
		half := 1 << (n - 1)
		copy(table[half:2*half], table[:half])
		for _, s := range left[:count[n]] {
			table[code] = symbols[s] + uint32(n)*(1+1<<lengthShift)
			code = nextCode(code, n)
		}
		left = left[count[n]:]
	}
	if len(left) > 0 {
		buildSubtables(table, width, left, lengths, symbols, code)
	}
	return state
}

func measure(count *[maxCodeLength + 1]uint16, used uint16) completeness {
	space := 1
	for _, n := range count[1:] {
		space = 2*space - int(n)
		if space < 0 {
			return oversubscribed
		}
	}
	switch {
	case space == 0:
		return complete
	case used == 0:
		return empty
	case used == 1 && count[1] == 1:
		return single
	}
	return incomplete
}

// nextCode is the code of n bits after the one given: one more, with the bits in reverse. It is 0 after the last.
func nextCode(code uint32, n int) uint32 {
	zeros := ^code & (1<<n - 1)
	if zeros == 0 {
		return 0
	}
	carry := uint32(1) << (bits.Len32(zeros) - 1)
	return code&(carry-1) | carry
}

// buildSubtables puts in the codes that are longer than the index of the primary table. They come sorted by length and
// code, so that those of one subtable follow each other.
func buildSubtables(table []uint32, width int, sorted []uint16, lengths []uint8, symbols []uint32, code uint32) {
	end := 1 << width
	size := 1 << (maxCodeLength - width)
	var sub []uint32
	prefix := ^uint32(0)
	for _, s := range sorted {
		if p := code & (1<<width - 1); p != prefix {
			prefix = p
			table[p] = flagSpecial | flagSubtable | uint32(end)<<valueShift | uint32(width)
			sub = table[end : end+size]
			end += size
		}
		n := int(lengths[s])
		entry := symbols[s] + uint32(n-width)*(1+1<<lengthShift)
		for i := int(code >> width); i < size; i += 1 << (n - width) {
			sub[i] = entry
		}
		code = nextCode(code, n)
	}
}
