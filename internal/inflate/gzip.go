package inflate

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// What a gzip file that is not one, or that is damaged, ends in, besides the errors of a [Reader].
var (
	ErrGzipHeader   = errors.New("no gzip header where one should be")
	ErrGzipChecksum = errors.New("the content of the gzip file is not what its checksum or size promises")
)

// A GzipReader decompresses a gzip file (RFC 1952): all its members, one after the other. Nothing but members may be in
// the file. It is not safe for concurrent use.
type GzipReader struct {
	src  *bufio.Reader
	z    *Reader
	crc  uint32 // of the member so far
	size uint32 // of it, modulo 2^32
	err  error  // sticky
}

// gzipTrailer is the length of what follows a member's deflate stream, in bytes: checksum and size (RFC 1952 section 2.3).
const gzipTrailer = 8

// gzipBuffer is how many bytes a GzipReader reads at once.
const gzipBuffer = 64 << 10

// NewGzipReader makes a GzipReader of r, from which it may read ahead, and reads the first member's header.
func NewGzipReader(r io.Reader) (*GzipReader, error) {
	src, ok := r.(*bufio.Reader)
	if !ok {
		src = bufio.NewReaderSize(r, gzipBuffer)
	}
	g := &GzipReader{src: src}
	if err := readGzipHeader(src); err != nil {
		return nil, noEOF(err)
	}
	g.z = NewReader(src, Options{})
	return g, nil
}

// Read reads up to len(p) decompressed bytes. They are checked at the end of each member.
func (g *GzipReader) Read(p []byte) (int, error) {
	for g.err == nil {
		n, err := g.z.Read(p)
		g.crc = crc32.Update(g.crc, crc32.IEEETable, p[:n])
		g.size += uint32(n)
		if errors.Is(err, io.EOF) {
			err = g.nextMember()
		}
		g.err = err
		if n > 0 || len(p) == 0 {
			return n, g.err
		}
	}
	return 0, g.err
}

// Close makes g give up its memory. It does not close the source.
func (g *GzipReader) Close() error {
	if g.err == nil {
		g.err = errClosed
	}
	return g.z.Close()
}

// nextMember checks the member that ended and goes to the next one. It returns io.EOF when there is none.
func (g *GzipReader) nextMember() error {
	var trailer [gzipTrailer]byte
	if _, err := io.ReadFull(g.src, trailer[:]); err != nil {
		return noEOF(err)
	}
	if binary.LittleEndian.Uint32(trailer[:]) != g.crc || binary.LittleEndian.Uint32(trailer[4:]) != g.size {
		return ErrGzipChecksum
	}
	if err := readGzipHeader(g.src); err != nil {
		return err
	}
	g.crc, g.size = 0, 0
	g.z.Reset(g.src, Options{})
	return nil
}

// Flags of a member's header (RFC 1952 section 2.3.1), those that say what it has.
const (
	gzipHeaderCRC = 1 << 1
	gzipExtra     = 1 << 2
	gzipName      = 1 << 3
	gzipComment   = 1 << 4
	gzipReserved  = 1<<5 | 1<<6 | 1<<7 // must be 0
)

// byteSource is where gzip headers are read from.
type byteSource interface {
	io.Reader
	io.ByteReader
}

// readGzipHeader reads a member's header. It returns io.EOF when there is nothing at all.
func readGzipHeader(src byteSource) error {
	var fixed [10]byte
	if _, err := io.ReadFull(src, fixed[:]); err != nil {
		return err // io.EOF only of nothing
	}
	flags := fixed[3]
	if fixed[0] != 0x1f || fixed[1] != 0x8b || fixed[2] != 8 || flags&gzipReserved != 0 {
		return ErrGzipHeader
	}
	crc := crc32.ChecksumIEEE(fixed[:])
	next := func() (byte, error) {
		b, err := src.ReadByte()
		crc = crc32.Update(crc, crc32.IEEETable, []byte{b})
		return b, noEOF(err)
	}
	return skipOptional(flags, next, &crc)
}

// skipOptional reads what the flags say that a header has, which is of no use, in the order of RFC 1952 section 2.3.
func skipOptional(flags byte, next func() (byte, error), crc *uint32) error {
	if flags&gzipExtra != 0 {
		n, err := nextNumber(next)
		for ; n > 0 && err == nil; n-- {
			_, err = next()
		}
		if err != nil {
			return err
		}
	}
	for _, text := range []byte{gzipName, gzipComment} {
		for flags&text != 0 {
			b, err := next()
			if err != nil {
				return err
			}
			if b == 0 {
				break
			}
		}
	}
	if flags&gzipHeaderCRC != 0 {
		want := uint16(*crc)
		got, err := nextNumber(next)
		if err != nil {
			return err
		}
		if got != want {
			return ErrGzipHeader
		}
	}
	return nil
}

func nextNumber(next func() (byte, error)) (uint16, error) {
	low, err := next()
	if err != nil {
		return 0, err
	}
	high, err := next()
	return uint16(low) | uint16(high)<<8, err
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
