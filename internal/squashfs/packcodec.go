package squashfs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// An encoded pack is, with all numbers as varints of encoding/binary, signed ones where they may be negative:
//
//	magic | len(key) key | block size | 1 with packed tails | size of the segment
//	number of groups | per group: offset, size with flag, number of tails | per tail: size, SHA-256
//	number of runs   | per run: offset or -1, number of blocks, each block's size with flag, SHA-256
//	number of files  | per file, in the order of keys: offset minus the one before, nth, size, run or -1, tail or -1
//	CRC-32C of all that, 4 bytes little endian
const packMagic = "squashfs pack 1\n"

const checksumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the pack's index, for DecodePack.
func (p *Pack) Encode() []byte {
	b := []byte(packMagic)
	b = append(binary.AppendUvarint(b, uint64(len(p.optionsKey))), p.optionsKey...)
	b = appendNumber(b, p.blockSize)
	b = appendNumber(b, map[bool]int{true: 1}[p.tailed])
	b = appendNumber(b, p.size)
	b = p.appendGroups(b)
	b = p.appendRuns(b)
	b = p.appendFiles(b)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func appendNumber[T int | int64 | int32 | uint32](b []byte, n T) []byte {
	return binary.AppendVarint(b, int64(n))
}

func (p *Pack) appendGroups(b []byte) []byte {
	b = appendNumber(b, len(p.groups))
	for _, g := range p.groups {
		b = appendNumber(b, g.offset)
		b = appendNumber(b, g.size)
		b = appendNumber(b, g.count)
		for _, t := range p.tails[g.first : g.first+g.count] {
			b = append(appendNumber(b, t.size), t.sum[:]...)
		}
	}
	return b
}

func (p *Pack) appendRuns(b []byte) []byte {
	b = appendNumber(b, len(p.runs))
	for _, r := range p.runs {
		b = appendNumber(b, r.offset)
		b = appendNumber(b, len(r.sizes))
		for _, s := range r.sizes {
			b = appendNumber(b, s)
		}
		b = append(b, r.digest[:]...)
	}
	return b
}

func (p *Pack) appendFiles(b []byte) []byte {
	b = appendNumber(b, len(p.files))
	before := int64(0)
	for _, k := range p.sortedKeys() {
		f := p.files[k]
		b = appendNumber(b, k.Offset-before)
		b = appendNumber(b, k.Nth)
		b = appendNumber(b, f.size)
		b = appendNumber(b, f.run)
		b = appendNumber(b, f.tail)
		before = k.Offset
	}
	return b
}

// DecodePack reads an index that Encode made. f holds the bytes of the segment, size of them, which are read when the pack
// is used; f stays open. What the index says is checked against itself and size; errors wrap ErrPack.
func DecodePack(index []byte, f *os.File, size int64) (*Pack, error) {
	return unpackIndex(index, f, size)
}

func unpackIndex(index []byte, f io.ReaderAt, size int64) (*Pack, error) {
	n := len(index) - checksumSize
	if n < 0 || binary.LittleEndian.Uint32(index[n:]) != crc32.Checksum(index[:n], castagnoli) {
		return nil, packError("its index has a wrong checksum")
	}
	p := &Pack{from: f}
	s := packScanner{b: index[:n], p: p}
	s.head(size)
	s.groups()
	s.runs()
	s.files()
	if s.err == nil && len(s.b) > 0 {
		s.fail("%d bytes behind the end", len(s.b))
	}
	if s.err != nil {
		return nil, s.err
	}
	p.link()
	return p, nil
}

// packScanner reads an index. After the first error everything is zero.
type packScanner struct {
	b   []byte
	p   *Pack
	err error
}

func (s *packScanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = packError("its index: %w", fmt.Errorf(format, args...))
	}
	s.b = nil
}

// number reads a number from lowest to highest.
func (s *packScanner) number(what string, lowest, highest int64) int64 {
	v, n := binary.Varint(s.b)
	if n <= 0 {
		s.fail("%s is missing", what)
		return 0
	}
	s.b = s.b[n:]
	if v < lowest || v > highest {
		s.fail("%s is %d, not in %d to %d", what, v, lowest, highest)
		return 0
	}
	return v
}

// count reads a number of things of at least least bytes each, so that no more is reserved for them than the index is long.
func (s *packScanner) count(what string, least int) int {
	return int(s.number("number of "+what, 0, int64(len(s.b)/least)))
}

func (s *packScanner) sum() (d digest) {
	if len(s.b) < len(d) {
		s.fail("a sum is missing")
		return d
	}
	s.b = s.b[copy(d[:], s.b):]
	return d
}

