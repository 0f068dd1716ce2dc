package inflate

import (
	"encoding/binary"
	"io"
)

// decoder turns the deflate stream in src into bytes in dst.
type decoder struct {
	src  []byte // what is at hand of the stream
	pos  int    // of the next byte in src to go into the bit buffer
	base int64  // where in the stream src starts
	in   more   // has more of the stream; nil when src is all

	bits  uint64 // the bit buffer: the next bits of the stream, the first one lowest
	count uint   // how many of them are counted; what is above is either 0 or what follows in src

	dst []byte // output; also the window that matches reach back into
	out int    // bytes of it that are there

	state  state
	final  bool // the block is the last one
	left   int  // of a stored block
	tables *tables
	own    tables // of a dynamic block
}

// more has the bytes of a stream.
type more interface {
	// next returns the bytes that follow, one or more, given how many it returned last time.
	next(last int) ([]byte, error)
}

// state is what comes next in the stream.
type state int

const (
	atHeader state = iota
	inStored
	inCodes
	atEnd
)

// start makes the decoder ready for a stream.
func (d *decoder) start(dst, src []byte, in more) {
	d.src, d.pos, d.base, d.in = src, 0, 0, in
	d.bits, d.count = 0, 0
	d.dst, d.out = dst, 0
	d.state, d.final, d.left = atHeader, false, 0
}

// offset is how many bytes of the stream were used.
func (d *decoder) offset() int64 { return d.base + int64(d.pos) - int64(d.count/8) }

func (d *decoder) corrupt(what string) error { return &CorruptError{d.offset(), what} }

// step reads a block's header, or goes on with a block for as long as dst has room for its longest symbol.
func (d *decoder) step() error {
	switch d.state {
	case atHeader:
		return d.header()
	case inStored:
		return d.stored()
	case inCodes:
		return d.codes()
	case atEnd:
	}
	return nil
}

// need has n bits or more in the bit buffer, up to 56.
func (d *decoder) need(n uint) error {
	for d.count < n {
		if err := d.refill(); err != nil {
			return err
		}
	}
	return nil
}

// refill takes a byte or more into the bit buffer. Only what is wanted is ever taken out of the last bytes at hand, so
// that whole bytes left over in the bit buffer are always there in src too, and can be handed back.
func (d *decoder) refill() error {
	if len(d.src)-d.pos >= 8 {
		d.bits |= binary.LittleEndian.Uint64(d.src[d.pos:]) << (d.count & 63)
		d.pos += int((63 - d.count) >> 3)
		d.count |= 56
		return nil
	}
	if d.pos == len(d.src) {
		if err := d.fill(); err != nil {
			return err
		}
	}
	d.bits |= uint64(d.src[d.pos]) << (d.count & 63)
	d.pos++
	d.count += 8
	return nil
}

// fill has at least a byte in src, or fails.
func (d *decoder) fill() error {
	if d.in == nil {
		return io.ErrUnexpectedEOF
	}
	src, err := d.in.next(len(d.src))
	d.base += int64(len(d.src))
	d.src, d.pos = src, 0
	return err
}

// unread hands whole bytes in the bit buffer back.
func (d *decoder) unread() {
	d.pos -= int(d.count / 8)
	d.count &= 7
	d.bits &= 1<<d.count - 1
}

// take removes n bits that are there.
func (d *decoder) take(n uint) uint {
	v := uint(d.bits & (1<<(n&63) - 1))
	d.bits >>= n & 63
	d.count -= n
	return v
}

// header reads a block's header (RFC 1951 section 3.2.3).
func (d *decoder) header() error {
	if err := d.need(3); err != nil {
		return err
	}
	d.final = d.take(1) == 1
	switch d.take(2) {
	case 0:
		return d.storedHeader()
	case 1:
		d.tables, d.state = fixedTables, inCodes
		return nil
	case 2:
		d.tables, d.state = &d.own, inCodes
		return d.dynamicHeader()
	}
	return d.corrupt("a block of the reserved type 3")
}

// endBlock goes on to what follows a block.
func (d *decoder) endBlock() {
	d.state = atHeader
	if d.final {
		d.state = atEnd
		d.unread()
	}
}

// storedHeader reads the length of a block without compression (RFC 1951 section 3.2.4).
func (d *decoder) storedHeader() error {
	d.take(d.count & 7)
	if err := d.need(32); err != nil {
		return err
	}
	n, inverse := d.take(16), d.take(16)
	if n^inverse != 0xffff {
		return d.corrupt("the length of a stored block and its complement disagree")
	}
	d.unread()
	d.bits = 0
	d.left, d.state = int(n), inStored
	return nil
}

func (d *decoder) stored() error {
	for d.left > 0 {
		if d.pos == len(d.src) {
			if err := d.fill(); err != nil {
				return err
			}
		}
		if d.out == len(d.dst) {
			return d.full()
		}
		n := copy(d.dst[d.out:], d.src[d.pos:min(len(d.src), d.pos+d.left)])
		d.out += n
		d.pos += n
		d.left -= n
	}
	d.endBlock()
	return nil
}

// full is what to do when dst has no room: a Reader makes room.
func (d *decoder) full() error {
	if d.in == nil {
		return io.ErrShortBuffer
	}
	return nil
}

