package layer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
)

// ChunkSize is how many bytes of uncompressed tar are compressed on their own. Smaller chunks cost compression (a
// window cannot be longer) and larger ones memory and the time to reach a single file.
const ChunkSize = 4 << 20

// chunker cuts what is written to it into chunks, has them compressed by workers, and passes the results on in order.
//
//	Write ──► cur ──► tasks ──► worker … worker        (compress)
//	             ├──► hashing ──► sumUp                (diffID)
//	             └──► order ──► passOn ──► w           (which hashes the blob)
//
// Each stage is a goroutine. The number of chunks on their way is bounded by slots, and so is the memory. What is spliced
// in is hashed in pieces of a chunk's size and compressed by nobody; its turn comes in order like that of a chunk.
type chunker struct {
	w      io.Writer
	codec  codec
	cur    []byte
	total  int64     // bytes written
	diffID hash.Hash // of what was written, to be read after close; nil where that is what w is given
	marks  []mark    // where each chunk starts, then the end; to be read after close
	seeks  seeks     // of chunks that are longer than ChunkSize, by their numbers; to be read after close

	splicing bool   // what is written has been compressed already
	crc      uint32 // of what was written since splicing
	copying  []byte // buffer of passOn

	slots   chan struct{}
	tasks   chan *chunk
	hashing chan *chunk
	order   chan *chunk
	idle    int // how many workers may still be started
	running sync.WaitGroup
	err     atomic.Pointer[error] // the first thing that went wrong behind the writer
}

// mark is a place where a chunk starts: in the blob and in the uncompressed tar, in bytes.
type mark struct{ blob, raw int64 }

// chunk is what goes through the stages: bytes to compress and hash, bytes only to hash, or a stream to pass on.
type chunk struct {
	size    int64 // uncompressed
	raw     *[]byte
	users   atomic.Int32 // that still read raw
	spliced bool         // raw is only hashed

	out    *[]byte
	stream *Deflated   // instead of out
	whole  bool        // stream is a chunk as it is
	crc    uint32      // of what stream inflates to
	points []seekPoint // of it
	err    error
	done   chan struct{} // closed when out is there; nil for a stream, which always is
}

// release gives raw back once everybody has read it.
func (c *chunk) release() {
	if c.users.Add(-1) == 0 {
		rawBuffers.Put(c.raw)
	}
}

// The buffers are shared by all writers: a build writes many layers, most of them small.
var (
	rawBuffers = sync.Pool{New: func() any { b := make([]byte, 0, ChunkSize); return &b }}
	outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, ChunkSize+ChunkSize/64); return &b }}
)

func newChunker(w io.Writer, c codec, workers int) *chunker {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	inFlight := workers + 1 // one more, so that a worker finds the next chunk waiting
	k := &chunker{
		w: w, codec: c, idle: workers, marks: []mark{{}}, seeks: seeks{},
		slots: make(chan struct{}, inFlight), tasks: make(chan *chunk, inFlight),
		hashing: make(chan *chunk, inFlight), order: make(chan *chunk, inFlight),
	}
	if c.format != formatTar {
		k.diffID = sha256.New()
	}
	k.running.Go(k.sumUp)
	k.running.Go(k.passOn)
	return k
}

// buffer returns the free space of the current chunk.
func (k *chunker) buffer() []byte {
	if k.cur == nil {
		k.cur = (*rawBuffers.Get().(*[]byte))[:0]
	}
	return k.cur[len(k.cur):ChunkSize]
}

// advance notes that n bytes were put into buffer.
func (k *chunker) advance(n int) error {
	k.cur = k.cur[:len(k.cur)+n]
	k.total += int64(n)
	if len(k.cur) == ChunkSize {
		return k.flush()
	}
	return nil
}

func (k *chunker) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n := copy(k.buffer(), p[written:])
		written += n
		if err := k.advance(n); err != nil {
			return written, err
		}
	}
	return written, nil
}

