package layer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// Open opens the content of the i-th entry, a regular file. In a layer made here only the chunks that hold it are
// decompressed; elsewhere everything before it must be, unless it lies behind what was read last.
func (ix *Index) Open(i int) (io.ReadCloser, error) {
	if i < 0 || i >= len(ix.Entries) {
		return nil, fmt.Errorf("the layer has no entry %d", i)
	}
	return ix.OpenContent(ix.Entries[i])
}

// OpenContent is [Index.Open] for a caller that keeps its own entries.
func (ix *Index) OpenContent(e IndexEntry) (io.ReadCloser, error) {
	if e.Type != Regular {
		return nil, fmt.Errorf("open %s: it is not a regular file", quotePath(e.Path))
	}
	if e.Size == 0 {
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	r, err := ix.open(e)
	if err != nil {
		return nil, fmt.Errorf("open %s in %s: %w", quotePath(e.Path), ix.from, err)
	}
	return r, nil
}

func (ix *Index) open(e IndexEntry) (io.ReadCloser, error) {
	if e.Sparse == 0 {
		return ix.section(e.Offset, e.Size)
	}
	r, err := ix.section(e.Offset, ix.RawSize-e.Offset)
	if err != nil {
		return nil, err
	}
	tr := newTarReader(bufio.NewReaderSize(r, 64<<10))
	for range e.Sparse {
		if _, err := tr.next(); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return readCloser{io.LimitReader(tr, e.Size), r.Close}, nil
}

var errBeyondEnd = errors.New("it lies beyond the end of the layer")

// section reads size bytes of the uncompressed tar.
func (ix *Index) section(at, size int64) (io.ReadCloser, error) {
	if at < 0 || size < 0 || at > ix.RawSize-size {
		return nil, errBeyondEnd
	}
	switch {
	case ix.format == formatTar:
		f, err := ix.from.open()
		if err != nil {
			return nil, err
		}
		return readCloser{&sectionReader{r: f, at: at, left: size}, f.Close}, nil
	case ix.chunks != nil:
		return &chunkReader{ix: ix, at: at, left: size}, nil
	default:
		return ix.streamFrom(at, size)
	}
}

// sectionReader is an io.SectionReader to which an early end is an error.
type sectionReader struct {
	r        io.ReaderAt
	at, left int64
}

func (s *sectionReader) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.r.ReadAt(p, s.at)
	s.at += int64(n)
	s.left -= int64(n)
	switch {
	case n > 0 && errors.Is(err, io.EOF), err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// stream is a decompressor at some point of the uncompressed tar. It owns no goroutine and its file closes itself when
// collected, so one may be forgotten.
type stream struct {
	r   io.Reader
	f   io.Closer
	pos int64
}

// freeRewinds is how often a decompressor may start again from the beginning before the uncompressed tar is written to
// a temporary file instead.
const freeRewinds = 2

// streamFrom reads from a layer that can only be decompressed from its beginning.
func (ix *Index) streamFrom(at, size int64) (io.ReadCloser, error) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	s := ix.stream
	ix.stream = nil
	if s == nil || s.pos > at {
		if s != nil {
			s.f.Close()
			ix.rewinds++
		}
		if ix.spill == nil && ix.rewinds > freeRewinds {
			ix.spill, _ = ix.spillOut() // without room for it, reading stays slow
		}
		if ix.spill != nil {
			return io.NopCloser(&sectionReader{r: ix.spill, at: at, left: size}), nil
		}
		var err error
		if s, err = ix.newStream(); err != nil {
			return nil, err
		}
	}
	if err := s.skipTo(at); err != nil {
		s.f.Close()
		return nil, err
	}
	c := &streamContent{ix: ix, s: s, left: size}
	return c, nil
}

func (s *stream) skipTo(at int64) error {
	n, err := io.CopyN(io.Discard, s.r, at-s.pos)
	s.pos += n
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (ix *Index) newStream() (*stream, error) {
	f, err := ix.from.open()
	if err != nil {
		return nil, err
	}
	br := bufio.NewReaderSize(f, 64<<10)
	if ix.format == formatZstd {
		// With a concurrency of one the decoder starts no goroutine that would have to be stopped.
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			f.Close()
			return nil, err
		}
		return &stream{r: z, f: f}, nil
	}
	r, err := decompress(br, ix.format)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &stream{r: r, f: f}, nil
}

// spillOut writes the uncompressed tar to a file without a name, which goes away with this process.
func (ix *Index) spillOut() (*os.File, error) {
	b, err := ix.from.open()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	r, err := decompressWide(bufio.NewReaderSize(b, 64<<10), ix.format)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	f, err := ix.from.scratch()
	if err != nil {
		return nil, err
	}
	if n, err := io.Copy(f, io.LimitReader(r, ix.RawSize)); err != nil || n != ix.RawSize {
		f.Close()
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	return f, nil
}

// streamContent is a file's content read from a stream; when it is closed the next file may go on from there.
type streamContent struct {
	ix   *Index
	s    *stream
	left int64
	bad  bool
}

func (c *streamContent) Read(p []byte) (int, error) {
	if c.s == nil {
		return 0, os.ErrClosed
	}
	if c.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.s.r.Read(p)
	c.s.pos += int64(n)
	c.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.bad = true
		return n, err
	}
	if n == 0 && err != nil {
		c.bad = true
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

func (c *streamContent) Close() error {
	if c.s == nil {
		return nil
	}
	s := c.s
	c.s = nil
	c.ix.mu.Lock()
	defer c.ix.mu.Unlock()
	if c.bad || c.ix.stream != nil && c.ix.stream.pos >= s.pos {
		return s.f.Close()
	}
	if c.ix.stream != nil {
		c.ix.stream.f.Close()
	}
	c.ix.stream = s
	return nil
}
