package clusterfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
)

// errPressed is the error of a layer that could not be compressed to its end beside others, of which a part is in the file already. It can
// be read, but whether that part was right is not known.
var errPressed = errors.New("a layer could not be compressed to its end beside others")

// pressed is a layer that is or was compressed beside others. Its pieces are taken into the file as they are done. A nil one has none.
type pressed struct {
	file *os.File // has the blocks; set before the first piece

	mu     sync.Mutex
	moved  sync.Cond
	pieces []*pressedPiece // that are done, in the order of the tar
	ended  bool            // there will be no more
	err    error           // why not, unless they are all
}

// pressedPiece is a piece of such a layer.
type pressedPiece struct {
	number  int64
	segment *squashfs.Segment
	entries []layer.IndexEntry // its files; until they were visited
}

func newPressed() *pressed {
	p := new(pressed)
	p.moved.L = &p.mu
	return p
}

func (p *pressed) add(one *pressedPiece) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pieces = append(p.pieces, one)
	p.moved.Broadcast()
}

// end says that there will be no more pieces. The first call counts.
func (p *pressed) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended, p.err = true, err
	}
	p.moved.Broadcast()
}

// piece waits for a piece, 0 being the first. It returns nil when there are not so many, and then the error that ended them.
func (p *pressed) piece(n int) (*pressedPiece, error) {
	if p == nil {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for n >= len(p.pieces) && !p.ended {
		p.moved.Wait()
	}
	if n < len(p.pieces) {
		return p.pieces[n], nil
	}
	return nil, p.err
}

// begun waits for the first piece and reports whether there is one.
func (p *pressed) begun() bool {
	first, _ := p.piece(0)
	return first != nil
}

// packs returns the pack of a piece, by its number, that is done.
func (p *pressed) packs(number int64) []*squashfs.Pack {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.pieces {
		if one.number == number {
			return []*squashfs.Pack{one.segment.Pack}
		}
	}
	return nil
}

// walk calls visit for each regular file of the layer, piece by piece, without waiting for what comes behind. It is called once.
func (p *pressed) walk(ctx context.Context, s layer.Source, visit layer.Visitor) error {
	for n := 0; ; n++ {
		one, err := p.piece(n)
		if err != nil {
			return broken(ctx, s, err)
		}
		if one == nil {
			return nil
		}
		for _, e := range one.entries {
			if err := visit(e, func() (io.ReadCloser, error) { return p.open(ctx, s, e) }); err != nil {
				return err
			}
		}
		one.entries = nil
	}
}

// open opens a file of which the packs do not have everything, as its blocks are those of a file that is hidden: once the layer was read.
func (p *pressed) open(ctx context.Context, s layer.Source, e layer.IndexEntry) (io.ReadCloser, error) {
	if _, err := p.piece(math.MaxInt); err != nil {
		return nil, broken(ctx, s, err)
	}
	ix, err := s.Index(ctx)
	if err != nil {
		return nil, err
	}
	return ix.OpenContent(e)
}

// broken returns the error of a layer of which the rest was not compressed for a reason: its own, if it cannot be read.
func broken(ctx context.Context, s layer.Source, why error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, err := s.Index(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errPressed, why)
}
