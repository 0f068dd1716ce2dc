package layer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sort"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/inflate"
	"sconce.dev/sconce/internal/store"
)

// A chunk of more than [ChunkSize] bytes is a file that somebody else has compressed as one stream. So that it can be read from the
// middle, the places in it are kept where decoding can begin, with the 32 KiB that matches may reach back into. They lie in a blob of
// their own, since few readers of an index need them:
//
//	seekMagic
//	length of the table, then the table, compressed with zstd: numbers as varints
//	    count of chunks, then each: number  count of points
//	        of each point: bytes of content and bits of the chunk since the point before,
//	                       CRC-32 of that content, length of the window as stored
//	the windows, each compressed with zstd, in this order
const seekMagic = "sconce layer points 1\n"

// seeks are the points of long chunks by the chunks' numbers.
type seeks map[int][]seekPoint

// seekPoint is a place in a chunk where decoding can begin, or its end.
type seekPoint struct {
	raw, bit int64  // what is before it: bytes of content, bits of the chunk
	crc      uint32 // of the content since the point before
	window   []byte // compressed; nil for one that is in the store
	at       int64  // of the window in the points' blob
	size     int    // of the window as stored
}

const (
	// SeekSpacing is how far apart points should be at least, in bytes of content. What is nearer costs the store room (about 20 KB
	// for each), and what is farther apart time for each read.
	SeekSpacing = 1 << 20
	// maxPart is the most content between two points: a compressor may make blocks of any length.
	maxPart      = 16 << 20
	maxSeekTable = 64 << 20 // bytes of a table, before and after decompression
	maxWindowLen = 64 << 10 // bytes of a window, compressed
	windowLen    = 32 << 10 // RFC 1951, section 2
)

// seekPoints are the points of the stream as a member, nil when it has none that are of use.
func (d Deflated) seekPoints(size int64) []seekPoint {
	if d.stored != nil {
		return d.stored()
	}
	if d.Points == nil {
		return nil
	}
	return packPoints(d.Points(), size)
}

// packPoints makes the points of a chunk of those of the deflate stream in it, which has size bytes of content. It returns nil when they are
// too far apart.
func packPoints(points []inflate.Point, size int64) []seekPoint {
	list := make([]seekPoint, len(points))
	last := int64(0)
	for i, p := range points {
		list[i] = seekPoint{raw: p.Out, bit: p.Bit + 8*int64(len(gzipHeader)), crc: p.CRC}
		if p.Out-last > maxPart {
			return nil
		}
		last = p.Out
	}
	if last != size || packWindows(list, points) != nil {
		return nil
	}
	return list
}

// packWindows compresses the windows of points, several at once.
func packWindows(list []seekPoint, points []inflate.Point) error {
	var g errgroup.Group
	workers := min(runtime.GOMAXPROCS(0), len(points))
	for first := range workers {
		g.Go(func() error {
			for i := first; i < len(points); i += workers {
				if points[i].Window == nil {
					continue
				}
				packed, err := compressZstd(nil, points[i].Window)
				if err != nil {
					return err
				}
				list[i].window, list[i].size = packed, len(packed)
			}
			return nil
		})
	}
	return g.Wait()
}

func (s seeks) encode() ([]byte, error) {
	table := binary.AppendUvarint(nil, uint64(len(s)))
	var windows []byte
	for _, number := range slices.Sorted(maps.Keys(s)) {
		table = binary.AppendUvarint(table, uint64(number))
		table = binary.AppendUvarint(table, uint64(len(s[number])))
		var last seekPoint
		for _, p := range s[number] {
			for _, v := range []int64{p.raw - last.raw, p.bit - last.bit, int64(p.crc), int64(len(p.window))} {
				table = binary.AppendUvarint(table, uint64(v))
			}
			windows = append(windows, p.window...)
			last = p
		}
	}
	packed, err := compressZstd(nil, table)
	if err != nil {
		return nil, err
	}
	return slices.Concat(binary.AppendUvarint([]byte(seekMagic), uint64(len(packed))), packed, windows), nil
}

// saveSeeks stores the points of a layer, if it has any.
func (ix *Index) saveSeeks(st *store.Store) (store.Digest, error) {
	if ix.seeks == nil {
		return "", nil
	}
	s, err := ix.seeks()
	if err != nil || len(s) == 0 {
		return "", err
	}
	data, err := s.encode()
	if err != nil {
		return "", err
	}
	return st.PutBlob(data)
}

// storedSeeks returns what reads the points in a blob, once.
func storedSeeks(st *store.Store, blob store.Digest) func() (seeks, error) {
	return sync.OnceValues(func() (seeks, error) {
		f, err := st.OpenBlob(blob)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		s, err := readSeeks(f)
		if err != nil {
			return nil, fmt.Errorf("read the points of a layer: %w", err)
		}
		return s, nil
	})
}

var errSeeks = errors.New("they are damaged")

