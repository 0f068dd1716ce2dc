package inflate

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
)

// Point is a place between two blocks of a deflate stream. With what came out before it, decoding can begin there.
type Point struct {
	Out    int64  // bytes that come out before it
	Bit    int64  // its place in the stream, in bits
	Window []byte // the last bytes before it, up to 32 KiB; nil at the end of the stream
	CRC    uint32 // CRC-32 of what comes out between the point before, or the beginning, and this one
}

// points finds them while a stream is decoded.
type points struct {
	spacing int64
	out     int64  // bytes that came out
	last    int64  // of them, those before the last point
	crc     uint32 // of those behind it
}

// pass goes on behind what came out.
func (p *points) pass(b []byte) {
	p.crc = crc32.Update(p.crc, crc32.IEEETable, b)
	p.out += int64(len(b))
}

// due is whether there should be a point where a block ends.
func (p *points) due() bool { return p.out-p.last >= p.spacing }

// mark makes a point here, at a bit of the stream.
func (p *points) mark(bit int64, window []byte) Point {
	made := Point{Out: p.out, Bit: bit, Window: window, CRC: p.crc}
	p.last, p.crc = p.out, 0
	return made
}

// listed are the points of a Reader.
type listed struct {
	points
	list []Point
}

// take looks at what a step has added to the output.
func (l *listed) take(d *decoder, before int) {
	l.pass(d.dst[before:d.out])
	bit := 8*d.base + int64(d.bit())
	switch {
	case d.state == atEnd:
		l.list = append(l.list, l.mark(bit, nil))
	case d.state == atHeader && l.due():
		l.list = append(l.list, l.mark(bit, slices.Clone(d.dst[max(0, d.out-windowSize):d.out])))
	}
}

// Points returns the places that were noted, in order. The last one is the end of the stream, once that was read. It must be
// called before Close.
func (z *Reader) Points() []Point {
	if z.m == nil || z.m.notes == nil {
		return nil
	}
	return z.m.notes.list
}

// ErrChecksum is what a part of a stream ends in whose content is not what its point promises.
var ErrChecksum = errors.New("the content of a part of the stream is not what its checksum promises")

// DecodePart decompresses the part of a stream between two points, and returns its size bytes. window is that of the first point,
// src begins with the byte that holds its bit, counted from 0 in that byte, and crc is that of the second point.
func DecodePart(window, src []byte, bit, size int, crc uint32) ([]byte, error) {
	if size < 0 {
		return nil, ErrChecksum
	}
	d := decoders.Get().(*decoder)
	defer func() {
		d.start(nil, nil, nil)
		decoders.Put(d)
	}()
	dst := make([]byte, len(window)+size)
	d.start(dst, src, nil)
	d.out = copy(dst, window)
	err := d.seek(bit)
	for err == nil && d.state != atEnd && (d.state != atHeader || d.out < len(dst)) {
		err = d.step()
	}
	switch part := dst[len(window):]; {
	case errors.Is(err, io.ErrShortBuffer):
		return nil, fmt.Errorf("it is longer than %d bytes: %w", size, ErrChecksum)
	case err != nil:
		return nil, err
	case d.out != len(dst) || crc32.ChecksumIEEE(part) != crc:
		return nil, ErrChecksum
	default:
		return part, nil
	}
}
