package zstdblock

import "math/bits"

const (
	maxTableLog = 9
	minTableLog = 5
	maxSymbols  = 53
)

// fseTable encodes the symbols of one kind, RFC 8878 section 4.1. A state is a number from 1<<log to 2<<log-1.
type fseTable struct {
	log    int
	count  int // symbols: the highest and one
	norm   [maxSymbols]int16
	coding [64]fseSymbol
	next   [1 << maxTableLog]uint16
}

// fseSymbol says how a symbol changes the state: the number of low bits that go out is (state+bits)>>16, and the next
// state stands at what is left of the state plus find.
type fseSymbol struct {
	bits uint32
	find uint32 // modulo 1<<32
}

// build makes the table that has the log and shares of from.
func (t *fseTable) build(from *fseTable) {
	t.log, t.count, t.norm = from.log, from.count, from.norm
	size := 1 << t.log
	var symbols [1 << maxTableLog]uint8
	t.spread(&symbols)
	var at [maxSymbols]int
	total := 0
	for s, n := range t.norm[:t.count] {
		at[s] = total
		switch n {
		case 0:
			continue
		case -1, 1:
			t.coding[s] = fseSymbol{uint32(t.log<<16 - size), uint32(total - 1)}
			total++
		default:
			out := t.log - highBit(uint32(n-1))
			t.coding[s] = fseSymbol{uint32(out<<16 - int(n)<<out), uint32(total - int(n))}
			total += int(n)
		}
	}
	for u, s := range symbols[:size] {
		t.next[at[s]] = uint16(size + u)
		at[s]++
	}
}

// spread places the symbols in the states of the decoder.
func (t *fseTable) spread(symbols *[1 << maxTableLog]uint8) {
	size := 1 << t.log
	high := size
	for s, n := range t.norm[:t.count] {
		if n == -1 {
			high--
			symbols[high] = uint8(s)
		}
	}
	step, mask, pos := size>>1+size>>3+3, size-1, 0
	for s, n := range t.norm[:t.count] {
		for ; n > 0; n-- {
			symbols[pos] = uint8(s)
			pos = (pos + step) & mask
			for pos >= high {
				pos = (pos + step) & mask
			}
		}
	}
}

// single makes the table of one symbol that takes no bits.
func (t *fseTable) single(symbol int) {
	t.log, t.count = 0, symbol+1
	t.coding[symbol] = fseSymbol{}
	t.next[0], t.next[1] = 1, 1
}

// start is the state from which the decoder gets symbol as its last.
func (t *fseTable) start(symbol uint32) uint32 {
	c := t.coding[symbol&63]
	out := (c.bits + 1<<15) >> 16
	return uint32(t.next[(out<<16-c.bits)>>out+c.find])
}

// tableLog chooses the precision for total symbols of so many different ones.
func tableLog(total, used, most int) int {
	log := min(most, bits.Len32(uint32(total-1))-2)
	log = max(log, minTableLog, bits.Len32(uint32(used)))
	return min(log, most)
}

// normalize makes norm from a histogram with two symbols or more: probabilities that add up to 1<<log, and none is 0 of a
// symbol that occurs.
func (t *fseTable) normalize(hist []uint32, total, log int) {
	t.log, t.count = log, len(hist)
	size := 1 << log
	left, largest := size, 0
	for s, n := range hist {
		if n == 0 {
			t.norm[s] = 0
			continue
		}
		p := share(uint64(n), uint64(total), log)
		t.norm[s] = p
		left -= max(int(p), 1)
		if t.norm[s] > t.norm[largest] {
			largest = s
		}
	}
	if left < 0 && int(t.norm[largest]) < -4*left {
		t.shrink(hist, -left)
		return
	}
	t.norm[largest] += int16(left)
}

// share rounds n/total of 1<<log to the neighbour that costs less, which is above the geometric mean of both.
// The least share is -1: "less than 1", but it takes one state as well.
func share(n, total uint64, log int) int16 {
	x := n << log
	p := x / total
	if p == 0 {
		return -1
	}
	if x*x > p*(p+1)*total*total {
		p++
	}
	return int16(p)
}

// shrink takes states from the symbols that lose least by it.
func (t *fseTable) shrink(hist []uint32, excess int) {
	for ; excess > 0; excess-- {
		best, loss := -1, uint64(0)
		for s, n := range hist {
			p := t.norm[s]
			if p < 2 {
				continue
			}
			if l := uint64(n) << 16 / uint64(p-1); best < 0 || l < loss {
				best, loss = s, l
			}
		}
		t.norm[best]--
	}
}

// appendTable writes the description of the table, RFC 8878 section 4.1.1.
func (t *fseTable) appendTable(dst []byte) []byte {
	w := bitAppender{dst: dst}
	w.add(uint32(t.log-minTableLog), 4)
	left := 1<<t.log + 1 // what the values may still add up to, plus 1
	for s := 0; s < t.count; {
		n := int(t.norm[s])
		width := bits.Len32(uint32(left))
		low := 1<<width - 1 - left // values below take one bit less
		value := n + 1
		switch {
		case value < low:
			w.add(uint32(value), width-1)
		case value < 1<<(width-1):
			w.add(uint32(value), width)
		default:
			w.add(uint32(value+low), width)
		}
		s++
		if n != 0 {
			left -= max(n, -n)
			continue
		}
		zeros := 0
		for ; s < t.count && t.norm[s] == 0; s++ {
			zeros++
		}
		for ; zeros >= 3; zeros -= 3 {
			w.add(3, 2)
		}
		w.add(uint32(zeros), 2)
	}
	return w.end()
}

// bitAppender writes a forward stream of bits.
type bitAppender struct {
	dst  []byte
	held uint32
	n    int
}

func (w *bitAppender) add(value uint32, width int) {
	w.held |= value << w.n
	w.n += width
	for ; w.n >= 8; w.n -= 8 {
		w.dst = append(w.dst, byte(w.held))
		w.held >>= 8
	}
}

func (w *bitAppender) end() []byte {
	if w.n > 0 {
		w.dst = append(w.dst, byte(w.held))
	}
	return w.dst
}

// costs[p] is the price of a symbol that has p of 1<<maxTableLog states, in 1/256 bit.
var costs = func() (c [1<<maxTableLog + 1]uint32) {
	for p := range c {
		c[p] = maxTableLog<<8 - log2(uint32(p))
	}
	return c
}()

// log2 is 256 times the binary logarithm of p, rounded down; 0 for 0.
func log2(p uint32) uint32 {
	if p == 0 {
		return 0
	}
	log := uint32(highBit(p))
	x := uint64(p) << (32 - log) // p / 1<<log with 32 bits behind the point: from 1 to less than 2
	for range 8 {                // a square of 2 or more says that the next bit of the logarithm is 1
		x = (x >> 1) * (x >> 1) >> 30
		log = log<<1 | uint32(x>>33)
		x >>= x >> 33
	}
	return log
}

// price is about what the symbols of hist cost in this table, in bits; false if one of them is not in it.
func (t *fseTable) price(hist []uint32) (int, bool) {
	if len(hist) > t.count {
		return 0, false
	}
	sum := uint64(0)
	for s, n := range hist {
		if n == 0 {
			continue
		}
		p := uint32(max(t.norm[s], -t.norm[s]))
		if p == 0 {
			return 0, false
		}
		sum += uint64(n) * uint64(costs[p<<(maxTableLog-t.log)])
	}
	return int(sum >> 8), true
}
