package facts

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Outlined are the files of an image whose layers need not be in the store. Those of which the store knows what there is to
// know are not brought.
func Outlined(o *image.Outline, st *store.Store) Files { return outlineFiles{o, st} }

type outlineFiles struct {
	outline *image.Outline
	st      *store.Store
}

func (f outlineFiles) Walk(ctx context.Context, wanted Filter, visit func(File) error) error {
	tree, err := f.outline.Tree(ctx, nil)
	if err != nil {
		return err
	}
	return treeFiles{tree, f.st}.Walk(ctx, wanted, visit)
}

func (f outlineFiles) scan(ctx context.Context) ([]scanned, error) {
	c := newCopies(f.st, 0) // each is read once
	defer c.Close()
	p := newPassing(f.st, f.outline.Image, c, newPages())
	tree, err := p.tree(ctx, f.outline)
	if err != nil {
		return nil, err
	}
	found, err := scanTree(ctx, treeFiles{tree, f.st}, p)
	if missing := f.outline.Err(); missing != nil {
		err = missing
	}
	return found, err
}

// passing looks at the files of layers while these are read for the first time, so that each is decompressed once.
type passing struct {
	cache  cache
	layers []layer.Descriptor
	copies *copies // of what is worth one
	pages  *pages
	looks  looks

	mu   sync.Mutex
	seen map[int]*seenLayer // the layers that were read, by number
}

// seenLayer is what is found in a layer while it is read.
type seenLayer struct {
	looks sync.WaitGroup // that are still under way

	mu    sync.Mutex
	known map[place]fileFacts
}

func newPassing(st *store.Store, im *image.Image, c *copies, p *pages) *passing {
	return &passing{cache: cache{st}, layers: im.Layers, copies: c, pages: p, looks: newLooks(), seen: map[int]*seenLayer{}}
}

// tree merges the layers of an image, of which some are brought and looked at.
func (p *passing) tree(ctx context.Context, o *image.Outline) (*image.Tree, error) {
	tree, err := o.Tree(ctx, func(number int) func(layer.IndexEntry, func() (io.ReadCloser, error)) error {
		s := p.begin(number)
		return func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
			return p.visit(ctx, s, number, e, open)
		}
	})
	for _, s := range p.seen {
		s.looks.Wait()
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return nil, err
	}
	for number, s := range p.seen {
		if len(s.known) == 0 {
			continue
		}
		if err := p.cache.keepLayer(p.layers[number].DiffID, s.known); err != nil {
			return nil, fmt.Errorf("keep what was found in layer %d: %w", number+1, err)
		}
	}
	return tree, nil
}

// known is what is known of a layer that was read, or nil.
func (p *passing) known(number int) map[place]fileFacts {
	if s := p.seen[number]; s != nil {
		return s.known
	}
	return nil
}

// begin forgets what was seen of a layer when its reading began before. Only one goroutine reads a layer.
func (p *passing) begin(number int) *seenLayer {
	p.mu.Lock()
	before := p.seen[number]
	s := &seenLayer{known: p.cache.layer(p.layers[number].DiffID)}
	p.seen[number] = s
	p.mu.Unlock()
	if before != nil {
		before.looks.Wait()
	}
	p.copies.forgetLayer(number)
	p.pages.forgetLayer(number)
	return s
}

func (s *seenLayer) has(at place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.known[at]
	return ok
}

func (s *seenLayer) found(at place, c fileFacts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[at] = c
}

func (p *passing) visit(ctx context.Context, s *seenLayer, number int, e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
	if e.Type != layer.Regular || e.Size == 0 {
		return ctx.Err()
	}
	id := contentID{number, place{e.Offset, e.Sparse}}
	if isReadLater(e.Path, e.Size) {
		return p.copy(ctx, id, e, open)
	}
	if e.Size <= minSize || !mayHoldCode(e.Path) || s.has(id.place) {
		return nil
	}
	stream, err := open()
	if err != nil {
		return err
	}
	f := candidate{e.Path, e.Size, id}
	h, err := contentOf{stream: stream, copies: p.copies}.take(ctx, f, fatbin.MayHold)
	switch {
	case err != nil:
		return err
	case h == nil:
		s.found(id.place, fileFacts{})
		return nil
	}
	p.looks.begin(&s.looks, func() {
		if c, err := lookAt(ctx, f, h, true, p.pages); err == nil {
			s.found(id.place, c)
		}
	})
	return ctx.Err()
}

// copy keeps a copy of a file that may be wanted later.
func (p *passing) copy(ctx context.Context, id contentID, e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
	if p.copies.room == 0 || e.Size > maxLater {
		return nil
	}
	h, err := p.copies.open(ctx, id, e.Size, open)
	if err != nil {
		return fmt.Errorf("read %q: %w", e.Path, err)
	}
	return h.Close()
}
