package xz

// Sizes of the tables of probabilities (LZMA specification, "LZMA decoding").
const (
	states        = 12
	maxPositions  = 1 << 4 // of a byte, modulo this, as far as they matter
	lengthsLow    = 8
	lengthsHigh   = 256
	shortest      = 2 // length of a match
	distanceSlots = 64
	literalTable  = 0x300
	// From the slot endModel on, the middle bits of a distance have no probabilities.
	startModel, endModel = 4, 14
	alignBits            = 4
	maxLiteralBits       = 4 // LZMA2 has lc + lp at most so large
)

// lengthModel is how probable each length of a match is: eight short ones, eight more, or one of 256.
type lengthModel struct {
	long, longer uint16
	low, mid     [maxPositions][lengthsLow]uint16
	high         [lengthsHigh]uint16
}

// model is all probabilities.
type model struct {
	isMatch, isRep0Long              [states][maxPositions]uint16
	isRep, isRepG0, isRepG1, isRepG2 [states]uint16
	slots                            [4][distanceSlots]uint16
	special                          [128]uint16 // lower bits of distances of the slots below endModel
	align                            [1 << alignBits]uint16
	match, rep                       lengthModel
	literals                         [literalTable << maxLiteralBits]uint16
}

// state is what goes on from one chunk to the next.
type state struct {
	model      model
	last       uint32    // kinds of the last symbols, 0 to 11; from 7 on the last one was a match
	rep        [4]uint32 // distances of the last matches, less one
	lc, lp, pb uint32
}

// setProperties reads how literals and positions are modelled: (pb*5 + lp)*9 + lc.
func (s *state) setProperties(b byte) bool {
	v := uint32(b)
	s.lc, s.lp, s.pb = v%9, v/9%5, v/45
	return s.pb <= 4 && s.lc+s.lp <= maxLiteralBits
}

func (s *state) reset() {
	s.last, s.rep = 0, [4]uint32{}
	m := &s.model
	fill := func(p []uint16) {
		for i := range p {
			p[i] = even
		}
	}
	for i := range states {
		fill(m.isMatch[i][:])
		fill(m.isRep0Long[i][:])
	}
	for _, p := range []*[states]uint16{&m.isRep, &m.isRepG0, &m.isRepG1, &m.isRepG2} {
		fill(p[:])
	}
	for i := range m.slots {
		fill(m.slots[i][:])
	}
	fill(m.special[:])
	fill(m.align[:])
	fill(m.literals[:literalTable<<(s.lc+s.lp)])
	for _, l := range []*lengthModel{&m.match, &m.rep} {
		l.long, l.longer = even, even
		for i := range maxPositions {
			fill(l.low[i][:])
			fill(l.mid[i][:])
		}
		fill(l.high[:])
	}
}

