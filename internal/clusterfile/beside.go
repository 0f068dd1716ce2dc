package clusterfile

import (
	"context"
	"io"
	"maps"
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
// core each, which keep less than 16 others busy; with two more at a time, 16 cores were slower than with none, and with one, faster
// (docs/results/scale-2026-11-22.md).
const besideCores = 16

// beside compresses layers before it is their turn, on machines with many cores. Where a block of a layer stands, and which of
// its files are hidden, is known only when the layers above it are done. So each goes to a temporary file first, all of it,
// as a pack from which its segment is then copied: the way of what is kept for the next image, and with the same bytes.
//
// What fails here, for lack of space or because the layer is damaged, is left to whoever writes the segment.
type beside struct {
	w       *writer
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	todo   []int // layers nobody has begun with, upper ones first
	layers map[int]*pressed
}

// pressed is a layer that is or was compressed beside others.
type pressed struct {
	done   chan struct{} // closed when the rest is there
	pieces map[int64]*pressedPiece
	file   *os.File
}

// pressedPiece is a piece of such a layer. The methods are good for none.
type pressedPiece struct {
	segment *squashfs.Segment
	kept    bool // the store has it
}

func (p *pressedPiece) packs() []*squashfs.Pack {
	if p == nil {
		return nil
	}
	return []*squashfs.Pack{p.segment.Pack}
}

// lost reports whether the piece is nowhere but here.
func (p *pressedPiece) lost() bool { return p != nil && !p.kept }

// startBeside begins with the layers that are worth it.
func (w *writer) startBeside() *beside {
	b := &beside{w: w, cancel: func() {}, layers: map[int]*pressed{}}
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
	for range min(cores/besideCores, len(b.todo)) {
		b.running.Go(func() { b.work(ctx, max(cores/2, 1)) })
	}
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
		b.press(ctx, p, b.w.in.Layers[number], workers)
		close(p.done)
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
	p := &pressed{done: make(chan struct{})}
	b.layers[number] = p
	return number, p
}

// press compresses all files of a layer and keeps them. There is no pack of one that went wrong, or that another process has done.
func (b *beside) press(ctx context.Context, p *pressed, l Layer, workers int) {
	release, err := b.w.reuse.claim(ctx, l)
	if err != nil {
		return
	}
	defer release()
	if b.w.reuse.has(l.Digest) {
		return
	}
	f, err := b.w.o.Store.TempFile()
	if err != nil {
		return
	}
	state := ""
	if b.w.reuse.keeps(l.Digest) {
		state = blobState(b.w.o.Store, l.Digest)
	}
	save := func(number int64, one *pressedPiece, state string) {
		one.kept = b.w.reuse.save(l.Digest, f, one.segment, storedPack{Piece: number, Blob: state}) == nil
	}
	pieces, err := pressTo(ctx, f, l.Source, b.w.o.Squashfs, workers, func(number int64, one *pressedPiece) {
		if state != "" {
			save(number, one, state)
		}
	})
	if err != nil {
		f.Close()
		return
	}
	p.pieces, p.file = pieces, f
	switch {
	case !b.w.reuse.keeps(l.Digest):
	case state != "":
		_ = b.w.reuse.confirm(l.Digest, state) // they are compressed again otherwise
	default: // it has just arrived
		for _, number := range slices.Sorted(maps.Keys(pieces)) {
			save(number, pieces[number], "")
		}
	}
}

// pressTo compresses the files of a layer into f, and calls each with the pieces of it.
func pressTo(
	ctx context.Context, f *os.File, from layer.Source, o squashfs.Options, workers int, each func(number int64, one *pressedPiece),
) (map[int64]*pressedPiece, error) {
	o.Workers, o.Scratch = workers, true
	sq, err := squashfs.NewWriter(f, 0, o)
	if err != nil {
		return nil, err
	}
	defer sq.Close()
	pieces := map[int64]*pressedPiece{}
	p := piecewise{sq: sq, packs: func(int64) []*squashfs.Pack { return nil }, done: func(piece int64, seg *squashfs.Segment) error {
		pieces[piece] = &pressedPiece{segment: seg}
		each(piece, pieces[piece])
		return nil
	}}
	err = from.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		if e.Type != layer.Regular || e.Size == 0 {
			return nil
		}
		if err := p.enter(e.Offset); err != nil {
			return err
		}
		_, err := sq.Add(ctx, placeOf(0, e).at, e.Size, open)
		return err
	})
	if err != nil {
		return nil, err
	}
	return pieces, p.end()
}

// packs returns what was compressed of a layer beside others, by piece, waiting for it. A layer that nobody has begun with is left to the
// caller.
func (b *beside) packs(number int) map[int64]*pressedPiece {
	b.mu.Lock()
	for i, n := range b.todo {
		if n == number {
			b.todo = append(b.todo[:i:i], b.todo[i+1:]...)
			break
		}
	}
	p := b.layers[number]
	b.mu.Unlock()
	if p == nil {
		return nil
	}
	<-p.done
	return p.pieces
}

// close ends what is under way and gives the temporary files up.
func (b *beside) close() {
	b.mu.Lock()
	b.todo = nil
	b.mu.Unlock()
	b.cancel()
	b.running.Wait()
	for _, p := range b.layers {
		if p.file != nil {
			p.file.Close()
		}
	}
}
