package layer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
	if begins, err := beginsWithChunk(io.NewSectionReader(f, 0, 2*ChunkSize)); err != nil || !begins {
		return nil, err
	}
	task := progress.Begin(ctx, "index", d.Digest.Short(), d.Size)
	ix, err := readMembers(ctx, from, io.TeeReader(f, task))
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

// beginsWithChunk is whether what r starts with may be a chunk of at most ChunkSize bytes. What is wrong with it shows when it is read.
func beginsWithChunk(r io.Reader) (bool, error) {
	head := make([]byte, len(gzipHeader))
	_, err := ctxio.Fill(r, head)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return false, err
	case err != nil || !bytes.HasPrefix(head, plainMember):
		return false, nil
	}
	z := inflate.NewReader(r, inflate.Options{ReadAhead: true})
	defer z.Close()
	n, _ := io.CopyN(io.Discard, z, ChunkSize+1)
	return n <= ChunkSize, nil
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
	if errors.Is(err, errNotChunks) || errors.Is(err, inflate.ErrNotPlain) {
		return nil
	}
	return err
}

// members are the chunks of a layer, noted while it is read.
type members struct {
	marks  []mark
	seeks  seeks
	points []inflate.Point // of the member so far
}

// point notes a place in a member.
func (m *members) point(p inflate.Point) error {
	if p.Out > maxMember {
		return errNotChunks
	}
	m.points = append(m.points, p)
	return nil
}

// member notes a member that has ended.
func (m *members) member(stream, content int64) error {
	if content == 0 || len(m.marks) > maxChunks {
		return errNotChunks
	}
	if content > ChunkSize {
		list := packPoints(m.points, content)
		if list == nil {
			return errNotChunks
		}
		m.seeks[len(m.marks)-1] = list
	}
	last := m.marks[len(m.marks)-1]
	m.marks = append(m.marks, mark{last.blob + int64(len(gzipHeader)) + stream + gzipTrailer, last.raw + content})
	clear(m.points) // their windows are large
	m.points = m.points[:0]
	return nil
}

// readMembers reads all members as the tar of a layer.
func readMembers(ctx context.Context, from backing, r io.Reader) (*Index, error) {
	m := &members{marks: []mark{{}}, seeks: seeks{}}
	z, err := inflate.OpenMembers(ctxio.Reader(ctx, r), inflate.Members{Spacing: SeekSpacing, Point: m.point, Member: m.member})
	if err != nil {
		return nil, err
	}
	defer z.Close()
	hash := sha256.New()
	tar := newAhead(z, hash)
	defer tar.Close()
	ix := &Index{format: formatGzip, from: from}
	tr := newTarReader(tar)
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