// decode decodes a chunk: out[n:], all of it, from in, of which the last overrun bytes are not the chunk's. What lies in out before n may be
// referred to, but no more than dictionary bytes back. at is the position of out[n] in what the model calls positions. It reports whether
// the chunk is as it should be, and ends where it should.
//
// The loop is where the time goes, and is written for the compiler: the coder's state, width and code, and the place in the input, i, are
// variables, and every bit is decoded in place.
//
//nolint:gocognit,gocyclo // one loop, since calls would put the coder into memory
func (s *state) decode(out []byte, n, dictionary int, at uint32, in []byte) bool {
	m := &s.model
	if len(in) < overrun+5 || in[0] != 0 {
		return false
	}
	end := len(in) - overrun
	width, code, i := ^uint32(0), uint32(in[1])<<24|uint32(in[2])<<16|uint32(in[3])<<8|uint32(in[4]), 5
	last, rep0, rep1, rep2, rep3 := s.last, s.rep[0], s.rep[1], s.rep[2], s.rep[3]
	positions, literalPositions, lc := uint32(1)<<s.pb-1, uint32(1)<<s.lp-1, s.lc
	at -= uint32(n)
	var bit uint32

	for n < len(out) {
		if i > end {
			return false
		}
		position := (at + uint32(n)) & positions
		if width < top {
			width, code, i = width<<8, code<<8|uint32(in[i]), i+1
		}
		width, code, bit = decodeBit(&m.isMatch[last][position], width, code)
		if bit == 0 {
			before := uint32(0)
			if n > 0 {
				before = uint32(out[n-1])
			}
			table := literalTable * ((at+uint32(n))&literalPositions<<lc + before>>(8-lc))
			probabilities := (*[literalTable]uint16)(m.literals[table:])
			symbol := uint32(1)
			if last >= 7 {
				// After a match, the byte that would have gone on with it tells what this one is not.
				if int(rep0) >= n {
					return false
				}
				match, offset := uint32(out[n-int(rep0)-1])<<1, uint32(0x100)
				for symbol < 0x100 {
					if width < top {
						width, code, i = width<<8, code<<8|uint32(in[i]), i+1
					}
					expected := match & offset
					width, code, bit = decodeTreeBit(&probabilities[(offset+expected+symbol)%literalTable], width, code)
					symbol = symbol<<1 | bit
					match <<= 1
					offset &= ^(expected ^ -bit&offset)
				}
			} else {
				for symbol < 0x100 {
					if width < top {
						width, code, i = width<<8, code<<8|uint32(in[i]), i+1
					}
					width, code, bit = decodeTreeBit(&probabilities[symbol], width, code)
					symbol = symbol<<1 | bit
				}
			}
			out[n] = byte(symbol)
			n++
			last = afterLiteral[last]
			continue
		}

		lengths := &m.rep
		if width < top {
			width, code, i = width<<8, code<<8|uint32(in[i]), i+1
		}
		width, code, bit = decodeBit(&m.isRep[last], width, code)
		again := bit == 1
		if again {
			if width < top {
				width, code, i = width<<8, code<<8|uint32(in[i]), i+1
			}
			width, code, bit = decodeBit(&m.isRepG0[last], width, code)
			if bit == 0 {
				if width < top {
					width, code, i = width<<8, code<<8|uint32(in[i]), i+1
				}
				width, code, bit = decodeBit(&m.isRep0Long[last][position], width, code)
				if bit == 0 { // one byte
					if int(rep0) >= n || int(rep0) >= dictionary {
						return false
					}
					out[n] = out[n-int(rep0)-1]
					n++
					last = afterMatch(last, 9)
					continue
				}
			} else {
				if width < top {
					width, code, i = width<<8, code<<8|uint32(in[i]), i+1
				}
				width, code, bit = decodeBit(&m.isRepG1[last], width, code)
				if bit == 0 {
					rep0, rep1 = rep1, rep0
				} else {
					if width < top {
						width, code, i = width<<8, code<<8|uint32(in[i]), i+1
					}
					width, code, bit = decodeBit(&m.isRepG2[last], width, code)
					if bit == 0 {
						rep0, rep1, rep2 = rep2, rep0, rep1
					} else {
						rep0, rep1, rep2, rep3 = rep3, rep0, rep1, rep2
					}
				}
			}
			last = afterMatch(last, 8)
		} else {
			lengths = &m.match
			rep1, rep2, rep3 = rep0, rep1, rep2
			last = afterMatch(last, 7)
		}

		// The length: a bit or two say in which of three trees it is.
		tree, base := lengths.low[position][:], uint32(0)
		if width < top {
			width, code, i = width<<8, code<<8|uint32(in[i]), i+1
		}
		width, code, bit = decodeBit(&lengths.long, width, code)
		if bit == 1 {
			if width < top {
				width, code, i = width<<8, code<<8|uint32(in[i]), i+1
			}
			width, code, bit = decodeBit(&lengths.longer, width, code)
			if bit == 0 {
				tree, base = lengths.mid[position][:], lengthsLow
			} else {
				tree, base = lengths.high[:], 2*lengthsLow
			}
		}
		symbol := uint32(1)
		for symbol < uint32(len(tree)) {
			if width < top {
				width, code, i = width<<8, code<<8|uint32(in[i]), i+1
			}
			width, code, bit = decodeTreeBit(&tree[symbol], width, code)
			symbol = symbol<<1 | bit
		}
		length := base + symbol - uint32(len(tree))

		if !again {
			// The slot has the upper two bits of the distance, and how many follow.
			slots := &m.slots[min(length, 3)]
			symbol = 1
			for symbol < distanceSlots {
				if width < top {
					width, code, i = width<<8, code<<8|uint32(in[i]), i+1
				}
				width, code, bit = decodeTreeBit(&slots[symbol%distanceSlots], width, code)
				symbol = symbol<<1 | bit
			}
			slot := symbol - distanceSlots
			rep0 = slot
			if slot >= startModel {
				more := slot>>1 - 1
				rep0 = (2 | slot&1) << more
				low, probabilities := more, m.special[:]
				var offset uint32
				if slot < endModel {
					offset = rep0 - slot
				} else {
					low, probabilities = alignBits, m.align[:]
					var middle uint32
					for range more - alignBits {
						if width < top {
							width, code, i = width<<8, code<<8|uint32(in[i]), i+1
						}
						width >>= 1
						code -= width
						negative := uint32(int32(code) >> 31)
						code += width & negative
						middle = middle<<1 + negative + 1
					}
					rep0 += middle << alignBits
				}
				symbol = 1
				for k := range low {
					if width < top {
						width, code, i = width<<8, code<<8|uint32(in[i]), i+1
					}
					width, code, bit = decodeTreeBit(&probabilities[offset+symbol], width, code)
					symbol = symbol<<1 | bit
					rep0 += bit << k
				}
			}
		}

		distance, count := int(rep0)+1, int(length)+shortest
		if distance > n || distance > dictionary || count > len(out)-n {
			return false
		}
		if distance >= count {
			copy(out[n:n+count], out[n-distance:])
		} else {
			for k := n; k < n+count; k++ {
				out[k] = out[k-distance]
			}
		}
		n += count
	}
	if width < top {
		code, i = code<<8|uint32(in[i]), i+1
	}
	s.last, s.rep = last, [4]uint32{rep0, rep1, rep2, rep3}
	return code == 0 && i == end
}

// afterLiteral says which kinds of symbols come to lie behind a literal.
var afterLiteral = [states]uint32{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 4, 5}

// afterMatch says so of a match: kind is what it is after a literal, and two or three more after a match.
func afterMatch(last, kind uint32) uint32 {
	if last < 7 {
		return kind
	}
	return min(kind+3, 11)
}
