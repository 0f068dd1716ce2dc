package squashfs

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sconce.dev/sconce/internal/zstdblock"
)

// codecVersion is part of Options.Key. It changes whenever the bytes of a compressed block may change: with another
// version of a compression library or another way to call it. A test compares what the compressors make with known sums.
const codecVersion = 2

// The levels that stand for level 0, and the range of levels of each compressor.
const (
	defaultZstdLevel = 3
	maxZstdLevel     = 22
	defaultGzipLevel = 6 // 9 takes many times as long for two percent
	toolsGzipLevel   = 9 // what the format's tools assume when nothing is said
	maxGzipLevel     = 9
	maxLZ4Level      = 9 // 1 to 9 are the high compression mode
)

// A blockEncoder compresses blocks one by one; it belongs to one goroutine.
type blockEncoder interface {
	// appendBlock appends the compressed form of src to dst. ok is false when that form would not be shorter than src.
	appendBlock(dst, src []byte) (out []byte, ok bool, err error)
}

// encoder makes a blockEncoder as the options say, which are complete.
func (o Options) encoder() (blockEncoder, error) {
	switch o.Compression {
	case Zstd:
		return newZstdEncoder(o.Level, o.BlockSize)
	case Gzip:
		return newGzipEncoder(o.Level)
	case LZ4:
		return newLZ4Encoder(o.Level), nil
	case Stored:
		return storedEncoder{}, nil
	}
	return nil, fmt.Errorf("writing with compression %s is not possible", o.Compression)
}

// compressorOptions is what follows the superblock: the compressor's settings where the format's tools would otherwise
// assume others, and always for lz4. Source: Linux, fs/squashfs/*_wrapper.c, and squashfs-tools.
func (o Options) compressorOptions() []byte {
	switch {
	case o.Compression == Zstd:
		return binary.LittleEndian.AppendUint32(nil, uint32(o.Level))
	case o.Compression == Gzip && o.Level != toolsGzipLevel:
		b := binary.LittleEndian.AppendUint32(nil, uint32(o.Level))
		b = binary.LittleEndian.AppendUint16(b, 15)   // log2 of the window
		return binary.LittleEndian.AppendUint16(b, 0) // the default strategy
	case o.Compression == LZ4:
		b := binary.LittleEndian.AppendUint32(nil, 1) // the block format
		return binary.LittleEndian.AppendUint32(b, uint32(min(o.Level, 1)))
	}
	return nil
}

// storedEncoder compresses nothing.
type storedEncoder struct{}

func (storedEncoder) appendBlock(dst, _ []byte) ([]byte, bool, error) { return dst, false, nil }

// fastZstdLevels are those up to which zstdblock is used. It has one level only, which takes about two thirds of the time
// of the library's default (its level 3) and makes slightly less of the blocks; the library's faster level is slower too.
const fastZstdLevels = 5

// newZstdEncoder makes frames that hold their size and need no more memory than it (RFC 8878, single segment), without a
// checksum, which the kernel would compute a second time.
func newZstdEncoder(level, blockSize int) (blockEncoder, error) {
	if level <= fastZstdLevels {
		return fastZstdEncoder{zstdblock.NewEncoder()}, nil
	}
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(max(blockSize, metadataSize)),
		zstd.WithSingleSegment(true),
		zstd.WithEncoderCRC(false),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return smallZstdEncoder{e}, nil
}

// zstdLevelName names the levels that make the same bytes.
func zstdLevelName(level int) string {
	if level <= fastZstdLevels {
		return "fast"
	}
	return zstd.EncoderLevelFromZstd(level).String()
}

type fastZstdEncoder struct{ *zstdblock.Encoder }

func (e fastZstdEncoder) appendBlock(dst, src []byte) ([]byte, bool, error) {
	out, ok := e.Encode(dst, src)
	return out, ok, nil
}

type smallZstdEncoder struct{ *zstd.Encoder }

func (e smallZstdEncoder) appendBlock(dst, src []byte) ([]byte, bool, error) {
	out := e.EncodeAll(src, dst)
	return out, len(out)-len(dst) < len(src), nil
}

// gzipEncoder makes what squashfs calls gzip: zlib streams (RFC 1950).
type gzipEncoder struct {
	w   *zlib.Writer
	out boundedBuffer
}

func newGzipEncoder(level int) (blockEncoder, error) {
	w, err := zlib.NewWriterLevel(io.Discard, level)
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	return &gzipEncoder{w: w}, nil
}

func (e *gzipEncoder) appendBlock(dst, src []byte) ([]byte, bool, error) {
	e.out = boundedBuffer{b: dst, room: len(src) - 1}
	e.w.Reset(&e.out)
	_, err := e.w.Write(src)
	if closeErr := e.w.Close(); err == nil {
		err = closeErr
	}
	if e.out.full {
		return dst, false, nil
	}
	return e.out.b, err == nil, err
}

// boundedBuffer takes room bytes and then fails, so that what does not compress is given up early.
type boundedBuffer struct {
	b    []byte
	room int
	full bool
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if len(p) > b.room {
		b.full = true
		return 0, io.ErrShortBuffer
	}
	b.room -= len(p)
	b.b = append(b.b, p...)
	return len(p), nil
}

// lz4Encoder makes blocks of the LZ4 block format.
type lz4Encoder struct {
	compress func(src, dst []byte) (int, error)
}

func newLZ4Encoder(level int) blockEncoder {
	if level == 0 {
		return lz4Encoder{compress: new(lz4.Compressor).CompressBlock}
	}
	// The library's levels are search depths: 512 for its first, doubled by each next.
	c := lz4.CompressorHC{Level: lz4.Level1 << (level - 1)}
	return lz4Encoder{compress: c.CompressBlock}
}

func (e lz4Encoder) appendBlock(dst, src []byte) ([]byte, bool, error) {
	dst = slices.Grow(dst, len(src))
	n, err := e.compress(src, dst[len(dst):len(dst)+len(src)-1])
	if err != nil {
		return dst, false, nil //nolint:nilerr // the only failure is a lack of room, so it does not compress
	}
	return dst[:len(dst)+n], n > 0, nil
}
