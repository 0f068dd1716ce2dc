package layer

import (
	"fmt"
	"io"
)

// RandomReader reads a file's content in any order. Its ReadAt may be called by several at once.
type RandomReader interface {
	io.ReaderAt
	io.Closer
}

// OpenAt opens the content of a regular file to be read in any order, where that costs no more than what is read and a
// little around it: in an uncompressed tar and in chunks. It returns nil for all other files, which [Index.OpenContent]
// reads from beginning to end: those in foreign compressed layers, in a chunk of more than [ChunkSize] bytes, or stored
// with holes.
func (ix *Index) OpenAt(e IndexEntry) (RandomReader, error) {
	if e.Type != Regular || e.Sparse != 0 || e.Size == 0 {
		return nil, nil
	}
	r, err := ix.openAt(e.Offset, e.Size)
	if err != nil {
		return nil, fmt.Errorf("open %s in %s: %w", quotePath(e.Path), ix.from, err)
	}
	return r, nil
}

func (ix *Index) openAt(at, size int64) (RandomReader, error) {
	switch {
	case at < 0 || size < 0 || at > ix.RawSize-size:
		return nil, errBeyondEnd
	case ix.format == formatTar:
		f, err := ix.from.open()
		if err != nil {
			return nil, err
		}
		return randomReader{io.NewSectionReader(f, at, size), f.Close}, nil
	case ix.chunks != nil && ix.shortChunks(at, size):
		return randomReader{io.NewSectionReader(chunkReaderAt{ix}, at, size), func() error { return nil }}, nil
	}
	return nil, nil
}

// shortChunks reports whether all chunks that hold size bytes, at least one, of the uncompressed tar can be decompressed
// whole.
func (ix *Index) shortChunks(at, size int64) bool {
	first, last := ix.chunkAt(at), ix.chunkAt(at+size-1)
	if first < 0 || last < 0 {
		return false
	}
	for i := first; i <= last; i++ {
		if ix.rawLen(i) > ChunkSize {
			return false
		}
	}
	return true
}

type randomReader struct {
	io.ReaderAt
	end func() error
}

func (r randomReader) Close() error { return r.end() }

// chunkReaderAt reads the uncompressed tar of a layer that is made of chunks.
type chunkReaderAt struct{ ix *Index }

func (c chunkReaderAt) ReadAt(p []byte, off int64) (int, error) {
	r := chunkReader{ix: c.ix, at: off, left: int64(len(p))}
	n, err := io.ReadFull(&r, p)
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	return n, err
}
