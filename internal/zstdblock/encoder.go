// Package zstdblock writes one zstd frame (RFC 8878) for one block of a squashfs image: short inputs that are all in
// memory, nothing to stream, no dictionary and no checksum. That is less than a general encoder has to do, and what is
// left is done faster.
package zstdblock

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/klauspost/compress/huff0"
)

// MaxSize is the largest input of Encode in bytes, the largest block of squashfs.
const MaxSize = 1 << posBits

// Overhead is how many bytes more than the input the capacity of dst should have, so that Encode does not allocate.
const Overhead = 512

const (
	maxBlock    = 128 << 10 // bytes of content in one block of a frame, RFC 8878 section 3.1.1.2.4
	blockHeader = 3         // bytes
	minInput    = 32        // shorter inputs are not worth a frame
)

// The types of blocks and of literals, RFC 8878 sections 3.1.1.2.2 and 3.1.1.3.1.1.
const (
	blockRaw        = 0
	blockRLE        = 1
	blockCompressed = 2

	literalsRaw        = 0
	literalsRLE        = 1
	literalsCompressed = 2
	literalsTreeless   = 3
)

// Encoder compresses one input after the other and reuses its memory, about 1 MiB. What it writes depends on the input
// alone, not on earlier ones. It is not for concurrent use.
type Encoder struct {
	finder
	huff   huff0.Scratch
	hist   [kinds]histogram
	tables [kinds]sequenceTable
	bits   [maxBlock + 64]byte // the bit stream of the sequences
	nbits  int
	treed  bool // the decoder has a Huffman table from an earlier block of the frame
}

// NewEncoder returns an encoder with empty tables.
func NewEncoder() *Encoder { return new(Encoder) }

// Encode appends src as a whole zstd frame to dst. It returns false, and dst as it was, if the frame would not be shorter
// than src, or if src is longer than MaxSize.
func (e *Encoder) Encode(dst, src []byte) ([]byte, bool) {
	if len(src) < minInput || len(src) > MaxSize {
		return dst, false
	}
	e.begin(src)
	out := appendFrameHeader(slices.Grow(dst, len(src)+Overhead), len(src))
	limit := len(dst) + len(src) // the frame has to end before
	for at := 0; at < len(src); at += maxBlock {
		end := min(at+maxBlock, len(src))
		out = e.block(out, src, at, end, end == len(src))
		if len(out) >= limit {
			return dst, false
		}
	}
	return out, true
}

// begin forgets the frame before.
func (e *Encoder) begin(src []byte) {
	e.finder.begin(src)
	e.treed = false
	for k := range e.tables {
		e.tables[k].known = false
	}
}

// appendFrameHeader writes the header of a frame that is a single segment, so that its window is its content.
func appendFrameHeader(dst []byte, size int) []byte {
	const single = 1 << 5
	dst = append(dst, 0x28, 0xb5, 0x2f, 0xfd)
	switch {
	case size < 256:
		return append(dst, single, byte(size))
	case size < 256+1<<16:
		return binary.LittleEndian.AppendUint16(append(dst, single|1<<6), uint16(size-256))
	default:
		return binary.LittleEndian.AppendUint32(append(dst, single|2<<6), uint32(size))
	}
}

func appendBlockHeader(dst []byte, kind, size int, last bool) []byte {
	h := uint32(size<<3 | kind<<1)
	if last {
		h |= 1
	}
	return append(dst, byte(h), byte(h>>8), byte(h>>16))
}

// block appends src[from:to] as one block of the frame.
func (e *Encoder) block(dst, src []byte, from, to int, last bool) []byte {
	content := src[from:to]
	if isRun(content) {
		return append(appendBlockHeader(dst, blockRLE, len(content), last), content[0])
	}
	before := e.reps
	e.find(from, to)
	if e.matched(64) < len(content)/128 && looksRandom(content) {
		e.discard(before)
		return append(appendBlockHeader(dst, blockRaw, len(content), last), content...)
	}
	e.split(from, to)
	start := len(dst)
	dst = append(dst, 0, 0, 0)
	out, ok := e.appendLiterals(dst, e.literals[:e.nliterals], len(content))
	if ok {
		out, ok = e.appendSequences(out)
	}
	size := len(out) - start - blockHeader
	if !ok || size >= len(content) {
		e.discard(before)
		return append(appendBlockHeader(out[:start], blockRaw, len(content), last), content...)
	}
	appendBlockHeader(out[:start], blockCompressed, size, last)
	return out
}

