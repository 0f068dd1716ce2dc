package squashfs

import "errors"

var (
	errLZOInput  = errors.New("lzo: the data ends too early")
	errLZOOutput = errors.New("lzo: it decompresses to more than it should")
	errLZOBack   = errors.New("lzo: a copy from before the beginning")
	errLZOEnd    = errors.New("lzo: the end is not marked as it should")
)

// lzoDecoder decompresses LZO1X. The format is described in Linux, Documentation/staging/lzo.rst: instructions that copy from
// what was decompressed, each followed by up to three literal bytes, and longer runs of literals in between.
type lzoDecoder struct {
	src, dst []byte
	in, out  int // bytes read and written
	state    int // literals after the last instruction, 4 for a long run: decides about what instructions below 16 mean
}

// longRun is the state after a run of four literals or more.
const longRun = 4

// expandLZO decompresses an LZO1X stream, which src holds exactly.
func expandLZO(dst, src []byte) (int, error) {
	d := lzoDecoder{src: src, dst: dst}
	if err := d.first(); err != nil {
		return 0, err
	}
	for {
		end, err := d.instruction()
		if err != nil {
			return 0, err
		}
		if end {
			break
		}
	}
	if d.in != len(src) {
		return 0, errLZOEnd
	}
	return d.out, nil
}

// first handles the first byte, which from 18 on is a number of literals. 17 would be a version of the stream, which only
// zram writes; here it is an instruction.
func (d *lzoDecoder) first() error {
	if len(d.src) == 0 {
		return errLZOInput
	}
	n := int(d.src[0]) - 17
	if n <= 0 {
		return nil
	}
	d.in = 1
	d.state = min(n, longRun)
	return d.literals(n)
}

// instruction carries out one instruction.
func (d *lzoDecoder) instruction() (end bool, err error) {
	if d.in >= len(d.src) {
		return false, errLZOInput
	}
	op := int(d.src[d.in])
	d.in++
	switch {
	case op >= 64: // 1LLDDDSS, 01LDDDSS: near and short
		length := op>>5 + 1
		return false, d.shortCopy(op, op>>2&7, 3, 1, length)
	case op >= 32: // 001LLLLL
		return d.longCopy(op&31, 31, 1)
	case op >= 16: // 0001HLLL
		return d.longCopy(op&7, 7, 1<<14+op&8<<11)
	case d.state == 0: // 0000LLLL
		n, err := d.length(op, 15)
		if err != nil {
			return false, err
		}
		d.state = longRun
		return false, d.literals(n + 3)
	case d.state == longRun: // 0000DDSS: three bytes from between 2 and 3 KiB back
		return false, d.shortCopy(op, op>>2, 2, 1+2<<10, 3)
	default: // 0000DDSS: two bytes from within 1 KiB
		return false, d.shortCopy(op, op>>2, 2, 1, 2)
	}
}

// shortCopy copies length bytes from a distance of which low has the lower bits, as many as given, and the next byte the rest.
func (d *lzoDecoder) shortCopy(op, low int, lowBits uint, least, length int) error {
	if d.in >= len(d.src) {
		return errLZOInput
	}
	high := int(d.src[d.in])
	d.in++
	return d.copyBack(high<<lowBits+low+least, length, op&3)
}

// longCopy copies as many bytes as the instruction or the bytes after it say, from a distance of 14 bits more than base. The end of
// the stream is written as the shortest copy from a distance that has no other meaning.
func (d *lzoDecoder) longCopy(length, most, base int) (end bool, err error) {
	length, err = d.length(length, most)
	if err != nil {
		return false, err
	}
	if len(d.src)-d.in < 2 {
		return false, errLZOInput
	}
	word := int(d.src[d.in]) | int(d.src[d.in+1])<<8
	d.in += 2
	distance := base + word>>2
	if base == 1<<14 && distance == base {
		if length != 1 {
			return true, errLZOEnd
		}
		return true, nil
	}
	return false, d.copyBack(distance, length+2, word&3)
}

// length completes a length that is 0 in its instruction: most, 255 for each byte of 0 that follows, and the byte after those.
func (d *lzoDecoder) length(n, most int) (int, error) {
	if n != 0 {
		return n, nil
	}
	n = most
	for d.in < len(d.src) && d.src[d.in] == 0 {
		if n += 255; n > len(d.dst) {
			return 0, errLZOOutput
		}
		d.in++
	}
	if d.in >= len(d.src) {
		return 0, errLZOInput
	}
	n += int(d.src[d.in])
	d.in++
	return n, nil
}

// literals copies n bytes from the source.
func (d *lzoDecoder) literals(n int) error {
	if n > len(d.src)-d.in {
		return errLZOInput
	}
	if n > len(d.dst)-d.out {
		return errLZOOutput
	}
	copy(d.dst[d.out:], d.src[d.in:d.in+n])
	d.in, d.out = d.in+n, d.out+n
	return nil
}

// copyBack copies length bytes from a distance back, then literals.
func (d *lzoDecoder) copyBack(distance, length, literals int) error {
	if distance > d.out {
		return errLZOBack
	}
	if length > len(d.dst)-d.out {
		return errLZOOutput
	}
	to := d.dst[d.out : d.out+length]
	from := d.dst[d.out-distance : d.out]
	d.out += length
	for n := copy(to, from); n < length; { // what was copied is repeated
		n += copy(to[n:], to[:n])
	}
	d.state = literals
	if literals > 0 {
		return d.literals(literals)
	}
	return nil
}
