package inflate

import (
	"bufio"
	"hash/crc32"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
)

// A ParallelGzipReader decompresses a gzip file on several cores: what it returns, errors included, is what a GzipReader
// returns. It is not safe for concurrent use.
//
// A block of a deflate stream refers to the 32 KiB before it, and nothing says where blocks start. So the file is cut into
// chunks, and each is tried by a worker of its own: it looks for a block, and decodes it with symbols for the bytes that it
// does not know (see trial). Whoever puts the chunks together, the sequencer, knows where the block before has ended. If the
// trial began there, its symbols are replaced by bytes of the window, which is then known, again by a worker. If not, the
// sequencer decodes that part of the stream as any decoder does. All that a trial can get wrong costs time only, and each
// error is found by the sequencer.
//
// The idea is that of pugz (Kerbiriou and Chikhi, "Parallel decompression of gzip-compressed files and random access to DNA
// sequences", 2019) and rapidgzip (Knespel and Brunst, "Rapidgzip: Parallel Decompression and Seeking in Gzip Files Using
// Cache Prefetching", 2023).
type ParallelGzipReader struct {
	src   io.Reader
	cut   cutting
	notes *notes // nil: nobody wants any
	stop  chan struct{}

	free   chan *chunk  // chunks that wait for input
	tries  chan *chunk  // chunks to be tried
	solves chan *piece  // pieces to be resolved
	order  chan *chunk  // all chunks, for the sequencer
	out    chan *piece  // all pieces, for Read
	pause  atomic.Int64 // how many chunks are not to be tried, as trials were in vain
	chunks atomic.Int64 // how many there are
	quit   func()       // closes stop, once
	ended  sync.WaitGroup

	piece *piece // that is read
	rest  []byte // of it
	crc   uint32 // of the member so far
	size  uint32
	err   error // after rest
}

// cutting is how a file is cut.
type cutting struct {
	chunk   int // bytes of a chunk
	overlap int // bytes behind a chunk that a trial may use to come to the end of a block
	workers int // that try chunks; 0: no chunk is tried
}

// The sizes of chunks: large enough for several blocks of any compressor, and small enough that 12 MB for each, with what it
// becomes, are not much.
const (
	chunkSize    = 512 << 10
	chunkOverlap = 256 << 10
)

// maxWorkers is how many cores are of use to one stream: what comes out of more, nobody hashes or reads as fast.
const maxWorkers = 12

// leastWorkers is from how many cores on trials pay: they cost half as much again as decoding, on cores that others want. With 4
// they did not (docs/results/scale-2026-11-22.md).
const leastWorkers = 8

// trialsAtOnce bounds the trials whose memory is in use, in all streams together. A trial may wait for another stream's, the
// sequencer may not: when it comes to a chunk that is still waiting, it decodes it itself.
var trialsAtOnce = sync.OnceValue(func() chan struct{} { return make(chan struct{}, 4*runtime.GOMAXPROCS(0)) })

// OpenGzip decompresses a gzip file, on as many cores as there are if that is faster. It may read ahead of what it returns,
// until it is closed.
func OpenGzip(r io.Reader) (io.ReadCloser, error) {
	workers := usefulWorkers(runtime.GOMAXPROCS(0))
	if workers == 0 {
		return NewGzipReader(r)
	}
	return newParallel(r, cutting{chunk: chunkSize, overlap: chunkOverlap, workers: workers})
}

// usefulWorkers is how many workers make trials on a number of cores.
func usefulWorkers(cores int) int {
	if cores < leastWorkers {
		return 0
	}
	return min(cores, maxWorkers)
}

func newParallel(r io.Reader, c cutting) (*ParallelGzipReader, error) {
	return startParallel(r, c, nil)
}

func startParallel(r io.Reader, c cutting, n *notes) (*ParallelGzipReader, error) {
	src, ok := r.(*bufio.Reader)
	if !ok {
		src = bufio.NewReaderSize(r, gzipBuffer)
	}
	most, ready := c.workers+c.workers/2+2, max(1, c.workers)
	z := &ParallelGzipReader{
		src: src, cut: c, notes: n, stop: make(chan struct{}),
		free: make(chan *chunk, most), tries: make(chan *chunk, most), order: make(chan *chunk, most),
		solves: make(chan *piece, ready), out: make(chan *piece, ready),
	}
	if err := z.readHeader(src); err != nil {
		return nil, noEOF(err)
	}
	z.quit = sync.OnceFunc(func() { close(z.stop) })
	for range firstChunks {
		z.another()
	}
	z.ended.Go(z.read)
	z.ended.Go(z.sequence)
	return z, nil
}

