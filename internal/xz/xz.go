// Package xz decompresses the .xz format: what packages of Debian and RPM, archives of sources and root file systems come in. It is the
// reader alone, made to be fast, since much of a system that is made from packages is spent here; nothing here writes the format.
//
// The one idea is that LZMA2 comes in chunks of at most 64 KiB compressed and 2 MiB uncompressed: a chunk is read whole, and decoded
// whole into one flat buffer in which everything that it may refer to lies before it. So the loop over symbols knows neither the end of its
// input nor a window that wraps round.
//
//	xz.go      streams, blocks and indices      lzma.go   the loop over symbols
//	lzma2.go   chunks, and the buffer           range.go  one bit
//
// It follows "The .xz File Format", version 1.2.1, whose sections comments name, and the LZMA specification of the LZMA SDK.
package xz

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
)

// The parts of a stream (sections 2.1 and 3.1), in bytes.
const (
	magic       = "\xfd7zXZ\x00"
	footerMagic = "YZ"
	headerSize  = 12
)

// errDamaged is every way in which a file may break the format. io.ErrUnexpectedEOF says that it ends too early.
var errDamaged = errors.New("the data are damaged")

// reader reads streams, one behind the other.
type reader struct {
	in            *countingReader
	maxDictionary int64
	err           error

	check  byte      // kind of the stream's checks
	sum    hash.Hash // of the block; nil for none
	blocks blockList // of the stream

	inBlock   bool
	block     lzma2
	began     int64 // where the block begins
	headEnded int64 // where its header ends
	size      int64 // of the block, uncompressed, as far as it was read
	said      sizes // what its header says of it
}

// NewReader returns a reader of the decompressed bytes of r, which has to be in the .xz format, with LZMA2 and no other filter; one with
// others is a [FilterError]. No more than maxDictionary bytes are granted to the dictionary, by which memory is bounded: about five quarters
// of it and 4 MiB, and less for what is smaller than that.
func NewReader(r io.Reader, maxDictionary int64) (io.Reader, error) {
	in, ok := r.(*bufio.Reader)
	if !ok {
		in = bufio.NewReader(r)
	}
	x := &reader{in: &countingReader{r: in}, maxDictionary: maxDictionary}
	if err := x.openStream(); err != nil {
		return nil, unexpected(err)
	}
	return x, nil
}

