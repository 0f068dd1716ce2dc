package squashfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Options are how a file system is written.
type Options struct {
	Compression Compressor
	Level       int       // of the compressor; 0: zstd 3, gzip 6, lz4's fast mode
	BlockSize   int       // in bytes, a power of two from MinBlockSize to MaxBlockSize; 0: DefaultBlockSize
	Workers     int       // goroutines that compress; 0: GOMAXPROCS
	ModTime     time.Time // of the file system, in its superblock
	TailPacking bool      // the last parts of files larger than a block share fragment blocks too
	Scratch     bool      // the file will not last: the disk need not be kept busy with it
}

// DefaultOptions are zstd at level 3 with blocks of 128 KiB.
func DefaultOptions() Options {
	return Options{Compression: Zstd, Level: defaultZstdLevel, BlockSize: DefaultBlockSize}
}

// Key names everything that decides about the bytes of blocks: what was compressed under one key may be copied into any
// file system that is written under the same key.
func (o Options) Key() string {
	o = o.complete()
	level := fmt.Sprint(o.Level)
	if o.Compression == Zstd { // which knows fewer levels
		level = zstdLevelName(o.Level)
	}
	return fmt.Sprintf("squashfs-%d %s %s block=%d tails=%t", codecVersion, o.Compression, level, o.BlockSize, o.TailPacking)
}