// codeLengthOrder is the order in which a header has the lengths of the code length code's codes.
var codeLengthOrder = [codeLengthSymbols]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// dynamicHeader reads the codes of a block (RFC 1951 section 3.2.7).
func (d *decoder) dynamicHeader() error {
	if err := d.need(14); err != nil {
		return err
	}
	literals, distances, n := int(d.take(5))+257, int(d.take(5))+1, int(d.take(4))+4
	if literals > maxLiterals || distances > maxDistances {
		return d.corrupt("a block of more symbols than there are")
	}
	var lengths [maxLiterals + maxDistances]uint8
	for _, symbol := range codeLengthOrder[:n] {
		if err := d.need(3); err != nil {
			return err
		}
		lengths[symbol] = uint8(d.take(3))
	}
	var table codeLengthTable
	if buildTable(table[:], codeLengthBits, lengths[:codeLengthSymbols], codeLengthEntries[:]) != complete {
		return d.corrupt("the code of the code lengths is not a complete one")
	}
	all := lengths[:literals+distances]
	if err := d.readLengths(all, &table); err != nil {
		return err
	}
	if all[endOfBlock] == 0 {
		return d.corrupt("a block without a code for its end")
	}
	if buildTable(d.own.literals[:], literalBits, all[:literals], literalSymbols[:]) < single {
		return d.corrupt("the code of literals and lengths is not a complete one")
	}
	if buildTable(d.own.distances[:], distanceBits, all[literals:], distanceSymbols[:]) < single {
		return d.corrupt("the code of distances is not a complete one")
	}
	return nil
}

// readLengths reads the lengths of codes, which are coded themselves: 0 to 15 are lengths, 16 to 18 repeat.
func (d *decoder) readLengths(lengths []uint8, table *codeLengthTable) error {
	for i := 0; i < len(lengths); {
		e := table[d.bits&(1<<codeLengthBits-1)]
		for uint(e&takeMask) > d.count {
			if err := d.refill(); err != nil {
				return err
			}
			e = table[d.bits&(1<<codeLengthBits-1)]
		}
		d.take(uint(e & takeMask))
		symbol := uint8(e >> valueShift)
		if symbol < 16 {
			lengths[i] = symbol
			i++
			continue
		}
		if symbol == 16 && i == 0 {
			return d.corrupt("the first code length repeats another")
		}
		r := repeats[symbol-16]
		if err := d.need(r.extra); err != nil {
			return err
		}
		n := int(r.least + d.take(r.extra))
		if n > len(lengths)-i {
			return d.corrupt("more code lengths than symbols")
		}
		value := uint8(0)
		if symbol == 16 {
			value = lengths[i-1]
		}
		for j := range lengths[i : i+n] {
			lengths[i+j] = value
		}
		i += n
	}
	return nil
}

// repeats says how often the symbols 16, 17 and 18 repeat a code length.
var repeats = [3]struct{ least, extra uint }{{3, 2}, {3, 3}, {11, 7}}

// codes decodes a compressed block, up to its end or to where dst has no room for any symbol.
func (d *decoder) codes() error {
	for {
		if len(d.dst)-d.out < outputMargin && d.in != nil {
			return nil
		}
		if len(d.src)-d.pos >= inputMargin && len(d.dst)-d.out >= outputMargin {
			if end, err := d.watchedFast(); end || err != nil {
				return err
			}
			continue
		}
		if end, err := d.symbol(); end || err != nil {
			return err
		}
	}
}

// symbol decodes one literal or match with care for the ends of input and output. It says whether the block ended.
func (d *decoder) symbol() (end bool, err error) {
	e, err := d.lookUp(d.tables.literals[:], literalBits)
	if err != nil {
		return false, err
	}
	if e&flagLiteral != 0 {
		return false, d.putLiteral(e)
	}
	if e&flagEnd != 0 {
		d.take(uint(e & takeMask))
		d.endBlock()
		return true, nil
	}
	length, err := d.value(e)
	if err != nil {
		return false, err
	}
	if e, err = d.lookUp(d.tables.distances[:], distanceBits); err != nil {
		return false, err
	}
	distance, err := d.value(e)
	if err != nil {
		return false, err
	}
	if distance > d.out {
		return false, d.corrupt(tooFar)
	}
	if length > len(d.dst)-d.out {
		return false, io.ErrShortBuffer
	}
	d.copyMatch(distance, length)
	return false, nil
}

const (
	tooFar      = "a match that starts before the first byte"
	unknownCode = "a code without a meaning"
)

// lookUp finds the entry of the next symbol and has its bits in the buffer. It takes them only of codes that led here.
func (d *decoder) lookUp(table []uint32, width uint) (uint32, error) {
	for {
		e := table[d.bits&(1<<width-1)]
		if e&flagSubtable != 0 && d.count >= width {
			e = table[uint64(e>>valueShift)+d.bits>>width&(1<<(maxCodeLength-width)-1)] + uint32(width)
			e += uint32(width) << lengthShift
		}
		if uint(e&takeMask) <= d.count && e&flagSubtable == 0 {
			return e, nil
		}
		if err := d.refill(); err != nil {
			return 0, err
		}
	}
}

func (d *decoder) putLiteral(e uint32) error {
	if d.out == len(d.dst) {
		return io.ErrShortBuffer
	}
	d.take(uint(e & takeMask))
	d.dst[d.out] = byte(e >> valueShift)
	d.out++
	return nil
}

// value takes the bits of a length or distance.
func (d *decoder) value(e uint32) (int, error) {
	if e&flagSpecial != 0 {
		return 0, d.corrupt(unknownCode)
	}
	v := d.take(uint(e & takeMask))
	return int(e>>valueShift) + int(v>>(e>>lengthShift&lengthMask)), nil
}

// copyMatch appends length bytes that are a copy of what starts distance bytes back; the two may overlap.
func (d *decoder) copyMatch(distance, length int) {
	end := d.out + length
	from := d.out - distance
	for d.out < end { // what is copied doubles every time
		d.out += copy(d.dst[d.out:end], d.dst[from:d.out])
	}
}