// discard takes back what the encoder assumed that the decoder learns from a block that is now stored raw.
func (e *Encoder) discard(reps repeats) {
	e.reps = reps
	e.treed = false
	for k := range e.tables {
		e.tables[k].known = false
	}
}

// isRun reports whether all bytes are the same.
func isRun(b []byte) bool {
	if b[0] != b[len(b)-1] {
		return false
	}
	for i := range b {
		if b[i] != b[0] {
			return false
		}
	}
	return true
}

// looksRandom reports whether a Huffman code would save less than about 1 % of b. The sum of the squares of the
// probabilities tells: for 256 equal ones it is 1/256, and the entropy is at least -log2 of it.
func looksRandom(b []byte) bool {
	const runs, run, sample = 32, 64, 32 * 64 // runs, because in records of one size each field has its own distribution
	if len(b) < 2*sample {
		return false
	}
	var hist [256]int
	for i := range runs {
		at := i * (len(b) / runs)
		for _, c := range b[at : at+run] {
			hist[c]++
		}
	}
	pairs := 0
	for _, n := range hist {
		pairs += n * (n - 1)
	}
	return pairs*256 < sample*(sample-1)*105/100
}

const (
	singleStream = 256 // literals below are not worth the sizes of four streams
	minCompress  = 24  // and below this not worth a Huffman table
)

// appendLiterals writes the literals section of a block. It returns false if the block is all literals and they are not
// compressible, because then there is no use for the block.
func (e *Encoder) appendLiterals(dst, lit []byte, content int) ([]byte, bool) {
	if len(lit) < minCompress {
		return appendRawLiterals(dst, lit), true
	}
	e.huff.Reuse = huff0.ReusePolicyNone
	if e.treed {
		e.huff.Reuse = huff0.ReusePolicyAllow
	}
	e.treed = false
	compress := huff0.Compress4X
	if len(lit) < singleStream {
		compress = huff0.Compress1X
	}
	out, reused, err := compress(lit, &e.huff)
	switch {
	case err == huff0.ErrUseRLE: //nolint:errorlint // huff0 returns it bare
		return append(appendLiteralsHeader(dst, literalsRLE, len(lit)), lit[0]), true
	case err != nil || len(out)+5 >= len(lit):
		return appendRawLiterals(dst, lit), len(lit) != content
	}
	kind := literalsCompressed
	if reused {
		kind = literalsTreeless
	}
	e.treed = true
	return append(appendHuffmanHeader(dst, kind, len(lit), len(out)), out...), true
}

func appendRawLiterals(dst, lit []byte) []byte {
	return append(appendLiteralsHeader(dst, literalsRaw, len(lit)), lit...)
}

// appendLiteralsHeader writes the header of literals that are raw or a run.
func appendLiteralsHeader(dst []byte, kind, size int) []byte {
	switch {
	case size < 1<<5:
		return append(dst, byte(kind|size<<3))
	case size < 1<<12:
		return binary.LittleEndian.AppendUint16(dst, uint16(kind|1<<2|size<<4))
	default:
		h := kind | 3<<2 | size<<4
		return append(dst, byte(h), byte(h>>8), byte(h>>16))
	}
}

// appendHuffmanHeader writes the header of literals of the given size that take packed bytes with their table.
func appendHuffmanHeader(dst []byte, kind, size, packed int) []byte {
	format, width := 0, 10
	switch {
	case size < singleStream:
	case size < 1<<10 && packed < 1<<10:
		format = 1
	case size < 1<<14 && packed < 1<<14:
		format, width = 2, 14
	default:
		format, width = 3, 18
	}
	h := uint64(kind|format<<2) | uint64(size)<<4 | uint64(packed)<<(4+width)
	for n := 4 + 2*width; n > 0; n -= 8 {
		dst = append(dst, byte(h))
		h >>= 8
	}
	return dst
}

// highBit is the position of the highest bit of x, which is not 0.
func highBit(x uint32) int { return bits.Len32(x) - 1 }