func (x *reader) Read(p []byte) (int, error) {
	for len(p) > 0 && x.err == nil {
		if !x.inBlock {
			x.err = x.next()
			continue
		}
		n, err := x.block.Read(p)
		x.size += int64(n)
		if x.sum != nil {
			x.sum.Write(p[:n])
		}
		switch {
		case errors.Is(err, io.EOF):
			x.err = unexpected(x.endBlock())
		case err != nil:
			x.err = unexpected(err)
		}
		if n > 0 {
			return n, nil
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	return 0, x.err
}

// unexpected makes of an end within a part the error that says so.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next opens the next block, of this stream or the next one. io.EOF is the end of the file.
func (x *reader) next() error {
	size, err := x.in.ReadByte()
	if err != nil {
		return unexpected(err)
	}
	if size != 0 {
		return unexpected(x.openBlock(size))
	}
	if err := x.endStream(); err != nil {
		return unexpected(err)
	}
	return x.nextStream()
}

// openStream reads a stream's header (section 2.1.1).
func (x *reader) openStream() error {
	var head [headerSize]byte
	if _, err := io.ReadFull(x.in, head[:]); err != nil {
		return err
	}
	return x.start(head)
}

func (x *reader) start(head [headerSize]byte) error {
	if string(head[:6]) != magic {
		return fmt.Errorf("it does not begin as the format does: %w", errDamaged)
	}
	if !validCRC(head[6:8], head[8:]) {
		return errDamaged
	}
	x.check, x.sum, x.blocks = head[7], nil, blockList{}
	if head[6] != 0 {
		return fmt.Errorf("the kind of stream %#x: %w", head[6:8], errors.ErrUnsupported)
	}
	switch x.check {
	case 0:
	case 1:
		x.sum = littleEndian{crc32.NewIEEE()}
	case 4:
		x.sum = littleEndian{crc64.New(ecma)}
	case 10:
		x.sum = sha256.New()
	default:
		return fmt.Errorf("checks of the kind %d: %w", x.check, errors.ErrUnsupported)
	}
	return nil
}

var ecma = crc64.MakeTable(crc64.ECMA)

// littleEndian turns the bytes of a checksum round (section 1.2).
type littleEndian struct{ hash.Hash }

func (h littleEndian) Sum(b []byte) []byte {
	all := h.Hash.Sum(b)
	own := all[len(b):]
	for i, j := 0, len(own)-1; i < j; i, j = i+1, j-1 {
		own[i], own[j] = own[j], own[i]
	}
	return all
}

func validCRC(b, sum []byte) bool { return crc32.ChecksumIEEE(b) == binary.LittleEndian.Uint32(sum) }

// sizes are what a header says of its block; -1 where it says nothing.
type sizes struct{ packed, unpacked int64 }

// openBlock reads a block's header (section 3.1), of whose size the first byte is read.
func (x *reader) openBlock(first byte) error {
	x.began = x.in.n - 1
	head := make([]byte, (int(first)+1)*4)
	head[0] = first
	if _, err := io.ReadFull(x.in, head[1:]); err != nil {
		return err
	}
	if n := len(head) - 4; !validCRC(head[:n], head[n:]) {
		return errDamaged
	}
	said, dictionary, err := parseBlockHead(head[1 : len(head)-4])
	if err != nil {
		return err
	}
	if dictionary > x.maxDictionary {
		return fmt.Errorf("it needs a dictionary of %d bytes; at most %d are granted", dictionary, x.maxDictionary)
	}
	if x.sum != nil {
		x.sum.Reset()
	}
	x.said, x.size, x.headEnded, x.inBlock = said, 0, x.in.n, true
	x.block.reset(x.in, int(dictionary))
	return nil
}

// parseBlockHead reads what lies between a header's size and its CRC.
func parseBlockHead(b []byte) (said sizes, dictionary int64, err error) {
	const more, hasPacked, hasUnpacked, reserved, lzma2ID = 0x03, 0x40, 0x80, 0x3c, 0x21
	if len(b) == 0 {
		return said, 0, errDamaged
	}
	in, flags := bytes.NewReader(b[1:]), b[0]
	if flags&reserved != 0 {
		return said, 0, fmt.Errorf("the flags %#x of a block: %w", flags, errors.ErrUnsupported)
	}
	said = sizes{-1, -1}
	for _, size := range []struct {
		flag byte
		to   *int64
	}{{hasPacked, &said.packed}, {hasUnpacked, &said.unpacked}} {
		if flags&size.flag != 0 {
			if *size.to, err = readNumber(in); err != nil {
				return said, 0, errDamaged
			}
		}
	}
	id, err := readNumber(in)
	if err != nil {
		return said, 0, errDamaged
	}
	if id != lzma2ID || flags&more != 0 {
		return said, 0, &FilterError{id}
	}
	n, err := readNumber(in)
	properties, _ := in.ReadByte()
	if err != nil || n != 1 || properties > 40 {
		return said, 0, errDamaged
	}
	for in.Len() > 0 {
		if b, _ := in.ReadByte(); b != 0 {
			return said, 0, errDamaged
		}
	}
	return said, dictionarySize(properties), nil
}

// dictionarySize decodes section 5.3.1, of which 40 is the largest: 4 GiB - 1.
func dictionarySize(properties byte) int64 {
	return min(int64(2|properties&1)<<(properties/2+11), 1<<32-1)
}

// readNumber reads a number of section 1.2: seven bits in each byte, in as few bytes as it takes.
func readNumber(in io.ByteReader) (int64, error) {
	var v int64
	for shift := 0; shift < 63; shift += 7 {
		b, err := in.ReadByte()
		if err != nil {
			return 0, err
		}
		v |= int64(b&0x7f) << shift
		if b&0x80 == 0 {
			if b == 0 && shift > 0 {
				return 0, errDamaged
			}
			return v, nil
		}
	}
	return 0, errDamaged
}

// endBlock reads what follows a block (sections 3.3 and 3.4), and compares it with what the block is.
func (x *reader) endBlock() error {
	packed := x.in.n - x.headEnded
	if x.said.packed >= 0 && x.said.packed != packed || x.said.unpacked >= 0 && x.said.unpacked != x.size {
		return errDamaged
	}
	unpadded := x.in.n - x.began
	if err := x.padding(packed); err != nil {
		return err
	}
	if x.sum != nil {
		said := make([]byte, x.sum.Size())
		if _, err := io.ReadFull(x.in, said); err != nil {
			return err
		}
		if !bytes.Equal(said, x.sum.Sum(nil)) {
			return fmt.Errorf("a checksum does not fit: %w", errDamaged)
		}
		unpadded += int64(len(said))
	}
	x.blocks.add(unpadded, x.size)
	x.inBlock = false
	return nil
}

// padding reads the zeros behind a part of n bytes.
func (x *reader) padding(n int64) error {
	for ; n%4 != 0; n++ {
		if b, err := x.in.ReadByte(); err != nil || b != 0 {
			return errors.Join(errDamaged, err)
		}
	}
	return nil
}

// blockList is what an index has to say of the blocks: how many there are, and their sizes, of which a sum is enough.
type blockList struct {
	count int64
	sum   uint64
}

func (l *blockList) add(unpadded, unpacked int64) {
	l.count++
	for _, n := range []int64{unpadded, unpacked} {
		l.sum = (l.sum ^ uint64(n)) * 0x100000001b3
	}
}

// endStream reads the index (section 4), whose first byte is read, and the footer (section 2.1.2).
func (x *reader) endStream() error {
	began := x.in.n - 1
	x.in.crc = crc32.Update(0, crc32.IEEETable, []byte{0})
	x.in.summing = true
	err := x.index()
	if err == nil {
		err = x.padding(x.in.n - began)
	}
	x.in.summing = false
	if err != nil {
		return err
	}
	var rest [4 + headerSize]byte
	if _, err := io.ReadFull(x.in, rest[:]); err != nil {
		return err
	}
	size := x.in.n - headerSize - began
	sum, footer := rest[:4], rest[4:]
	switch {
	case binary.LittleEndian.Uint32(sum) != x.in.crc,
		!validCRC(footer[4:10], footer),
		int64(binary.LittleEndian.Uint32(footer[4:])) != size/4-1,
		footer[8] != 0, footer[9] != x.check,
		string(footer[10:]) != footerMagic:
		return errDamaged
	}
	return nil
}

// index compares the records of an index with the blocks that were read.
func (x *reader) index() error {
	count, err := readNumber(x.in)
	if err != nil {
		return err
	}
	if count != x.blocks.count {
		return errDamaged
	}
	var said blockList
	for range count {
		unpadded, err := readNumber(x.in)
		if err != nil {
			return err
		}
		unpacked, err := readNumber(x.in)
		if err != nil {
			return err
		}
		said.add(unpadded, unpacked)
	}
	if said != x.blocks {
		return errDamaged
	}
	return nil
}

// nextStream opens the stream behind this one. Zeros may lie between, four at a time (section 2.2).
func (x *reader) nextStream() error {
	var word [4]byte
	for {
		n, err := io.ReadFull(x.in, word[:])
		switch {
		case n == 0 && errors.Is(err, io.EOF):
			return io.EOF
		case err != nil:
			return unexpected(err)
		case word == [4]byte{}:
			continue
		}
		head := [headerSize]byte(append(word[:], make([]byte, headerSize-4)...))
		if _, err := io.ReadFull(x.in, head[4:]); err != nil {
			return unexpected(err)
		}
		return x.start(head)
	}
}

// countingReader knows how far it has read, and the CRC of what it has read byte by byte while it is summing.
type countingReader struct {
	r       *bufio.Reader
	n       int64
	summing bool
	crc     uint32
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *countingReader) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err != nil {
		return 0, err
	}
	c.n++
	if c.summing {
		c.crc = crc32.Update(c.crc, crc32.IEEETable, []byte{b})
	}
	return b, nil
}

// FilterError is a file that has to go through a filter that is not known here. It is [errors.ErrUnsupported].
type FilterError struct{ ID int64 }

// filters change machine code so that it compresses better (section 5.3.2).
var filters = map[int64]string{
	3: "delta", 4: "x86", 5: "powerpc", 6: "ia64", 7: "arm", 8: "armthumb", 9: "sparc", 10: "arm64", 11: "riscv",
}

func (e *FilterError) Error() string {
	name, ok := filters[e.ID]
	if !ok {
		name = fmt.Sprintf("%#x", e.ID)
	}
	return fmt.Sprintf("the filter %s is %v", name, errors.ErrUnsupported)
}

func (e *FilterError) Unwrap() error { return errors.ErrUnsupported }
