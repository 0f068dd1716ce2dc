package squashfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sconce.dev/sconce/internal/inflate"
)

// expander decompresses a block into dst, which it must not outgrow, and returns its length. It is safe for concurrent use.
type expander func(dst, src []byte) (int, error)

var (
	errEmpty   = errors.New("it is empty")
	errTooLong = errors.New("it decompresses to more than it should")
)

// newExpander returns what decompresses the blocks of a file system. For compressors that are not known it fails only when
// there is something to decompress.
func newExpander(c Compressor) (expander, error) {
	switch c {
	case Gzip:
		return expandZlib, nil
	case Zstd:
		return newZstdExpander()
	case LZ4:
		return expandLZ4, nil
	case LZO:
		return expandLZO, nil
	case XZ:
		return expandXZ, nil
	case LZMA:
		return expandLZMA, nil
	}
	return func([]byte, []byte) (int, error) {
		return 0, fmt.Errorf("it is compressed with %v, which is %w: unpack it with unsquashfs and pack it again with mksquashfs -comp zstd",
			c, errors.ErrUnsupported)
	}, nil
}

// expandZlib decompresses a zlib stream (RFC 1950).
func expandZlib(dst, src []byte) (int, error) {
	const headSize, sumSize, presetDictionary = 2, 4, 0x20
	switch {
	case len(src) < headSize+sumSize:
		return 0, errors.New("zlib: too short")
	case src[0]&15 != 8 || binary.BigEndian.Uint16(src)%31 != 0 || src[1]&presetDictionary != 0:
		return 0, errors.New("zlib: not a valid header")
	}
	src = src[headSize:]
	n, used, err := inflate.Decode(dst, src)
	if err != nil {
		return 0, fmt.Errorf("zlib: %w", err)
	}
	if len(src)-used < sumSize || binary.BigEndian.Uint32(src[used:]) != adler32.Checksum(dst[:n]) {
		return 0, errors.New("zlib: wrong checksum")
	}
	return n, nil
}

// maxZstdWindow is the largest window that a block may ask for, in bytes: what RFC 8878, 3.1.1.1.2 wants supported.
const maxZstdWindow = 8 << 20

// newZstdExpander decompresses with one decoder for all: it has as many states as there are processors.
func newZstdExpander() (expander, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxBlockSize),
		zstd.WithDecoderMaxWindow(maxZstdWindow))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return func(dst, src []byte) (int, error) {
		out, err := d.DecodeAll(src, dst[:0:len(dst)])
		if err != nil {
			return 0, fmt.Errorf("zstd: %w", err)
		}
		if len(out) > len(dst) {
			return 0, errTooLong
		}
		if len(out) > 0 && &out[0] != &dst[0] {
			copy(dst, out)
		}
		return len(out), nil
	}, nil
}

func expandLZ4(dst, src []byte) (int, error) {
	n, err := lz4.UncompressBlock(src, dst)
	if err != nil {
		return 0, fmt.Errorf("lz4: %w", err)
	}
	return n, nil
}