// readHeader reads the header of a member. It returns io.EOF when there is nothing at all.
func (z *ParallelGzipReader) readHeader(src byteSource) error {
	if z.notes != nil {
		return readPlainHeader(src)
	}
	return readGzipHeader(src)
}

// firstChunks is how many chunks are read before the first byte is wanted. Each that is used up makes room for two, so that
// who only looks at the beginning of a file does not have much of it read.
const firstChunks = 2

// Read reads up to len(p) decompressed bytes. They are checked at the end of each member.
func (z *ParallelGzipReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := z.more()
	if err != nil {
		return 0, err
	}
	n := copy(p, b)
	z.rest = b[n:]
	return n, nil
}

// WriteTo writes all that is left to w, without a copy in between.
func (z *ParallelGzipReader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		b, err := z.more()
		if err == io.EOF { //nolint:errorlint // it is never wrapped
			return total, nil
		}
		if err != nil {
			return total, err
		}
		n, err := w.Write(b)
		total += int64(n)
		z.rest = b[n:]
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
}

// more is what was decompressed and not read, never nothing without an error.
func (z *ParallelGzipReader) more() ([]byte, error) {
	for len(z.rest) == 0 {
		if z.err != nil {
			return nil, z.err
		}
		if z.piece != nil {
			z.piece.drop()
		}
		z.piece = <-z.out
		<-z.piece.ready
		z.rest, z.err = z.piece.data, z.piece.err
		z.check(z.piece)
	}
	return z.rest, nil
}

// check compares the members that end in a piece with what they promise. What is behind one that is wrong is not returned.
func (z *ParallelGzipReader) check(p *piece) {
	from := 0
	for _, m := range p.members {
		err := z.advance(p, from, m.at)
		if err == nil {
			err = z.endMember(m)
		}
		if from = m.at; err != nil {
			z.rest, z.err = p.data[:from], err
			return
		}
	}
	if err := z.advance(p, from, len(p.data)); err != nil {
		z.err = err
	}
}

// advance goes on behind a part of a piece.
func (z *ParallelGzipReader) advance(p *piece, from, to int) error {
	z.crc = crc32.Update(z.crc, crc32.IEEETable, p.data[from:to])
	z.size += uint32(to - from)
	if z.notes == nil {
		return nil
	}
	return z.notes.look(p, from, to)
}

func (z *ParallelGzipReader) endMember(m memberEnd) error {
	if m.crc != z.crc || m.size != z.size {
		return ErrGzipChecksum
	}
	z.crc, z.size = 0, 0
	if z.notes == nil {
		return nil
	}
	return z.notes.member()
}

// Close makes z stop reading ahead and give up its memory. It does not close the source.
func (z *ParallelGzipReader) Close() error {
	z.quit()
	z.ended.Wait()
	if z.piece != nil {
		z.piece.drop()
	}
	for z.piece = nil; len(z.out) > 0; {
		(<-z.out).drop()
	}
	z.rest = nil
	if z.err == nil {
		z.err = errClosed
	}
	return nil
}

// A chunk is a part of the file.
type chunk struct {
	at     int64         // where in the file it starts, counted from behind the first header
	src    []byte        // its bytes, and behind them some of the next chunk
	size   int           // how many are its own
	end    error         // why there are none behind it
	begun  bool          // there was a trial
	made   *guess        // of it; nil: there is none of use
	tried  chan struct{} // closed when it is over
	wanted chan struct{} // closed when the sequencer is there: it is too late to begin with a trial
	users  atomic.Int32  // sequencer and worker

	buffer *[]byte
}

var chunkBuffers = sync.Pool{New: func() any { b := make([]byte, chunkSize+chunkOverlap); return &b }}

// read cuts the source into chunks. A chunk is passed on when what is behind it is there as well.
func (z *ParallelGzipReader) read() {
	defer close(z.order)
	defer close(z.tries)
	running := 0
	var last *chunk
	for at := int64(0); ; {
		var c *chunk
		select {
		case c = <-z.free:
		case <-z.stop:
			return
		}
		z.fill(c, at)
		at += int64(c.size)
		if last != nil {
			last.src = append(last.src, c.src[:min(c.size, z.cut.overlap)]...)
			running = z.pass(last, running)
		}
		last = c
		if c.end != nil {
			z.pass(c, running)
			return
		}
	}
}

