package squashfs

import (
	"encoding/binary"
	"fmt"
)

// metaTable is the part of a file system that holds one table's metadata blocks.
type metaTable struct{ start, end int64 }

// metaChunk is a metadata block, decompressed.
type metaChunk struct {
	data []byte // never changed
	next int64  // the place after it
}

// chunk returns the metadata block at a place, which must end before end.
func (r *Reader) chunk(place, end int64) (metaChunk, error) {
	c, err := r.metaCache.Get(place, func(place int64) (metaChunk, int64, error) {
		c, err := r.loadChunk(place, r.end())
		return c, int64(cap(c.data)) + metaOverhead, err
	})
	if err == nil && c.next > end {
		return metaChunk{}, formatError("metadata block at %d reaches beyond its table", place)
	}
	return c, err
}

// metaOverhead is about what it costs to remember a metadata block, in bytes.
const metaOverhead = 256

// loadChunk reads and decompresses a metadata block: two bytes of length and flag, then the data.
func (r *Reader) loadChunk(place, end int64) (metaChunk, error) {
	if place < superblockSize || place > end-3 {
		return metaChunk{}, formatError("metadata block at %d, outside of the file system or its table", place)
	}
	var room [2 + metadataSize]byte
	b := room[:min(end-place, int64(len(room)))]
	if err := r.readAt(b, place); err != nil {
		return metaChunk{}, err
	}
	head := binary.LittleEndian.Uint16(b)
	n := int(head &^ metadataStored)
	if n == 0 || n > len(b)-2 {
		return metaChunk{}, formatError("metadata block at %d of %d bytes", place, n)
	}
	packed, next := b[2:2+n], place+2+int64(n)
	if head&metadataStored != 0 {
		return metaChunk{append([]byte(nil), packed...), next}, nil
	}
	data := make([]byte, metadataSize)
	m, err := r.expand(data, packed)
	if err == nil && m == 0 {
		err = errEmpty
	}
	if err != nil {
		return metaChunk{}, fmt.Errorf("%w: metadata block at %d: %w", ErrFormat, place, err)
	}
	return metaChunk{data[:m], next}, nil
}

// metaCursor reads the stream that a table's metadata blocks make.
type metaCursor struct {
	r       *Reader
	table   metaTable
	place   int64 // of the block that is read
	chunk   metaChunk
	offset  int // in the block
	scratch [64]byte
}

// cursor begins at an offset of the metadata block that is at place block of a table.
func (r *Reader) cursor(t metaTable, block int64, offset int) (*metaCursor, error) {
	if block < 0 || block >= t.end-t.start {
		return nil, formatError("reference to metadata block %d of a table of %d bytes", block, t.end-t.start)
	}
	c := &metaCursor{r: r, table: t, place: t.start + block, offset: offset}
	var err error
	if c.chunk, err = r.chunk(c.place, t.end); err != nil {
		return nil, err
	}
	if offset < 0 || offset > len(c.chunk.data) {
		return nil, formatError("reference to byte %d of a metadata block of %d", offset, len(c.chunk.data))
	}
	return c, nil
}

// more returns what is left of the current block, or the next block.
func (c *metaCursor) more() ([]byte, error) {
	if c.offset < len(c.chunk.data) {
		return c.chunk.data[c.offset:], nil
	}
	next := c.chunk.next
	if next >= c.table.end {
		return nil, formatError("a table ends at %d in the middle of something", c.table.end)
	}
	chunk, err := c.r.chunk(next, c.table.end)
	if err != nil {
		return nil, err
	}
	c.place, c.chunk, c.offset = next, chunk, 0
	return chunk.data, nil
}

// read fills p.
func (c *metaCursor) read(p []byte) error {
	for len(p) > 0 {
		b, err := c.more()
		if err != nil {
			return err
		}
		n := copy(p, b)
		p, c.offset = p[n:], c.offset+n
	}
	return nil
}

// fixed returns the next n bytes, at most the 64 of the scratch space, until the next call.
func (c *metaCursor) fixed(n int) ([]byte, error) {
	if len(c.chunk.data)-c.offset >= n {
		b := c.chunk.data[c.offset : c.offset+n]
		c.offset += n
		return b, nil
	}
	b := c.scratch[:n]
	return b, c.read(b)
}

// bytes returns the next n bytes. The memory grows with what is there, not with what is asked for.
func (c *metaCursor) bytes(n int64) ([]byte, error) {
	out := make([]byte, 0, min(n, metadataSize))
	for int64(len(out)) < n {
		b, err := c.more()
		if err != nil {
			return nil, err
		}
		b = b[:min(int64(len(b)), n-int64(len(out)))]
		out, c.offset = append(out, b...), c.offset+len(b)
	}
	return out, nil
}

// block is the current block's place in the table, as references name it.
func (c *metaCursor) block() int64 { return c.place - c.table.start }

// tableIndex reads the places of the metadata blocks of a table of n entries of size bytes. They stand as they are at place.
func (r *Reader) tableIndex(place uint64, n, size int64) ([]int64, error) {
	blocks := (n*size + metadataSize - 1) / metadataSize
	if blocks == 0 {
		return nil, nil
	}
	if place < superblockSize || place > r.super.BytesUsed || blocks*8 > r.end()-int64(place) {
		return nil, formatError("table of %d entries at %d of %d bytes", n, place, r.super.BytesUsed)
	}
	b := make([]byte, blocks*8)
	if err := r.readAt(b, int64(place)); err != nil {
		return nil, err
	}
	places := make([]int64, blocks)
	for i := range places {
		p := binary.LittleEndian.Uint64(b[i*8:])
		if p < superblockSize || p >= place {
			return nil, formatError("table at %d has a metadata block at %d", place, p)
		}
		places[i] = int64(p)
	}
	return places, nil
}

// tableEntry reads the n-th entry of size bytes of a table with an index. A block holds a whole number of them.
func (r *Reader) tableEntry(places []int64, n, size int64) ([]byte, error) {
	chunk, err := r.chunk(places[n*size/metadataSize], r.end())
	if err != nil {
		return nil, err
	}
	at := n * size % metadataSize
	if at+size > int64(len(chunk.data)) {
		return nil, formatError("metadata block of %d bytes is too short for its table", len(chunk.data))
	}
	return chunk.data[at : at+size], nil
}
