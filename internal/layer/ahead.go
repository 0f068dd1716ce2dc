package layer

import (
	"bufio"
	"context"
	"errors"
	"hash"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"sconce.dev/sconce/internal/ctxio"
)

// How many buffers an aheadReader holds at most: so many for each core, but not fewer than a few; and the bytes of each. Whoever hashes and whoever
// reads fall behind by turns, one of them at large files and the other at many small ones. With many cores the slowest of all is what a layer
// waits for, so it is never to wait for another: 64 cores were a twelfth slower with eight buffers (docs/results/scale-2026-11-26.md).
const (
	aheadPerCore = 4
	aheadFewest  = 8
	aheadSize    = 256 << 10
)

// aheadReader reads from another reader in a goroutine of its own, so that decompressing overlaps with what is done with
// the result. A third one hashes what was read.
type aheadReader struct {
	full    chan *piece
	hashing chan *piece // nil when nothing is to be hashed
	empty   chan *piece
	unmade  int // buffers that there may be besides
	stop    chan struct{}
	once    sync.Once
	cur     []byte // what is left of buf
	buf     *piece
	err     error // set before full is closed; io.EOF at the end
	ended   sync.WaitGroup
}

// piece is a part of what was read.
type piece struct {
	data  []byte
	users atomic.Int32 // that still read data
}

// newAhead starts to read r. What is read is also given to sum, unless that is nil; sum may be asked after Close.
func newAhead(r io.Reader, sum hash.Hash) *aheadReader {
	most := max(aheadFewest, aheadPerCore*runtime.GOMAXPROCS(0))
	a := &aheadReader{full: make(chan *piece, most), empty: make(chan *piece, most), unmade: most, stop: make(chan struct{})}
	if sum != nil {
		a.hashing = make(chan *piece, most)
		a.ended.Go(func() { a.sumUp(sum) })
	}
	a.ended.Go(func() { a.fill(r) })
	return a
}

func (a *aheadReader) fill(r io.Reader) {
	defer close(a.full)
	if a.hashing != nil {
		defer close(a.hashing)
	}
	for {
		p := a.buffer()
		if p == nil {
			a.err = os.ErrClosed
			return
		}
		n, err := ctxio.Fill(r, p.data[:cap(p.data)])
		p.data = p.data[:n]
		a.pass(p)
		if err != nil {
			a.err = err
			return
		}
	}
}

// buffer returns an empty buffer: one that was used before, or one more while there are not too many. It is nil after Close.
func (a *aheadReader) buffer() *piece {
	select {
	case <-a.stop:
		return nil
	case p := <-a.empty:
		return p
	default:
	}
	if a.unmade > 0 {
		a.unmade--
		return &piece{data: make([]byte, aheadSize)}
	}
	select {
	case <-a.stop:
		return nil
	case p := <-a.empty:
		return p
	}
}

// pass hands p on. It never waits: there are as many places as buffers.
func (a *aheadReader) pass(p *piece) {
	p.users.Store(1)
	if a.hashing != nil {
		p.users.Store(2)
		a.hashing <- p
	}
	a.full <- p
}

func (a *aheadReader) sumUp(sum hash.Hash) {
	for p := range a.hashing {
		sum.Write(p.data)
		a.release(p)
	}
}

// release gives p back once everybody has read it.
func (a *aheadReader) release(p *piece) {
	if p.users.Add(-1) == 0 {
		a.empty <- p
	}
}

func (a *aheadReader) Read(p []byte) (int, error) {
	if err := a.more(); err != nil {
		return 0, err
	}
	n := copy(p, a.cur)
	a.cur = a.cur[n:]
	return n, nil
}

// more makes sure that cur holds something.
func (a *aheadReader) more() error {
	for len(a.cur) == 0 {
		if a.buf != nil {
			a.release(a.buf)
			a.buf = nil
		}
		p, ok := <-a.full
		if !ok {
			return a.err
		}
		a.buf, a.cur = p, p.data
	}
	return nil
}

// skip passes over n bytes without copying them.
func (a *aheadReader) skip(n int64) error {
	for n > 0 {
		err := a.more()
		if errors.Is(err, io.EOF) {
			return nil // the next Read tells
		}
		if err != nil {
			return err
		}
		m := min(n, int64(len(a.cur)))
		a.cur = a.cur[m:]
		n -= m
	}
	return nil
}

// Close ends the goroutines. The source may be closed afterwards.
func (a *aheadReader) Close() error {
	a.once.Do(func() { close(a.stop) })
	a.ended.Wait()
	return nil
}

// aheadTar is the uncompressed tar of a layer, decompressed ahead of who reads it.
type aheadTar struct {
	*aheadReader
	format format
	under  io.Closer
}

// decompressAhead decompresses r, which it does not close, until ctx ends. sum may be nil, as for newAhead.
func decompressAhead(ctx context.Context, r io.Reader, sum hash.Hash) (*aheadTar, error) {
	br := bufio.NewReaderSize(ctxio.Reader(ctx, r), 64<<10)
	f, err := sniffReader(br)
	if err != nil {
		return nil, err
	}
	rc, err := decompressWide(br, f)
	if err != nil {
		return nil, err
	}
	return &aheadTar{newAhead(rc, sum), f, rc}, nil
}

func (i *aheadTar) Close() error { return errors.Join(i.aheadReader.Close(), i.under.Close()) }
