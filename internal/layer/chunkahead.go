package layer

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
)

// chunkAhead reads a layer that is made of chunks from front to back, and has the chunks that follow decompressed by several
// goroutines. A chunk that is passed over is not decompressed, unless it was among the next ones while all were wanted.
//
// It decompresses nothing ahead at first and then twice as much with each chunk that is wanted after the one before it, up
// to the limit; a chunk that nobody wants makes it start anew.
type chunkAhead struct {
	ix     *Index
	b      blob
	number int // the chunk in use
	within int64
	cur    *aheadChunk  // it, once a byte of it was wanted
	long   *aheadReader // instead of cur when it is longer than ChunkSize
	longIn *longChunk   // what long reads

	queue   []*aheadChunk // those that follow
	next    int           // the first that is in neither
	queued  int64         // uncompressed length of queue, in bytes
	depth   int64         // how long it should be
	limit   int64         // what depth may grow to
	slots   chan struct{}
	stopped atomic.Bool
	running sync.WaitGroup
}

// aheadChunk is a chunk of at most ChunkSize bytes that is being decompressed.
type aheadChunk struct {
	number int
	raw    *[]byte // data's memory
	data   []byte
	err    error
	done   chan struct{} // closed when data and err are there
}

// maxQueue is how many chunks may wait for one goroutine: some are as small as a file.
const maxQueue = 16

func newChunkAhead(ix *Index, b blob) *chunkAhead {
	workers := runtime.GOMAXPROCS(0)
	return &chunkAhead{ix: ix, b: b, limit: int64(workers) * ChunkSize, slots: make(chan struct{}, workers)}
}

func (a *chunkAhead) Read(p []byte) (int, error) {
	for {
		n, err := a.read(p)
		if n > 0 || !errors.Is(err, io.EOF) || a.number >= len(a.ix.chunks)-1 {
			a.within += int64(n)
			return n, err
		}
		if err := a.leave(a.number + 1); err != nil {
			return 0, err
		}
	}
}

// read reads from the chunk in use. io.EOF is its end.
func (a *chunkAhead) read(p []byte) (int, error) {
	if a.number >= len(a.ix.chunks)-1 || a.within == a.ix.rawLen(a.number) && a.long == nil {
		return 0, io.EOF
	}
	if a.cur == nil && a.long == nil {
		if err := a.enter(); err != nil {
			return 0, err
		}
	}
	if a.long != nil {
		return a.long.Read(p)
	}
	return copy(p, a.cur.data[a.within:]), nil
}

// enter gets the chunk in use.
func (a *chunkAhead) enter() error {
	if a.ix.rawLen(a.number) > ChunkSize {
		return a.enterLong()
	}
	if len(a.queue) == 0 {
		a.schedule()
	}
	c := a.queue[0]
	a.queue = a.queue[1:]
	a.queued -= a.ix.rawLen(c.number)
	a.cur = c
	a.fill()
	<-c.done
	if c.err != nil {
		return fmt.Errorf("chunk %d: %w", c.number, c.err)
	}
	return nil
}

func (a *chunkAhead) enterLong() error {
	l, err := a.ix.openLong(a.number, a.within)
	if err != nil {
		return fmt.Errorf("chunk %d: %w", a.number, err)
	}
	a.longIn, a.long = l, newAhead(l, nil)
	a.next = max(a.next, a.number+1)
	a.fill()
	return nil
}

// fill has more chunks decompressed. Long ones are left out: they are decompressed when their turn comes.
func (a *chunkAhead) fill() {
	for a.next < len(a.ix.chunks)-1 && len(a.queue) < maxQueue*cap(a.slots) {
		size := a.ix.rawLen(a.next)
		if size > ChunkSize {
			a.next++
			continue
		}
		if a.queued+size > a.depth {
			return
		}
		a.schedule()
	}
}

// schedule has the chunk next decompressed.
func (a *chunkAhead) schedule() {
	c := &aheadChunk{number: a.next, done: make(chan struct{})}
	a.next++
	a.queue = append(a.queue, c)
	a.queued += a.ix.rawLen(c.number)
	a.running.Go(func() {
		defer close(c.done)
		a.slots <- struct{}{}
		defer func() { <-a.slots }()
		if !a.stopped.Load() {
			c.err = a.decode(c)
		}
	})
}

func (a *chunkAhead) decode(c *aheadChunk) error {
	buf := outBuffers.Get().(*[]byte)
	defer outBuffers.Put(buf)
	packed, err := a.ix.readChunk(a.b, c.number, *buf)
	if err != nil {
		return err
	}
	c.raw = rawBuffers.Get().(*[]byte)
	c.data, err = unpackChunk(a.ix.format, packed, (*c.raw)[:a.ix.rawLen(c.number)])
	return err
}

// free gives the memory of a chunk back. One that is still being decompressed is left to the garbage collector.
func (c *aheadChunk) free() {
	select {
	case <-c.done:
		if c.raw != nil {
			rawBuffers.Put(c.raw)
		}
	default:
	}
}

// leave goes on to the start of a later chunk.
func (a *chunkAhead) leave(to int) error {
	wanted := a.cur != nil || a.long != nil
	if wanted && to == a.number+1 {
		a.depth = min(a.limit, 2*a.depth+ChunkSize)
	} else {
		a.depth = 0
	}
	err := a.drop()
	for len(a.queue) > 0 && a.queue[0].number < to {
		c := a.queue[0]
		a.queue = a.queue[1:]
		a.queued -= a.ix.rawLen(c.number)
		c.free()
	}
	a.number, a.within, a.next = to, 0, max(a.next, to)
	return err
}

// drop lets go of the chunk in use.
func (a *chunkAhead) drop() error {
	if a.cur != nil {
		a.cur.free()
		a.cur = nil
	}
	if a.long == nil {
		return nil
	}
	err := errors.Join(a.long.Close(), a.longIn.Close())
	a.long, a.longIn = nil, nil
	return err
}

func (a *chunkAhead) skip(n int64) error {
	last := len(a.ix.chunks) - 1
	if a.number >= last || n == 0 {
		return nil
	}
	at := a.ix.chunks[a.number].raw + a.within + n
	if at < a.ix.chunks[a.number+1].raw {
		a.within += n
		if a.long != nil {
			return a.long.skip(n)
		}
		return nil
	}
	to := a.ix.chunkAt(at)
	if to < 0 {
		to = last
	}
	err := a.leave(to)
	if to < last {
		a.within = at - a.ix.chunks[to].raw
	}
	return err
}

// Close waits for what is being decompressed.
func (a *chunkAhead) Close() error {
	a.stopped.Store(true)
	err := a.drop()
	a.running.Wait()
	return errors.Join(err, a.b.Close())
}
