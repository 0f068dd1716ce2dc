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
	const step = 40 // bits that are looked at together: a word has the first 17 bits of a header at each
	for at := from &^ 7; at < before && at/8+headerRoom <= len(src); at += step {
		in := (*[headerRoom]byte)(src[at/8:])
		w := binary.LittleEndian.Uint64(in[:])
		candidates := mayStart(w) & (1<<step - 1)
		if at < from {
			candidates &^= 1<<(from-at) - 1
		}
		for ; candidates != 0; candidates &= candidates - 1 {
			bit := bits.TrailingZeros64(candidates)
			if !completeCode(in, w, uint(bit)) {
				continue
			}
			if at+bit >= before {
				return -1
			}
			return at + bit
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

// headerRoom is how many bytes may be looked at from that on in which a header begins. Nearer to the end of a stream none is found.
const headerRoom = 24

// completeCode says whether the header at a bit of w, the first word of in, has a complete code for the code lengths.
func completeCode(in *[headerRoom]byte, w uint64, bit uint) bool {
	const fours = 1<<spaceBits - 1
	count := 4 + w>>((bit+13)&63)&15
	lengths := bit + 17
	l := binary.LittleEndian.Uint64(in[lengths>>3&15:]) >> (lengths & 7) & (1<<(3*count&63) - 1) // 57 bits are there, and 57 at most are needed
	// Without a loop: how many lengths there are is as good as random, and to guess that wrong costs more than to add nothing.
	space := spaceTaken[l&fours] + spaceTaken[l>>spaceBits&fours] + spaceTaken[l>>(2*spaceBits)&fours] +
		spaceTaken[l>>(3*spaceBits)&fours] + spaceTaken[l>>(4*spaceBits)&fours]
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
