package inflate

import (
	"errors"
	"io"
)

// The reference is a decoder that is slow and plain, to judge the other by: a bit at a time, as RFC 1951 tells it.
type reference struct {
	src []byte
	bit int
	out []byte
}

var (
	errCorrupt = errors.New("corrupt")
	errLong    = errors.New("longer than the test wants to know")
)

const referenceLimit = 8 << 20

func refer(src []byte) (out []byte, consumed int, err error) {
	r := &reference{src: src}
	for final := false; !final && err == nil; {
		final, err = r.block()
	}
	return r.out, (r.bit + 7) / 8, err
}

func (r *reference) number(n int) (v int, err error) {
	for i := range n {
		if r.bit >= 8*len(r.src) {
			return 0, io.ErrUnexpectedEOF
		}
		v |= int(r.src[r.bit/8]>>(r.bit%8)&1) << i
		r.bit++
	}
	return v, nil
}

// code has its symbols, plus 1, at 1<<n|v for the code v of n bits.
type code []uint16

func makeCode(lengths []int, partial bool) (code, error) {
	longest := 0
	for _, l := range lengths {
		longest = max(longest, l)
	}
	c, next, used, space := make(code, 2<<longest), 0, 0, 1<<15
	for n := 1; n <= longest; n++ {
		next <<= 1
		for s, l := range lengths {
			if l != n {
				continue
			}
			if space -= 1 << (15 - n); space < 0 {
				return nil, errCorrupt
			}
			c[1<<n|next] = uint16(s + 1)
			next++
			used++
		}
	}
	if space == 0 || partial && (used == 0 || used == 1 && longest == 1) {
		return c, nil
	}
	return nil, errCorrupt
}

func (r *reference) symbol(c code) (int, error) {
	for v := 1; ; {
		b, err := r.number(1)
		if err != nil {
			return 0, err
		}
		v = v<<1 | b
		if v >= len(c) {
			return 0, errCorrupt
		}
		if c[v] > 0 {
			return int(c[v]) - 1, nil
		}
		if 2*v >= len(c) {
			return 0, errCorrupt
		}
	}
}

func (r *reference) block() (final bool, err error) {
	f, err := r.number(1)
	if err != nil {
		return false, err
	}
	kind, err := r.number(2)
	if err != nil {
		return false, err
	}
	var literals, distances code
	switch kind {
	case 0:
		return f == 1, r.stored()
	case 1:
		var l [288]int
		for i := range l {
			l[i] = 8
			if i >= 144 && i < 256 {
				l[i] = 9
			} else if i >= 256 && i < 280 {
				l[i] = 7
			}
		}
		literals, _ = makeCode(l[:], false)
		for i := range 32 {
			l[i] = 5
		}
		distances, _ = makeCode(l[:32], false)
	case 2:
		if literals, distances, err = r.codes(); err != nil {
			return false, err
		}
	default:
		return false, errCorrupt
	}
	return f == 1, r.symbols(literals, distances)
}

func (r *reference) stored() error {
	r.bit = (r.bit + 7) &^ 7
	n, err := r.number(32)
	if err != nil {
		return err
	}
	if n&0xffff != ^n>>16&0xffff {
		return errCorrupt
	}
	for range n & 0xffff {
		b, err := r.number(8)
		if err != nil {
			return err
		}
		r.out = append(r.out, byte(b))
	}
	return nil
}

func (r *reference) codes() (literals, distances code, err error) {
	counts, err := r.number(14)
	if err != nil {
		return nil, nil, err
	}
	nl, nd, nc := counts&31+257, counts>>5&31+1, counts>>10+4
	if nl > 286 || nd > 30 {
		return nil, nil, errCorrupt
	}
	var first [19]int
	for _, s := range []int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}[:nc] {
		if first[s], err = r.number(3); err != nil {
			return nil, nil, err
		}
	}
	c, err := makeCode(first[:], false)
	if err != nil {
		return nil, nil, err
	}
	var all []int
	for len(all) < nl+nd {
		s, err := r.symbol(c)
		if err != nil {
			return nil, nil, err
		}
		value, least, extra := s, 1, 0
		switch s {
		case 16:
			if len(all) == 0 {
				return nil, nil, errCorrupt
			}
			value, least, extra = all[len(all)-1], 3, 2
		case 17:
			value, least, extra = 0, 3, 3
		case 18:
			value, least, extra = 0, 11, 7
		}
		more, err := r.number(extra)
		if err != nil {
			return nil, nil, err
		}
		for range least + more {
			all = append(all, value)
		}
	}
	if len(all) > nl+nd || all[256] == 0 {
		return nil, nil, errCorrupt
	}
	if literals, err = makeCode(all[:nl], true); err != nil {
		return nil, nil, err
	}
	distances, err = makeCode(all[nl:], true)
	return literals, distances, err
}

var (
	lengthBase = []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258}
	lengthMore = []int{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
	distBase   = []int{1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577}
	distMore   = []int{0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13}
)

func (r *reference) symbols(literals, distances code) error {
	for {
		if len(r.out) > referenceLimit {
			return errLong
		}
		s, err := r.symbol(literals)
		switch {
		case err != nil:
			return err
		case s == 256:
			return nil
		case s > 285:
			return errCorrupt
		case s < 256:
			r.out = append(r.out, byte(s))
			continue
		}
		more, err := r.number(lengthMore[s-257])
		if err != nil {
			return err
		}
		length := lengthBase[s-257] + more
		if s, err = r.symbol(distances); err != nil {
			return err
		}
		if s > 29 {
			return errCorrupt
		}
		if more, err = r.number(distMore[s]); err != nil {
			return err
		}
		distance := distBase[s] + more
		if distance > len(r.out) {
			return errCorrupt
		}
		for range length {
			r.out = append(r.out, r.out[len(r.out)-distance])
		}
	}
}
