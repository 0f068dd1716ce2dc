package upstream

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Patch is a patch of the recipe's.
type Patch struct {
	File string // as the recipe names it, for messages
	Text []byte
}

// Layer makes the layer of a source's files in the directory dir, absolute, with patches applied.
//
// Files belong to root and have the time of o: which was made of which, a build cannot tell by times.
func (p *Pinned) Layer(ctx context.Context, name, dir string, patches []Patch, opts Options, o layer.Options) (layer.Descriptor, error) {
	d, err := p.layer(ctx, name, dir, patches, opts, o)
	if err != nil {
		return d, fmt.Errorf("source %s: %w", name, err)
	}
	return d, nil
}

func (p *Pinned) layer(ctx context.Context, name, dir string, patches []Patch, opts Options, o layer.Options) (layer.Descriptor, error) {
	var none layer.Descriptor
	if err := p.bring(ctx, name, opts); err != nil {
		return none, err
	}
	d, own, err := p.unpack(ctx, dir, opts.Store, o)
	if err != nil {
		return none, err
	}
	for _, mine := range patches {
		own = append(own, patch{name: mine.File, text: mine.Text})
	}
	if len(own) == 0 {
		return d, nil
	}
	return applyAll(ctx, opts.Store, d, dir, own, o)
}

// unpack makes the layer of the files as they come, and returns the patches that the source itself brings.
func (p *Pinned) unpack(ctx context.Context, dir string, st *store.Store, o layer.Options) (layer.Descriptor, []patch, error) {
	var none layer.Descriptor
	work, err := st.TempDir("source-*")
	if err != nil {
		return none, nil, err
	}
	defer store.RemoveAll(work)
	f, err := os.Create(filepath.Join(work, "source.tar"))
	if err != nil {
		return none, nil, err
	}
	defer f.Close()
	own, err := p.pack(ctx, st, f, strings.Trim(dir, "/"), o.ModTime)
	if err != nil {
		return none, nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return none, nil, err
	}
	d, err := layer.FromTar(ctx, st, f, o)
	return d, own, err
}

// applyAll applies patches in their order, and makes one layer of what comes of it.
func applyAll(ctx context.Context, st *store.Store, d layer.Descriptor, dir string, patches []patch, o layer.Options) (layer.Descriptor, error) {
	var none layer.Descriptor
	quick := o
	quick.Compression = layer.None // of what nobody keeps
	layers := []layer.Descriptor{d}
	for part := range slices.Chunk(patches, maxStack) {
		for _, p := range part {
			tree, err := image.NewTree(ctx, st, layers)
			if err != nil {
				return none, err
			}
			next, err := fileop.Patch{Text: p.text, Dir: dir, Strip: 1, Offset: p.offset}.Layer(ctx, st, tree, quick)
			if err != nil {
				return none, fmt.Errorf("%s: %w", p.name, err)
			}
			layers = append(layers, next)
		}
		tree, err := image.NewTree(ctx, st, layers)
		if err != nil {
			return none, err
		}
		flat, err := fileop.Copy{Sources: []string{"."}, Dest: "/"}.Layer(ctx, st, fileop.FromTree(tree), nil, o, nil)
		if err != nil {
			return none, err
		}
		layers = []layer.Descriptor{flat}
	}
	return layers[0], nil
}

// maxStack is how many patches are applied before their layers become one.
const maxStack = 64
