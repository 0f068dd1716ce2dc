package clusterfile

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
)

// besideLeast is the size of a layer's blob, in bytes, from which it pays to compress it beside another one.
var besideLeast int64 = 32 << 20

// besideCores is for how many cores one layer more is compressed at a time. One layer alone is hashed, read as a tar and placed by one
// core each, which keep less than 16 others busy; with two more at a time, 16 cores are slower than with one
// (docs/results/scale-2026-11-27.md).
const besideCores = 16

// beside compresses layers before it is their turn, on machines with many cores. Where a block of a layer stands, and which of
// its files are hidden, is known only when the layers above it are done. So each goes to a temporary file first, all of it,
// as packs from which its segments are then copied: the way of what is kept for the next image, and with the same bytes.
//
// What fails here before a piece is done, for lack of space or because the layer is damaged, is left to whoever writes the segments.
type beside struct {
	w       *writer
	cancel  context.CancelFunc
	running sync.WaitGroup
	free    func() // waits for those that run, and frees the temporary files, once; who calls it again waits as well
	another func() // has one layer more compressed at a time, from the first call on

	mu     sync.Mutex
	todo   []int // layers nobody has begun with, upper ones first
	layers map[int]*pressed
}

// startBeside begins with the layers that are worth it.
func (w *writer) startBeside() *beside {
	b := &beside{w: w, cancel: func() {}, another: func() {}, layers: map[int]*pressed{}}
	b.free = sync.OnceFunc(b.closeFiles)
	if w.inTurn {
		return b
	}
	cores := w.o.Squashfs.Workers
	if cores <= 0 {
		cores = runtime.GOMAXPROCS(0)
	}
	if cores < besideCores || w.o.Store.ReadOnly() {
		return b
	}
	space := int64(0)
	for number := len(w.in.Layers) - 1; number >= 0; number-- {
		if l := w.in.Layers[number]; l.Packed >= besideLeast && len(w.reuse.all(l.Digest)) == 0 {
			b.todo = append(b.todo, number)
			space += l.Packed
		}
	}
	if len(b.todo) < 2 || !hasRoom(w.o.Store.Dir(), 2*space) {
		b.todo = nil
		return b
	}
	b.todo = b.todo[1:] // the first one is whose turn it is
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(w.ctx)
	work := func() { b.running.Go(func() { b.work(ctx, max(cores/2, 1)) }) }
	for range min(cores/besideCores, len(b.todo)) {
		work()
	}
	b.another = sync.OnceFunc(work)
	return b
}

func hasRoom(dir string, size int64) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && int64(s.Bavail)*s.Bsize > size
}

// work compresses layers until all are begun.
func (b *beside) work(ctx context.Context, workers int) {
	for {
		number, p := b.begin()
		if p == nil {
			return
		}
		p.end(b.press(ctx, p, b.w.in.Layers[number], workers))
	}
}

func (b *beside) begin() (int, *pressed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.todo) == 0 {
		return 0, nil
	}
	number := b.todo[0]
	b.todo = b.todo[1:]
	p := newPressed()
	b.layers[number] = p
	return number, p
}

// press compresses all files of a layer and keeps them. There is no pack of one that another process has done.
func (b *beside) press(ctx context.Context, p *pressed, l Layer, workers int) error {
	r := b.w.reuse
	release, err := r.claim(ctx, l)
	if err != nil {
		return err
	}
	defer release()
	if r.has(l.Digest) {
		return nil
	}
	if p.file, err = b.w.o.Store.TempFile(); err != nil {
		return err
	}
	state := ""
	if r.keeps(l.Digest) {
		state = blobState(b.w.o.Store, l.Digest)
	}
	save := func(one *pressedPiece) { // what is not kept is compressed again for the next image
		_ = r.save(l.Digest, p.file, one.segment, storedPack{Piece: one.number, Blob: state})
	}
	err = pressTo(ctx, p.file, l.Source, b.w.o.Squashfs, workers, func(one *pressedPiece) {
		p.add(one)
		if state != "" {
			save(one)
		}
	})
	p.end(err) // before what the next image alone waits for
	switch {
	case err != nil || !r.keeps(l.Digest):
	case state != "":
		_ = r.confirm(l.Digest, state)
	default: // it has just arrived
		for _, one := range p.pieces {
			save(one)
		}
	}
	return err
}

// pressTo compresses the files of a layer into f, and calls each with every piece that is done.
func pressTo(ctx context.Context, f *os.File, from layer.Source, o squashfs.Options, workers int, each func(*pressedPiece)) error {
	o.Workers, o.Scratch = workers, true
	sq, err := squashfs.NewWriter(f, 0, o)
	if err != nil {
		return err
	}
	defer sq.Close()
	var entries []layer.IndexEntry
	p := piecewise{sq: sq, packs: func(int64) []*squashfs.Pack { return nil }, done: func(number int64, seg *squashfs.Segment) error {
		each(&pressedPiece{number: number, segment: seg, entries: entries})
		entries = nil
		return nil
	}}
	err = from.Walk(ctx, func(e layer.IndexEntry, open opener) error {
		if e.Type != layer.Regular || e.Size == 0 {
			return nil
		}
		if err := p.enter(e.Offset); err != nil {
			return err
		}
		entries = append(entries, e)
		_, err := sq.Add(ctx, placeOf(0, e).at, e.Size, open)
		return err
	})
	if err != nil {
		return err
	}
	return p.end()
}

// layer returns what is compressed of a layer beside others. One that nobody has begun with is left to the caller: nil.
func (b *beside) layer(number int) *pressed {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.todo = slices.DeleteFunc(b.todo, func(n int) bool { return n == number })
	return b.layers[number]
}

// giveUp frees the temporary files, from which everything has been copied, and does not wait: that takes the kernel a while for gigabytes.
func (b *beside) giveUp() { go b.free() }

// close ends what is under way and frees the temporary files.
func (b *beside) close() {
	b.mu.Lock()
	b.todo = nil
	b.mu.Unlock()
	b.cancel()
	b.free()
}

func (b *beside) closeFiles() {
	b.running.Wait()
	for _, p := range b.layers {
		if p.file != nil {
			p.file.Close()
		}
	}
}
