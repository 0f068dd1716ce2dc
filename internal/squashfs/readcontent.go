package squashfs

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
)

// Content reads a regular file. ReadAt may be called by several at once; Read, Seek and WriteTo share a position.
type Content struct {
	f   *File
	pos int64
}

var (
	_ io.ReaderAt   = (*Content)(nil)
	_ io.ReadSeeker = (*Content)(nil)
	_ io.WriterTo   = (*Content)(nil)
)

// Content returns a reader of a regular file's bytes. That of a directory or symlink fails when it is read; devices, pipes and
// sockets have no bytes.
func (f *File) Content() *Content { return &Content{f: f} }

// Size is the length in bytes.
func (c *Content) Size() int64 { return c.f.Size }

// ReadAt reads from a place of the file, decompressing only the blocks that p touches.
func (c *Content) ReadAt(p []byte, off int64) (int, error) {
	switch f := c.f; {
	case f.Type == Dir:
		return 0, syscall.EISDIR
	case f.Type == Symlink, off < 0:
		return 0, syscall.EINVAL
	case off >= f.Size:
		return 0, io.EOF
	}
	n := 0
	for n < len(p) && off < c.f.Size {
		m, err := c.readSome(p[n:], off)
		if err != nil {
			return n, err
		}
		n, off = n+m, off+int64(m)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readSome reads at most to the end of a block: straight into p if that has room for all of the block.
func (c *Content) readSome(p []byte, off int64) (int, error) {
	f, size := c.f, int64(c.f.r.super.BlockSize)
	i, skip := off/size, int(off%size)
	n := f.partSize(i)
	if skip == 0 && n <= len(p) && i < f.contents.count {
		return n, f.readPart(i, p[:n:n])
	}
	b, err := f.part(i)
	if err != nil {
		return 0, err
	}
	if b == nil {
		n = min(n-skip, len(p))
		clear(p[:n])
		return n, nil
	}
	return copy(p, b[skip:]), nil
}

// Read implements io.Reader.
func (c *Content) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.ReadAt(p, c.pos)
	c.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Seek implements io.Seeker.
func (c *Content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += c.pos
	case io.SeekEnd:
		offset += c.f.Size
	default:
		return 0, fmt.Errorf("seek from %d: %w", whence, syscall.EINVAL)
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek to %d: %w", offset, syscall.EINVAL)
	}
	c.pos = offset
	return offset, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// pieceSize is about how much one goroutine decompresses before it is written, in bytes.
const pieceSize = 256 << 10

// maxAhead is how many pieces are decompressed ahead at most, whatever the number of processors.
const maxAhead = 32

// WriteTo writes the rest of the file to w. Blocks are decompressed ahead, in parallel.
func (c *Content) WriteTo(w io.Writer) (int64, error) {
	if _, err := c.ReadAt(nil, c.pos); err != nil {
		return 0, noEOF(err)
	}
	size := int64(c.f.r.super.BlockSize)
	a := &ahead{f: c.f, span: max(pieceSize/size, 1), next: c.pos / size}
	defer a.stop()
	skip := int(c.pos % size)
	written := int64(0)
	for {
		b, err := a.piece()
		if err != nil || b == nil {
			return written, err
		}
		n, err := w.Write(b[skip:])
		if err == nil && n < len(b)-skip {
			err = io.ErrShortWrite
		}
		written, c.pos, skip = written+int64(n), c.pos+int64(n), 0
		if err != nil {
			return written, err
		}
	}
}

// ahead decompresses the parts of a file in order, several pieces at once.
type ahead struct {
	f     *File
	span  int64 // parts of a piece
	next  int64 // the part that the next piece begins with
	queue []chan aheadPiece
	free  [][]byte
	last  []byte // what was handed out
}

type aheadPiece struct {
	data []byte
	err  error
}

// piece returns the next piece, which is good until the next call, or nil after the last.
func (a *ahead) piece() ([]byte, error) {
	if a.last != nil {
		a.free, a.last = append(a.free, a.last), nil
	}
	depth := min(runtime.GOMAXPROCS(0)+1, maxAhead)
	for len(a.queue) < depth && a.next < a.f.parts() {
		a.start()
	}
	if len(a.queue) == 0 {
		return nil, nil
	}
	p := <-a.queue[0]
	a.queue = a.queue[1:]
	a.last = p.data
	return p.data, p.err
}

// start begins to decompress a piece; the only one of a file without a goroutine.
func (a *ahead) start() {
	first, end := a.next, min(a.next+a.span, a.f.parts())
	a.next = end
	done := make(chan aheadPiece, 1)
	a.queue = append(a.queue, done)
	b := a.memory(int(min((end-first)*int64(a.f.r.super.BlockSize), a.f.Size-first*int64(a.f.r.super.BlockSize))))
	load := func() { done <- aheadPiece{b, a.f.readParts(first, end, b)} }
	if len(a.queue) == 1 && end == a.f.parts() {
		load()
		return
	}
	go load()
}

func (a *ahead) memory(n int) []byte {
	if k := len(a.free); k > 0 && cap(a.free[k-1]) >= n {
		b := a.free[k-1]
		a.free = a.free[:k-1]
		return b[:n]
	}
	return make([]byte, n)
}

// stop waits for what is under way.
func (a *ahead) stop() {
	for _, done := range a.queue {
		<-done
	}
}

// readParts decompresses the parts from first to before end into p.
func (f *File) readParts(first, end int64, p []byte) error {
	for i := first; i < end; i++ {
		n := f.partSize(i)
		if err := f.readPart(i, p[:n:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}
