package layer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/inflate"
	"sconce.dev/sconce/internal/racewatch"
	"sconce.dev/sconce/internal/xz"
)

// codec compresses chunks. The result depends on the chunk alone.
type codec struct {
	format   format
	compress func(dst, chunk []byte) ([]byte, error)
}

var codecs = map[Compression]codec{
	Zstd: {formatZstd, compressZstd},
	Gzip: {formatGzip, compressGzip},
	None: {formatTar, func(dst, chunk []byte) ([]byte, error) { return append(dst, chunk...), nil }},
}

// zstdLevel and gzipLevel are measured on 380 MB of wheels (numpy, scipy, pandas and others, see BenchmarkWriter). zstd's
// default level compresses 296 MB of them in a second of one core to 31%; the fastest 390 MB to 33%, the next better
// 186 MB to 30%. gzip 5 compresses 161 MB to 33%, as small as the wheels are; 2 takes two thirds of its time for 4% more,
// and what is beyond gains nothing: 6 takes a tenth more time for 1% less, 7 twice as much.
const (
	zstdLevel = zstd.SpeedDefault
	gzipLevel = 5
)

var zstdEncoders = sync.Pool{New: func() any {
	// One goroutine for each encoder and no window beyond the chunk: both bound its memory.
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstdLevel), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(ChunkSize))
	if err != nil {
		return err
	}
	return e
}}

func compressZstd(dst, chunk []byte) ([]byte, error) {
	switch e := zstdEncoders.Get().(type) {
	case *zstd.Encoder:
		defer zstdEncoders.Put(e)
		return e.EncodeAll(chunk, dst), nil
	case error:
		return nil, e
	}
	return nil, errors.New("no zstd encoder")
}

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(io.Discard, gzipLevel)
	if err != nil {
		return err
	}
	return w
}}

func compressGzip(dst, chunk []byte) ([]byte, error) {
	w, ok := gzipWriters.Get().(*gzip.Writer)
	if !ok {
		return nil, errors.New("no gzip writer")
	}
	defer gzipWriters.Put(w)
	racewatch.Read(chunk) // make race leaves the compressor without the detector: no goroutine is started in it
	buf := bytes.NewBuffer(dst)
	w.Reset(buf)
	_, err := w.Write(chunk)
	err = errors.Join(err, w.Close())
	return buf.Bytes(), err
}

// format is what a blob's bytes are, whatever its media type says.
type format byte

const (
	formatTar format = iota
	formatGzip
	formatZstd
	formatXZ
)

func formatOf(c Compression) format { return codecs[c].format }

// The bytes that streams start with: RFC 1952 section 2.3.1, RFC 8878 section 3.1.1, xz file format 2.1.1.1.
var (
	magicGzip = []byte{0x1f, 0x8b}
	magicZstd = []byte{0x28, 0xb5, 0x2f, 0xfd}
	magicXZ   = []byte{0xfd, '7', 'z', 'X', 'Z', 0}
	// magicSkip starts a zstd skippable frame, once the low four bits of its first byte are cleared (RFC 8878, 3.1.2).
	magicSkip = []byte{0x50, 0x2a, 0x4d, 0x18}
)

func sniff(head []byte) format {
	switch {
	case bytes.HasPrefix(head, magicGzip):
		return formatGzip
	case bytes.HasPrefix(head, magicZstd), len(head) >= 4 && head[0]&0xf0 == magicSkip[0] && bytes.Equal(head[1:4], magicSkip[1:]):
		return formatZstd
	case bytes.HasPrefix(head, magicXZ):
		return formatXZ
	}
	return formatTar
}

// maxWindow is the most memory, in bytes, that a compressed stream may ask a reader to keep. It is what zstd -d grants
// (--long needs to be told otherwise) and twice what xz -9 needs.
const maxWindow = 128 << 20

// zstdBlocks is how many blocks of a zstd stream, of up to 128 KiB each, are on their way at once. Three goroutines of the library share the work on
// one, literals, sequences, and what both make, and need one each, besides the block that waits for the next of them and the one that is read.
const zstdBlocks = 6

// Decompress returns the uncompressed bytes of r: gzip, zstd, xz, or r itself when it starts like none of them. Closing
// the result does not close r, of which more may be read than is wanted, until then.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	f, err := sniffReader(br)
	if err != nil {
		return nil, err
	}
	return decompressWide(br, f)
}

// sniffReader tells the format of what br is about to read.
func sniffReader(br *bufio.Reader) (format, error) {
	head, err := br.Peek(len(magicXZ))
	if err != nil && !errors.Is(err, io.EOF) {
		return formatTar, err
	}
	return sniff(head), nil
}

// decompressWide is decompress for who reads all, or much of it: on several cores, where that is faster.
func decompressWide(br *bufio.Reader, f format) (io.ReadCloser, error) {
	if f != formatGzip {
		return decompress(br, f)
	}
	z, err := inflate.OpenGzip(br)
	if err != nil {
		return nil, fmt.Errorf("read gzip: %w", err)
	}
	return z, nil
}

// decompress decompresses gzip on one core and without a goroutine, so that the result may be forgotten.
func decompress(br *bufio.Reader, f format) (io.ReadCloser, error) {
	switch f {
	case formatGzip:
		z, err := inflate.NewGzipReader(br)
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		return z, nil
	case formatZstd:
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(zstdBlocks))
		if err != nil {
			return nil, fmt.Errorf("read zstd: %w", err)
		}
		return z.IOReadCloser(), nil
	case formatXZ:
		z, err := xz.NewReader(br, maxWindow)
		if err != nil {
			return nil, fmt.Errorf("read xz: %w", err)
		}
		return io.NopCloser(z), nil
	default:
		return io.NopCloser(br), nil
	}
}