// readExactly takes size bytes from r, straight into the chunks, and makes sure that there are no more.
func (k *chunker) readExactly(ctx context.Context, r io.Reader, size int64) error {
	left := size
	for left > 0 {
		buf := k.buffer()
		if int64(len(buf)) > left {
			buf = buf[:left]
		}
		n, err := r.Read(buf)
		left -= int64(n)
		if n > 0 {
			if err := errors.Join(k.advance(n), ctx.Err()); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) && left > 0 {
			return fmt.Errorf("its content is %d bytes, %d were announced: %w", size-left, size, io.ErrUnexpectedEOF)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	var more [1]byte
	n, err := io.ReadFull(r, more[:])
	if n > 0 {
		return fmt.Errorf("its content is longer than the %d bytes announced", size)
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// splice takes size bytes from r, and instead of compressing them passes on stream, which inflates to them; whole says that it is a
// chunk of such a layer already.
func (k *chunker) splice(ctx context.Context, r io.Reader, size int64, stream Deflated, whole bool) error {
	if err := k.flush(); err != nil {
		return err
	}
	k.splicing, k.crc = true, 0
	err := k.readExactly(ctx, r, size)
	if err == nil {
		err = k.flush()
	}
	k.splicing = false
	if err != nil {
		return err
	}
	c := &chunk{size: size, stream: &stream, whole: whole, crc: k.crc}
	if size > ChunkSize {
		c.points = stream.seekPoints(size)
	}
	k.slots <- struct{}{}
	k.order <- c
	return nil
}

// pad fills the last block of a file's content.
func (k *chunker) pad() error {
	_, err := k.Write(zeroBlock[:padding(k.total)])
	return err
}

// flush sends the current chunk, if there is one, on its way, waiting while too many are.
func (k *chunker) flush() error {
	if err := k.err.Load(); err != nil {
		return *err
	}
	if len(k.cur) == 0 {
		return nil
	}
	raw := k.cur
	k.cur = nil
	c := &chunk{size: int64(len(raw)), raw: &raw, spliced: k.splicing, done: make(chan struct{})}
	k.slots <- struct{}{}
	if k.splicing {
		k.crc = crc32.Update(k.crc, crc32.IEEETable, raw)
		c.users.Store(1)
		k.hashing <- c
		return nil
	}
	c.users.Store(2)
	if k.idle > 0 {
		k.idle--
		k.running.Go(k.compress)
	}
	k.tasks <- c
	k.hashing <- c
	k.order <- c
	return nil
}

func (k *chunker) compress() {
	for c := range k.tasks {
		out := outBuffers.Get().(*[]byte)
		*out, c.err = k.codec.compress((*out)[:0], *c.raw)
		c.out = out
		c.release()
		close(c.done)
	}
}

func (k *chunker) sumUp() {
	for c := range k.hashing {
		if k.diffID != nil {
			k.diffID.Write(*c.raw)
		}
		c.release()
		if c.spliced {
			<-k.slots
		}
	}
}

// passOn writes finished chunks in order. After an error it only takes them off, so that nobody waits for it.
func (k *chunker) passOn() {
	var failed error
	for c := range k.order {
		if c.done != nil {
			<-c.done
		}
		if failed == nil {
			if failed = k.pass(c); failed != nil {
				k.err.CompareAndSwap(nil, &failed)
			}
		}
		if c.out != nil {
			outBuffers.Put(c.out)
		}
		<-k.slots
	}
}

func (k *chunker) pass(c *chunk) error {
	if c.err != nil {
		return c.err
	}
	if c.stream != nil && k.copying == nil {
		k.copying = make([]byte, 256<<10)
	}
	end := k.marks[len(k.marks)-1]
	var n int64
	var err error
	switch {
	case c.stream == nil:
		n = int64(len(*c.out))
		_, err = k.w.Write(*c.out)
	case c.whole:
		n, err = c.stream.Size, c.stream.copyTo(k.w, k.copying)
	default:
		n, err = c.stream.writeMember(k.w, c.size, c.crc, k.copying)
	}
	if c.points != nil {
		k.seeks[len(k.marks)-1] = c.points
	}
	k.marks = append(k.marks, mark{end.blob + n, end.raw + c.size})
	return err
}

// close sends the last chunk and waits for everything to be written.
func (k *chunker) close() error {
	flushErr := k.flush()
	close(k.tasks)
	close(k.hashing)
	close(k.order)
	k.running.Wait()
	if err := k.err.Load(); err != nil {
		return *err
	}
	return flushErr
}
