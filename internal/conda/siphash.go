package conda

import (
	"encoding/binary"
	"math/bits"
)

// sipHash is SipHash-c-d of data with the key (k0, 0) (J.-P. Aumasson, D. Bernstein, "SipHash: a fast short-input PRF"). Python
// hashes sources by it, with the magic number of its byte code as the key (PEP 552).
func sipHash(c, d int, k0 uint64, data []byte) uint64 {
	v := [4]uint64{k0 ^ 0x736f6d6570736575, 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, 0x7465646279746573}
	last := uint64(len(data)) << 56
	for ; len(data) >= 8; data = data[8:] {
		sipBlock(&v, c, binary.LittleEndian.Uint64(data))
	}
	for i, b := range data {
		last |= uint64(b) << (8 * i)
	}
	sipBlock(&v, c, last)
	v[2] ^= 0xff
	sipRounds(&v, d)
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

func sipBlock(v *[4]uint64, c int, m uint64) {
	v[3] ^= m
	sipRounds(v, c)
	v[0] ^= m
}

func sipRounds(v *[4]uint64, n int) {
	for range n {
		v[0] += v[1]
		v[2] += v[3]
		v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
		v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
		v[0] = bits.RotateLeft64(v[0], 32)
		v[2] += v[1]
		v[0] += v[3]
		v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
		v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
		v[2] = bits.RotateLeft64(v[2], 32)
	}
}