// complete fills in what was left to defaults.
func (o Options) complete() Options {
	if o.BlockSize == 0 {
		o.BlockSize = DefaultBlockSize
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	switch {
	case o.Compression == Stored:
		o.Level = 0
	case o.Level == 0 && o.Compression == Zstd:
		o.Level = defaultZstdLevel
	case o.Level == 0 && o.Compression == Gzip:
		o.Level = defaultGzipLevel
	}
	return o
}

func (o Options) validate() error {
	if o.BlockSize < MinBlockSize || o.BlockSize > MaxBlockSize || bits.OnesCount(uint(o.BlockSize)) != 1 {
		return fmt.Errorf("block size %d: it is a power of two from %d to %d", o.BlockSize, MinBlockSize, MaxBlockSize)
	}
	highest := map[Compressor]int{Zstd: maxZstdLevel, Gzip: maxGzipLevel, LZ4: maxLZ4Level}
	if o.Level < 0 || o.Level > highest[o.Compression] {
		return fmt.Errorf("%s level %d: the highest is %d", o.Compression, o.Level, highest[o.Compression])
	}
	return nil
}

// Key names a file inside the source of its segment, which is usually a layer's tar archive.
type Key struct {
	Offset int64 // where the file's content stands in the source
	Nth    int   // tells apart files whose contents stand at one place
}

// A Writer writes a file system: first the contents of the files, segment by segment and in the order of the calls, then
// the tables. Where a block stands and what it holds depends on that sequence alone, not on the number of workers, nor
// on what is copied from packs. A Writer is used by one goroutine. After an error it can only be closed.
//
// The calling goroutine reads files and cuts them into blocks, workers compress the blocks, and one more goroutine puts
// the results into their order, finds duplicates and writes.
type Writer struct {
	opts     Options
	f        *os.File
	base     int64 // where the file system begins in f
	runs     runTable
	expander func() (expander, error) // made at the first call

	// The placing goroutine's, until the pipeline is stopped.
	out      *sink
	building runBuilder
	placing  int             // number of the segment
	parts    []fragmentEntry // the fragment table

	jobs    chan *slot
	steps   chan step
	free    chan *slot
	running sync.WaitGroup
	stop    sync.Once
	failed  atomic.Pointer[error]

	seg      *segment
	segments int    // how many were begun
	groups   uint32 // fragment blocks of the segments that have ended
	scratch  []byte // of the calling goroutine: one tail
}

// A fragmentEntry is one fragment block: its place in the file system, and its size with blockStored.
type fragmentEntry struct {
	start int64
	size  uint32
}

// NewWriter begins a file system at offset base of f. What f holds from there on is overwritten; f stays open.
func NewWriter(f *os.File, base int64, o Options) (*Writer, error) {
	o = o.complete()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if base < 0 {
		return nil, fmt.Errorf("file system at offset %d", base)
	}
	encoders := make([]blockEncoder, o.Workers)
	for i := range encoders {
		var err error
		if encoders[i], err = o.encoder(); err != nil {
			return nil, err
		}
	}
	head := superblockSize
	if extra := o.compressorOptions(); extra != nil {
		head += 2 + len(extra)
	}
	w := &Writer{opts: o, f: f, base: base, out: newSink(f, base, int64(head), o), scratch: make([]byte, o.BlockSize)}
	w.runs.byDigest = make(map[digest]*run)
	w.expander = sync.OnceValues(func() (expander, error) { return newExpander(o.Compression) })
	w.start(encoders)
	return w, nil
}

// fail keeps the first error; the pipeline then only empties itself.
func (w *Writer) fail(err error) error {
	w.failed.CompareAndSwap(nil, &err)
	return err
}

func (w *Writer) err() error {
	if p := w.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// errNoSegment is about calls in the wrong order.
var errNoSegment = errors.New("no segment was started")

// StartSegment begins a segment: a sequence of files that can be copied into another file system, usually the files of
// one layer. The packs are such segments of earlier file systems, written under the same Options.Key; files that they
// hold are copied. A pack is read until EndSegment returns.
func (w *Writer) StartSegment(packs ...*Pack) error {
	if err := w.err(); err != nil {
		return err
	}
	if w.seg != nil {
		return errors.New("the segment before has not ended")
	}
	for _, p := range packs {
		if p.optionsKey != w.opts.Key() || p.blockSize != w.opts.BlockSize || p.tailed != w.opts.TailPacking {
			return fmt.Errorf("a pack was written as %q, not as %q", p.optionsKey, w.opts.Key())
		}
	}
	w.segments++
	w.seg = newSegment(w.segments, w.groups, packs)
	at := w.seg
	w.queue(step{place: func() error {
		at.start, w.placing = w.out.pos, at.number
		return nil
	}})
	return nil
}

// Add places a regular file of size bytes. If a pack of the segment holds the file, it is copied and open is not called.
// Otherwise exactly size bytes are read from what open returns before Add returns, and compressed in the background. The
// result is for Inode.Data, and complete when the segment has ended.
func (w *Writer) Add(ctx context.Context, key Key, size int64, open func() (io.ReadCloser, error)) (*Data, error) {
	if err := w.err(); err != nil {
		return nil, err
	}
	if w.seg == nil {
		return nil, errNoSegment
	}
	if size < 0 {
		return nil, fmt.Errorf("file of %d bytes", size)
	}
	d := &Data{size: size, fragment: noFragment, owner: w}
	if size == 0 {
		return d, nil
	}
	if err := w.add(ctx, key, d, open); err != nil {
		return nil, w.fail(err)
	}
	return d, nil
}

func (w *Writer) add(ctx context.Context, key Key, d *Data, open func() (io.ReadCloser, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var tail int
	var err error
	if p, file := w.seg.find(key, d.size); p != nil && w.canReuse(p, file) {
		tail, err = w.reuse(ctx, p, file, d)
	} else {
		w.seg.fresh++
		tail, err = w.read(ctx, d, open)
	}
	if err != nil {
		return err
	}
	w.seg.files = append(w.seg.files, placedFile{key: key, data: d, tail: tail})
	return nil
}

// A Segment is a finished segment: its files' blocks stand at Start to End of the file, and Pack says where.
type Segment struct {
	Pack  *Pack // reads from the file that the Writer writes
	Start int64 // in bytes from the file's beginning
	End   int64
	Fresh int // files that were read and compressed, not copied
}

// EndSegment waits until all blocks of the segment are written.
func (w *Writer) EndSegment() (*Segment, error) {
	if err := w.err(); err != nil {
		return nil, err
	}
	if w.seg == nil {
		return nil, errNoSegment
	}
	seg := w.seg
	if err := w.closeGroup(context.Background()); err != nil {
		return nil, w.fail(err)
	}
	w.queue(step{place: func() error {
		seg.end = w.out.pos
		return w.out.flush()
	}})
	w.wait()
	if err := w.err(); err != nil {
		return nil, err
	}
	w.groups += uint32(len(seg.groups))
	w.seg = nil
	return &Segment{Pack: w.packOf(seg), Start: w.base + seg.start, End: w.base + seg.end, Fresh: seg.fresh}, nil
}

// Close ends the workers. It is to be called in every case, and may be called again.
func (w *Writer) Close() error {
	w.stopPipeline()
	return nil
}
