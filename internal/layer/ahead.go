package layer

import (
	"io"
	"os"
	"sync"
)

// The sizes of what an aheadReader holds, in buffers and bytes each.
const (
	aheadBuffers = 4
	aheadSize    = 256 << 10
)

// aheadReader reads from another reader in a goroutine of its own, so that decompressing overlaps with what is done with
// the result.
type aheadReader struct {
	full  chan []byte
	empty chan []byte
	stop  chan struct{}
	once  sync.Once
	cur   []byte // what is left of buf
	buf   []byte
	err   error // set before full is closed; io.EOF at the end
	ended sync.WaitGroup
}

// newAhead starts to read r. Each piece is given to seen first.
func newAhead(r io.Reader, seen io.Writer) *aheadReader {
	a := &aheadReader{full: make(chan []byte, aheadBuffers), empty: make(chan []byte, aheadBuffers), stop: make(chan struct{})}
	for range aheadBuffers {
		a.empty <- make([]byte, aheadSize)
	}
	a.ended.Go(func() { a.fill(r, seen) })
	return a
}

func (a *aheadReader) fill(r io.Reader, seen io.Writer) {
	defer close(a.full)
	for {
		var buf []byte
		select {
		case buf = <-a.empty:
		case <-a.stop:
			a.err = os.ErrClosed
			return
		}
		n, err := fillUp(r, buf[:cap(buf)])
		if _, seenErr := seen.Write(buf[:n]); seenErr != nil {
			err = seenErr
		}
		a.full <- buf[:n] // never waits: there are as many places as buffers
		if err != nil {
			a.err = err
			return
		}
	}
}

// fillUp reads until p is full or r ends. Unlike io.ReadFull it returns r's own error, so that the end of the source and one
// that came too early stay different.
func fillUp(r io.Reader, p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := r.Read(p[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (a *aheadReader) Read(p []byte) (int, error) {
	for len(a.cur) == 0 {
		if a.buf != nil {
			a.empty <- a.buf[:cap(a.buf)]
			a.buf = nil
		}
		buf, ok := <-a.full
		if !ok {
			return 0, a.err
		}
		a.buf, a.cur = buf, buf
	}
	n := copy(p, a.cur)
	a.cur = a.cur[n:]
	return n, nil
}

// Close ends the goroutine. The source may be closed afterwards.
func (a *aheadReader) Close() error {
	a.once.Do(func() { close(a.stop) })
	a.ended.Wait()
	return nil
}