func (s *packScanner) head(size int64) {
	if len(s.b) < len(packMagic) || string(s.b[:len(packMagic)]) != packMagic {
		s.fail("it is no index of this version")
		return
	}
	s.b = s.b[len(packMagic):]
	n, used := binary.Uvarint(s.b)
	if used <= 0 || n > uint64(len(s.b)-used) {
		s.fail("the key is missing")
		return
	}
	end := used + int(n)
	s.p.optionsKey, s.b = string(s.b[used:end]), s.b[end:]
	s.p.blockSize = int(s.number("block size", MinBlockSize, MaxBlockSize))
	s.p.tailed = s.number("tail packing", 0, 1) == 1
	if s.p.size = s.number("size", 0, 1<<62); s.p.size != size {
		s.fail("it is about %d bytes, and there are %d", s.p.size, size)
	}
}

// checkBlock checks the size of a block of raw bytes: it is never longer than what it holds, and as long if it is stored.
func (s *packScanner) checkBlock(size uint32, raw int64) {
	n := int64(size & blockMask)
	if n > raw || (n == raw) != (size&blockStored != 0) {
		s.fail("a block of %d bytes has %d, flag %#x", raw, n, size&blockStored)
	}
}

// checkInside checks that n bytes at an offset are in the segment.
func (s *packScanner) checkInside(offset, n int64) {
	if offset > s.p.size-n {
		s.fail("%d bytes at offset %d of %d", n, offset, s.p.size)
	}
}

// blockSize reads the size of a block with its flag.
func (s *packScanner) blockSize() uint32 {
	return uint32(s.number("size of a block", 0, blockStored|MaxBlockSize))
}

func (s *packScanner) groups() {
	p := s.p
	for range s.count("fragments", 3) {
		g := &packGroup{first: len(p.tails)}
		g.offset = s.number("offset of a fragment", 0, p.size)
		g.size = s.blockSize()
		g.count = s.count("tails", 1+len(digest{}))
		offset := int64(0)
		for range g.count {
			t := packTail{group: uint32(len(p.groups)), offset: uint32(offset)}
			n := s.number("size of a tail", 1, int64(p.blockSize)-offset)
			t.size, t.sum = uint32(n), s.sum()
			offset += n
			p.tails = append(p.tails, t)
		}
		if s.err != nil {
			return
		}
		g.raw = uint32(offset)
		s.checkBlock(g.size, offset)
		s.checkInside(g.offset, int64(g.size&blockMask))
		g.id = groupID(p.tails[g.first:])
		p.groups = append(p.groups, g)
	}
}

func (s *packScanner) runs() {
	p := s.p
	for range s.count("runs", 2+len(digest{})) {
		r := packRun{offset: s.number("offset of a run", elsewhere, p.size)}
		r.sizes = make([]uint32, s.count("blocks", 1))
		for i := range r.sizes {
			if i > 0 && r.sizes[i-1] > 0 { // the last is checked with its file
				s.checkBlock(r.sizes[i-1], int64(p.blockSize))
			}
			r.sizes[i] = s.blockSize()
			r.length += int64(r.sizes[i] & blockMask)
			if r.sizes[i] == 0 {
				r.zeros++
			}
		}
		r.digest = s.sum()
		if s.err != nil {
			return
		}
		if r.offset != elsewhere {
			s.checkInside(r.offset, r.length)
		}
		p.runs = append(p.runs, r)
	}
}

func (s *packScanner) files() {
	n := s.count("files", 5)
	s.p.files = make(map[Key]packFile, n)
	var k Key
	for range n {
		const most = 1<<63 - 1
		k.Offset += s.number("distance of a file", -most, most)
		k.Nth = int(s.number("number of a file", 0, most))
		f := packFile{
			size: s.number("size of a file", 1, most),
			run:  int32(s.number("run of a file", -1, int64(len(s.p.runs))-1)),
			tail: int32(s.number("tail of a file", -1, int64(len(s.p.tails))-1)),
		}
		if s.err != nil {
			return
		}
		if _, twice := s.p.files[k]; twice {
			s.fail("a file is there twice")
			return
		}
		s.checkFile(f)
		s.p.files[k] = f
	}
}

// checkFile checks that a file's run and tail are as long as the file.
func (s *packScanner) checkFile(f packFile) {
	p := s.p
	blocks, rest := f.size/int64(p.blockSize), f.size%int64(p.blockSize)
	if f.tail >= 0 {
		if int64(p.tails[f.tail].size) != rest || blocks > 0 && !p.tailed {
			s.fail("a file of %d bytes has a tail of %d", f.size, p.tails[f.tail].size)
			return
		}
		rest = 0
	}
	last := int64(p.blockSize)
	if rest > 0 {
		blocks, last = blocks+1, rest
	}
	if blocks == 0 && f.run < 0 {
		return
	}
	if f.run < 0 || f.tail < 0 && blocks == 1 && rest > 0 || int64(len(p.runs[f.run].sizes)) != blocks {
		s.fail("a file of %d bytes has run %d, which is not as long", f.size, f.run)
		return
	}
	if size := p.runs[f.run].sizes[blocks-1]; size > 0 {
		s.checkBlock(size, last)
	}
}