// fill reads a chunk.
func (z *ParallelGzipReader) fill(c *chunk, at int64) {
	c.buffer = chunkBuffers.Get().(*[]byte)
	c.at, c.begun, c.made, c.tried, c.wanted = at, false, nil, make(chan struct{}), make(chan struct{})
	c.size, c.end = io.ReadFull(z.src, (*c.buffer)[:z.cut.chunk])
	if c.end == io.ErrUnexpectedEOF { //nolint:errorlint // it is ReadFull's own word for the end of the source
		c.end = io.EOF
	}
	c.src = (*c.buffer)[:c.size:len(*c.buffer)]
}

// pass gives a chunk to the sequencer and, if it is to be tried, to a worker, of which one more is started if all may be busy.
// The first one is not tried: where it starts is known.
func (z *ParallelGzipReader) pass(c *chunk, running int) int {
	paused := z.pause.Load() > 0
	if paused {
		z.pause.Add(-1)
	}
	if c.at == 0 || paused || z.cut.workers == 0 {
		c.users.Store(1)
		close(c.tried)
		z.order <- c // there is room for all chunks there are
		return running
	}
	if running < z.cut.workers {
		running++
		z.ended.Go(z.work)
	}
	c.users.Store(2)
	z.order <- c
	z.tries <- c
	return running
}

// release gives a chunk's memory back when neither sequencer nor worker need it, and room for another.
func (z *ParallelGzipReader) release(c *chunk) {
	if c.users.Add(-1) > 0 {
		return
	}
	chunkBuffers.Put(c.buffer)
	c.buffer, c.src = nil, nil
	z.free <- c // there is room for all
	z.another()
}

// another makes one more chunk, unless there are enough.
func (z *ParallelGzipReader) another() {
	if z.chunks.Add(1) <= int64(cap(z.free)) {
		z.free <- &chunk{}
	}
}

// work tries chunks and resolves pieces, those first: somebody waits for them.
func (z *ParallelGzipReader) work() {
	for {
		select {
		case p, ok := <-z.solves:
			if !ok {
				return // after all trials
			}
			p.resolve()
			continue
		default:
		}
		select {
		case p, ok := <-z.solves:
			if !ok {
				return
			}
			p.resolve()
		case c, ok := <-z.tries:
			if !ok {
				z.resolveAll()
				return
			}
			z.try(c)
		}
	}
}

// resolveAll resolves pieces until there are no more to come.
func (z *ParallelGzipReader) resolveAll() {
	for p := range z.solves {
		p.resolve()
	}
}

func (z *ParallelGzipReader) try(c *chunk) {
	defer z.release(c)
	defer close(c.tried)
	if !z.room(c) {
		return
	}
	c.begun = true
	if c.made = try(c.src, c.size, z.stopped); c.made == nil {
		<-trialsAtOnce()
	}
}

// room waits for room for a trial, as long as it is wanted. Pieces are resolved meanwhile, which is what makes room.
func (z *ParallelGzipReader) room(c *chunk) bool {
	for {
		select {
		case <-c.wanted:
			return false
		default:
		}
		select {
		case trialsAtOnce() <- struct{}{}:
			return true
		case p, ok := <-z.solves:
			if !ok {
				return false
			}
			p.resolve()
		case <-c.wanted:
		case <-z.stop:
			return false
		}
	}
}

func (z *ParallelGzipReader) stopped() bool {
	select {
	case <-z.stop:
		return true
	default:
		return false
	}
}

// A piece is a part of what comes out.
type piece struct {
	data    []byte
	members []memberEnd // that end in it
	ends    blockEnds   // of blocks in it
	from    int64       // the bit of the file from which the ends are counted
	err     error       // behind it
	ready   chan struct{}

	guess    *guess    // what data was made of; nil: data is the sequencer's
	meanings *meanings // of its symbols
	serial   *serialBuffer
}

var meaningsPool = sync.Pool{New: func() any { return newMeanings() }}

// resolve turns the symbols into bytes.
func (p *piece) resolve() {
	g := p.guess
	p.meanings.resolve(p.data, g.marked[windowSize:][:g.markedLen])
	meaningsPool.Put(p.meanings)
	markedBuffers.Put(g.marked)
	p.meanings, g.marked = nil, nil
	<-trialsAtOnce() // what is left is bounded by what may wait for Read
	close(p.ready)
}

// drop gives the memory back.
func (p *piece) drop() {
	if p.guess != nil {
		p.guess.drop()
		p.guess = nil
	}
	if p.serial != nil {
		serialBuffers.Put(p.serial)
		p.serial = nil
	}
	p.data = nil
}
