package facts

import (
	"context"
	"fmt"
	"io"
	"sync"

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

	mu    sync.Mutex
	known map[int]map[place]fileFacts // of the layers that were read, by number
}

func newPassing(st *store.Store, im *image.Image, c *copies, p *pages) *passing {
	return &passing{cache: cache{st}, layers: im.Layers, copies: c, pages: p, known: map[int]map[place]fileFacts{}}
}

// tree merges the layers of an image, of which some are brought and looked at.
func (p *passing) tree(ctx context.Context, o *image.Outline) (*image.Tree, error) {
	tree, err := o.Tree(ctx, func(number int) func(layer.IndexEntry, func() (io.ReadCloser, error)) error {
		p.begin(number)
		return func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
			return p.visit(ctx, number, e, open)
		}
	})
	if err != nil {
		return nil, err
	}
	for number, known := range p.known {
		if err := p.cache.keepLayer(p.layers[number].DiffID, known); err != nil {
			return nil, fmt.Errorf("keep what was found in layer %d: %w", number+1, err)
		}
	}
	return tree, nil
}

// begin forgets what was seen of a layer when its reading began before.
func (p *passing) begin(number int) {
	p.mu.Lock()
	delete(p.known, number)
	p.mu.Unlock()
	p.copies.forgetLayer(number)
	p.pages.forgetLayer(number)
}

// of returns what is known of a layer. Only one goroutine reads a layer.
func (p *passing) of(number int) map[place]fileFacts {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[number]
	if known == nil {
		known = p.cache.layer(p.layers[number].DiffID)
		p.known[number] = known
	}
	return known
}

func (p *passing) visit(ctx context.Context, number int, e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
	if e.Type != layer.Regular || e.Size == 0 {
		return ctx.Err()
	}
	id := contentID{number, place{e.Offset, e.Sparse}}
	if isReadLater(e.Path, e.Size) {
		if p.copies.room == 0 || e.Size > maxLater {
			return nil
		}
		h, err := p.copies.open(ctx, id, e.Size, open)
		if err != nil {
			return fmt.Errorf("read %q: %w", e.Path, err)
		}
		return h.Close()
	}
	known := p.of(number)
	if _, ok := known[id.place]; ok || e.Size <= minSize || !mayHoldCode(e.Path) {
		return nil
	}
	stream, err := open()
	if err != nil {
		return err
	}
	c, err := lookAt(ctx, candidate{e.Path, e.Size, id}, contentOf{stream: stream, copies: p.copies}, p.pages)
	if err == nil {
		known[id.place] = c
	}
	return err
}
