package squashfs

import (
	"encoding/binary"
	"errors"
	"math"
)

// A metaStream is a table that is written: metadata blocks, each with its length of 16 bits before it.
type metaStream struct {
	encoder blockEncoder
	done    []byte  // the blocks that are full
	blocks  []int64 // where each begins in done
	buf     []byte  // the block that is not full
}

func newMetaStream(e blockEncoder) *metaStream {
	return &metaStream{encoder: e, buf: make([]byte, 0, metadataSize)}
}

// at is where the next byte goes: the beginning of its block, and its place in the uncompressed block.
func (m *metaStream) at() (block int64, offset int) { return int64(len(m.done)), len(m.buf) }

// ref is the same in one number.
func (m *metaStream) ref() uint64 { return inodeRef(m.at()) }

func (m *metaStream) write(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), metadataSize-len(m.buf))
		m.buf = append(m.buf, p[:n]...)
		p = p[n:]
		if len(m.buf) == metadataSize {
			if err := m.endBlock(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *metaStream) endBlock() error {
	if len(m.buf) == 0 {
		return nil
	}
	const lengthSize = 2
	at := len(m.done)
	m.blocks = append(m.blocks, int64(at))
	m.done = append(m.done, 0, 0)
	out, ok, err := m.encoder.appendBlock(m.done, m.buf)
	if err != nil {
		return err
	}
	flag := 0
	if !ok {
		flag, out = metadataStored, m.done
		out = append(out, m.buf...)
	}
	m.done = out
	binary.LittleEndian.PutUint16(out[at:], uint16(len(out)-at-lengthSize|flag))
	m.buf = m.buf[:0]
	return nil
}

// tables are what stands behind the blocks of the files.
type tables struct {
	sink    *sink
	encoder blockEncoder
}

// stream writes a table that is one stream, and returns where it begins.
func (t *tables) stream(m *metaStream) (place uint64, err error) {
	if err := m.endBlock(); err != nil {
		return 0, err
	}
	place = uint64(t.sink.pos)
	return place, t.sink.write(m.done)
}

// indexed writes a table that is found by the places of its blocks: a stream, and behind it an array of these places, which
// may have something before it. It returns where that begins.
func (t *tables) indexed(content, before []byte) (place uint64, err error) {
	m := newMetaStream(t.encoder)
	if err := m.write(content); err != nil {
		return 0, err
	}
	begin, err := t.stream(m)
	if err != nil {
		return 0, err
	}
	for _, at := range m.blocks {
		before = binary.LittleEndian.AppendUint64(before, begin+uint64(at))
	}
	place = uint64(t.sink.pos)
	return place, t.sink.write(before)
}

func (t *tables) fragments(parts []fragmentEntry) (place uint64, err error) {
	if len(parts) == 0 {
		return noTable, nil
	}
	const entrySize = 16
	b := make([]byte, 0, entrySize*len(parts))
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint64(b, uint64(p.start))
		b = binary.LittleEndian.AppendUint32(b, p.size)
		b = binary.LittleEndian.AppendUint32(b, 0)
	}
	return t.indexed(b, nil)
}

// export writes where each inode stands, by its number: it is for NFS.
func (t *tables) export(refs []uint64) (place uint64, err error) {
	b := make([]byte, 0, 8*len(refs))
	for _, ref := range refs {
		b = binary.LittleEndian.AppendUint64(b, ref)
	}
	return t.indexed(b, nil)
}

// idTable collects the user and group ids, which inodes refer to by number.
type idTable struct {
	numbers map[uint32]uint16
	ids     []uint32
}

var errTooManyIDs = errors.New("more than 65535 different user and group ids: a squashfs cannot hold them")

func (t *idTable) number(id uint32) (uint16, error) {
	if n, ok := t.numbers[id]; ok {
		return n, nil
	}
	if len(t.ids) == math.MaxUint16 {
		return 0, errTooManyIDs
	}
	if t.numbers == nil {
		t.numbers = make(map[uint32]uint16)
	}
	n := uint16(len(t.ids))
	t.numbers[id] = n
	t.ids = append(t.ids, id)
	return n, nil
}

func (t *tables) ids(ids *idTable) (place uint64, err error) {
	b := make([]byte, 0, 4*len(ids.ids))
	for _, id := range ids.ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return t.indexed(b, nil)
}

// xattrs writes the attributes, then the lists of them, and then a header and the places of the lists' blocks.
func (t *tables) xattrs(x *xattrSet) (place uint64, err error) {
	if x.count == 0 {
		return noTable, nil
	}
	begin, err := t.stream(x.pairs)
	if err != nil {
		return 0, err
	}
	header := binary.LittleEndian.AppendUint64(nil, begin)
	header = binary.LittleEndian.AppendUint32(header, x.count)
	header = binary.LittleEndian.AppendUint32(header, 0)
	return t.indexed(x.lists, header)
}