func readSeeks(f io.Reader) (seeks, error) {
	r := bufio.NewReader(f)
	magic := make([]byte, len(seekMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != seekMagic {
		return nil, errSeeks
	}
	size, err := binary.ReadUvarint(r)
	if err != nil || size > maxSeekTable {
		return nil, errSeeks
	}
	packed := make([]byte, size)
	if _, err := io.ReadFull(r, packed); err != nil {
		return nil, errSeeks
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSeekTable))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	table, err := z.DecodeAll(packed, nil)
	if err != nil {
		return nil, errSeeks
	}
	d := indexDecoding{rest: string(table)}
	at := int64(len(seekMagic)) + int64(len(binary.AppendUvarint(nil, size))) + int64(size)
	s := d.seeks(at)
	if d.bad || d.rest != "" {
		return nil, errSeeks
	}
	return s, nil
}

// seeks reads a table of points whose windows begin at a place of the blob.
func (d *indexDecoding) seeks(at int64) seeks {
	s := seeks{}
	for range d.number(maxChunks) {
		number, count := int(d.number(maxChunks)), d.number(maxRawSize/SeekSpacing)
		var last seekPoint
		for range count {
			p := seekPoint{raw: last.raw + int64(d.number(maxPart)), bit: last.bit + int64(d.number(8*maxRawSize)), crc: uint32(d.number(1<<32 - 1))}
			p.at, p.size = at, int(d.number(maxWindowLen))
			if d.bad {
				return nil
			}
			at += int64(p.size)
			s[number] = append(s[number], p)
			last = p
		}
	}
	return s
}

// seekPoints returns the points of a long chunk, nil when there are none that lead to its end.
func (ix *Index) seekPoints(number int) ([]seekPoint, error) {
	if ix.seeks == nil {
		return nil, nil
	}
	s, err := ix.seeks()
	if err != nil {
		return nil, err
	}
	list := s[number]
	if len(list) == 0 || list[len(list)-1].raw != ix.rawLen(number) || list[len(list)-1].bit > 8*(ix.chunks[number+1].blob-ix.chunks[number].blob) {
		return nil, nil
	}
	return list, nil
}

// part is what lies between two points of a chunk.
type part struct {
	raw, bit, endRaw, endBit int64
	crc                      uint32
	from                     *seekPoint // where its window is; nil: it is the first
}

// partAt returns the number of the part that holds a byte of the content.
func partAt(list []seekPoint, at int64) int {
	return sort.Search(len(list), func(i int) bool { return list[i].raw > at })
}

func partOf(list []seekPoint, i int) part {
	p := part{bit: 8 * int64(len(gzipHeader)), endRaw: list[i].raw, endBit: list[i].bit, crc: list[i].crc}
	if i > 0 {
		p.raw, p.bit, p.from = list[i-1].raw, list[i-1].bit, &list[i-1]
	}
	return p
}

// readPart decompresses a part of a long chunk.
func (ix *Index) readPart(f io.ReaderAt, number int, p part) ([]byte, error) {
	if p.endRaw-p.raw > maxPart || p.endBit < p.bit || p.endBit-p.bit > 8*2*maxPart {
		return nil, errSeeks
	}
	window, err := ix.window(p.from)
	if err != nil {
		return nil, err
	}
	first, end := p.bit/8, (p.endBit+7)/8
	src := make([]byte, end-first)
	if n, err := f.ReadAt(src, ix.chunks[number].blob+first); n < len(src) {
		return nil, unexpected(err)
	}
	return inflate.DecodePart(window, src, int(p.bit%8), int(p.endRaw-p.raw), p.crc)
}

// window reads the bytes before a point.
func (ix *Index) window(p *seekPoint) ([]byte, error) {
	if p == nil {
		return nil, nil
	}
	packed, err := ix.packedWindow(*p)
	if err != nil {
		return nil, err
	}
	z, err := chunkDecoder()
	if err != nil {
		return nil, err
	}
	window, err := z.DecodeAll(packed, make([]byte, 0, windowLen))
	if err == nil && len(window) > windowLen {
		err = errSeeks
	}
	return window, err
}

func (ix *Index) packedWindow(p seekPoint) ([]byte, error) {
	if p.window != nil || p.size == 0 {
		return p.window, nil
	}
	f, err := ix.pointsBlob()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	packed := make([]byte, p.size)
	if n, err := f.ReadAt(packed, p.at); n < len(packed) {
		return nil, unexpected(err)
	}
	return packed, nil
}

// keptPoints are the points of a chunk that is passed on as it is, with their windows; nil when there are none.
func (ix *Index) keptPoints(number int) []seekPoint {
	list, err := ix.seekPoints(number)
	if err != nil || list == nil {
		return nil
	}
	list = slices.Clone(list)
	for i := range list {
		if list[i].window, err = ix.packedWindow(list[i]); err != nil {
			return nil
		}
	}
	return list
}
