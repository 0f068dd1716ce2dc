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

// points collects them while a stream is decoded.
type points struct {
	spacing int64
	list    []Point
	out     int64
	crc     uint32
}

// take looks at what a step has added to the output.
func (p *points) take(d *decoder, before int) {
	added := d.dst[before:d.out]
	p.crc = crc32.Update(p.crc, crc32.IEEETable, added)
	p.out += int64(len(added))
	switch {
	case d.state == atEnd:
		p.add(d, nil)
	case d.state == atHeader && p.out-p.last() >= p.spacing:
		p.add(d, slices.Clone(d.dst[max(0, d.out-windowSize):d.out]))
	}
}

func (p *points) last() int64 {
	if len(p.list) == 0 {
		return 0
	}
	return p.list[len(p.list)-1].Out
}

func (p *points) add(d *decoder, window []byte) {
	p.list = append(p.list, Point{Out: p.out, Bit: 8*d.base + int64(d.bit()), Window: window, CRC: p.crc})
	p.crc = 0
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
