package xz

// The range coder: each bit halves, by its probability, the range in which the number lies that the input spells out.
const (
	probabilityBits = 11
	shift           = 5       // a probability moves by 1/32 towards what came
	top             = 1 << 24 // below which a range takes another byte
	even            = 1 << (probabilityBits - 1)
)

// decodeBit decodes a bit whose probability of being 0 is *p, in a range that is not below top. Both functions here are small enough for
// the compiler to make them a part of their callers, and to keep the coder in registers.
func decodeBit(p *uint16, width, code uint32) (newWidth, newCode, bit uint32) {
	v := uint32(*p)
	bound := (width >> probabilityBits) * v
	if code < bound {
		*p = uint16(v + (1<<probabilityBits-v)>>shift)
		return bound, code, 0
	}
	*p = uint16(v - v>>shift)
	return width - bound, code - bound, 1
}

// decodeTreeBit is decodeBit without a jump, for the bits of literals, lengths and distances: a processor cannot foresee these, and a jump
// that it foresees wrongly takes longer than all of this.
func decodeTreeBit(p *uint16, width, code uint32) (newWidth, newCode, bit uint32) {
	v := uint32(*p)
	bound := (width >> probabilityBits) * v
	zero := uint32(int64(uint64(code)-uint64(bound)) >> 63) // all ones when the bit is 0
	// Of v less 2048-31 a 32nd, rounded down, is what decodeBit adds.
	*p = uint16(v - uint32(int32(v-zero&(1<<probabilityBits-31))>>shift))
	return bound + (width-2*bound)&^zero, code - bound&^zero, 1 + zero
}
