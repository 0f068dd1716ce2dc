package inflate

import (
	"encoding/binary"
	"math/bits"
)

// findBlock returns the first bit of src, from one place on and before another, at which a block with codes of its own may
// start that is not the last one of its stream, or -1. Nothing says where blocks start: what can be the header of one is
// looked for at each bit. Places where the code of the code lengths is a complete one are rare enough to be tried.
//
// Of other blocks there is too little to know them by: that of a stored one is its length and the complement, which are
// found in any data, and a block with the fixed codes begins with three bits.
func findBlock(src []byte, from, before int) int {
	const step = 48 // bits that are looked at together: as many have a header's first 17 bits in a word
	for at := from &^ 7; at < before && at/8+8 <= len(src); at += step {
		candidates := mayStart(binary.LittleEndian.Uint64(src[at/8:])) & (1<<step - 1)
		if at < from {
			candidates &^= 1<<(from-at) - 1
		}
		for ; candidates != 0; candidates &= candidates - 1 {
			if bit := at + bits.TrailingZeros64(candidates); bit < before && completeCode(src, bit) {
				return bit
			}
		}
	}
	return -1
}

// mayStart returns the places in w at which the next bits can be the first of a header (RFC 1951 section 3.2.7): not the last
// block, type 2, no more than 286 symbols for literals and lengths and 30 for distances.
func mayStart(w uint64) uint64 {
	header := ^w & ^(w >> 1) & (w >> 2)
	literals := w >> 4 & (w >> 5) & (w >> 6) & (w >> 7)
	distances := w >> 9 & (w >> 10) & (w >> 11) & (w >> 12)
	return header &^ literals &^ distances
}

// completeCode says whether the header at a bit of src has a complete code for the code lengths.
func completeCode(src []byte, bit int) bool {
	n := bit + 13
	lengths := n + 4
	if lengths/8+8 > len(src) {
		return false
	}
	count := 4 + binary.LittleEndian.Uint16(src[n/8:])>>(n&7)&15
	w := binary.LittleEndian.Uint64(src[lengths/8:]) >> (lengths & 7) & (1<<(3*count) - 1) // 57 bits are there, and 57 at most are needed
	space := 0
	for ; w != 0; w >>= spaceBits {
		space += int(spaceTaken[w&(1<<spaceBits-1)])
	}
	return space == 1<<codeLengthBits
}

// spaceBits is the width of spaceTaken's index: four lengths.
const spaceBits = 12

// spaceTaken is how much of the space of codes four lengths of three bits take up, in 128ths.
var spaceTaken = func() (taken [1 << spaceBits]uint16) {
	for i := range taken {
		for w := i; w != 0; w >>= 3 {
			if n := w & 7; n != 0 {
				taken[i] += 1 << (codeLengthBits - n)
			}
		}
	}
	return taken
}()
