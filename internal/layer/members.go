package layer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/inflate"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// A layer that sconce has made and that went through a registry has come without its index. Its chunks show in its bytes: each is a member of
// gzip, and the first is never a long one, since each file's header stands before it in a chunk of its own. So one reading, which makes
// the index, finds them and the places in long ones where decoding can begin.

// FindChunks reads a layer of the store of which no index is known by which it can be read from anywhere, and returns one like that of
// [SeekableIndex], which is not kept. It is nil for a layer that is not made of chunks: that of most other programs is one stream, of
// which at most [ChunkSize] bytes are decompressed. The layer must be what d.DiffID, unless that is empty, promises.
func FindChunks(ctx context.Context, st *store.Store, d Descriptor) (*Index, error) {
	from := storedBlob{st, d.Digest}
	f, err := from.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := newMembers(ctxio.Reader(ctx, f))
	defer m.Close()
	if err := m.first(); err != nil {
		return nil, none(err)
	}
	task := progress.Begin(ctx, "index", d.Digest.Short(), d.Size)
	m.passed = func(n int64) { task.Add(n) }
	ix, err := m.index(ctx, from)
	if err == nil && ix.seekable() {
		err = ix.promised(d)
	} else if none(err) == nil {
		ix = nil
	}
	if task.End(none(err)) != nil {
		return nil, fmt.Errorf("read layer %s: %w", d.Digest.Short(), err)
	}
	return ix, nil
}

// Keep puts the index of a layer of the store into the store. In one that is only read it has no effect.
func (ix *Index) Keep(st *store.Store, d Descriptor) error {
	if st.ReadOnly() {
		return nil
	}
	return ix.record(st, d)
}

// IsOneChunk is whether a layer is a single chunk, as small layers of any program are.
func (ix *Index) IsOneChunk() bool { return len(ix.chunks) == 2 }

// maxMember bounds a member, in bytes of what it holds: for each [SeekSpacing] of it, 32 KiB are in memory until it ends. A larger file is
// read as that of any other program. Tests make it smaller.
var maxMember int64 = 4 << 30

// errNotChunks says that a layer is not made of chunks.
var errNotChunks = errors.New("not made of chunks")

// none is err unless that says that a layer is not made of chunks.
func none(err error) error {
	if errors.Is(err, errNotChunks) {
		return nil
	}
	return err
}

// members decompresses the members of a gzip file whose headers are as ours, one after the other, and notes where they are.
type members struct {
	src   *bufio.Reader
	z     *inflate.Reader
	begun []byte // of the first member, which has been read
	crc   uint32 // of the member so far
	raw   int64  // bytes of it
	marks []mark
	seeks seeks
	err   error // sticky, behind begun

	passed func(n int64) // is told how long each member was, in bytes
}

func newMembers(r io.Reader) *members {
	return &members{src: bufio.NewReaderSize(r, 64<<10), marks: []mark{{}}, seeks: seeks{}, passed: func(int64) {}}
}

// first reads the first member, which must be a chunk of at most ChunkSize bytes.
func (m *members) first() error {
	if err := m.begin(); err != nil {
		return err
	}
	buf := bytes.NewBuffer(make([]byte, 0, 64<<10))
	for len(m.marks) == 1 && m.err == nil {
		if m.raw > ChunkSize {
			return errNotChunks
		}
		if _, err := io.CopyN(buf, m, 64<<10); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	m.begun = buf.Bytes()
	return nil
}

// begin reads the header of a member. It returns io.EOF when there is none.
func (m *members) begin() error {
	head := make([]byte, len(gzipHeader))
	switch n, err := io.ReadFull(m.src, head); {
	case n == 0 && errors.Is(err, io.EOF) && len(m.marks) > 1:
		return io.EOF
	case n < len(head) && err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case !bytes.HasPrefix(head, plainMember):
		return errNotChunks
	}
	m.crc, m.raw = 0, 0
	if m.z == nil {
		m.z = new(inflate.Reader)
	}
	m.z.Reset(m.src, inflate.Options{Points: SeekSpacing})
	return nil
}

func (m *members) Read(p []byte) (int, error) {
	if len(m.begun) > 0 {
		n := copy(p, m.begun)
		m.begun = m.begun[n:]
		return n, nil
	}
	for m.err == nil {
		n, err := m.z.Read(p)
		m.crc = crc32.Update(m.crc, crc32.IEEETable, p[:n])
		m.raw += int64(n)
		if m.raw > maxMember {
			err = errNotChunks
		}
		if errors.Is(err, io.EOF) {
			if err = m.end(); err == nil {
				err = m.begin()
			}
		}
		m.err = err
		if n > 0 || len(p) == 0 {
			return n, nil
		}
	}
	return 0, m.err
}

// end checks the member that ended, and notes it.
func (m *members) end() error {
	var trailer [gzipTrailer]byte
	if _, err := io.ReadFull(m.src, trailer[:]); err != nil {
		return unexpected(err)
	}
	if binary.LittleEndian.Uint32(trailer[:]) != m.crc || binary.LittleEndian.Uint32(trailer[4:]) != uint32(m.raw) {
		return inflate.ErrGzipChecksum
	}
	if m.raw == 0 || len(m.marks) > maxChunks {
		return errNotChunks
	}
	if m.raw > ChunkSize {
		list := Deflated{Points: m.z.Points}.seekPoints(m.raw)
		if list == nil {
			return errNotChunks
		}
		m.seeks[len(m.marks)-1] = list
	}
	last, size := m.marks[len(m.marks)-1], int64(len(gzipHeader))+m.z.InputOffset()+gzipTrailer
	m.marks = append(m.marks, mark{last.blob + size, last.raw + m.raw})
	m.passed(size)
	return nil
}

// index reads all members as the tar of a layer.
func (m *members) index(ctx context.Context, from backing) (*Index, error) {
	hash := sha256.New()
	tar := newAhead(m, hash)
	defer tar.Close()
	ix := &Index{format: formatGzip, from: from}
	tr := newTarReader(tar)
	var err error
	if ix.Entries, err = readEntries(ctx, from, tr, func(IndexEntry, func() (io.ReadCloser, error)) error { return ctx.Err() }); err != nil {
		return nil, err
	}
	if ix.RawSize, err = tr.drain(); err != nil {
		return nil, err
	}
	if err := tar.Close(); err != nil {
		return nil, err
	}
	ix.DiffID, ix.chunks = store.SumDigest(hash), m.marks
	ix.seeks = func() (seeks, error) { return m.seeks, nil }
	return ix, nil
}

func (m *members) Close() error {
	if m.z == nil {
		return nil
	}
	return m.z.Close()
}
