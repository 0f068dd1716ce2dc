package imagefs

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// maxServed bounds the trees of one image: an overlay looks for a name that is nowhere in each of its layers.
const maxServed = 4

// Stack makes the layers of an image, lowest first, ready as they are for sandbox.Options: those that are unpacked as directories, and
// those that are not as trees, neighbours as one, where they can be read from anywhere. What remains is unpacked now. served is empty when
// that is all of them, and nothing has been done then.
func Stack(ctx context.Context, st *store.Store, layers []layer.Descriptor) (dirs []string, served []fuse.Node, err error) {
	indexes, err := toServe(ctx, st, layers)
	if err != nil || indexes == nil {
		return nil, nil, err
	}
	var plain []layer.Descriptor
	for i, d := range layers {
		if indexes[i] == nil {
			plain = append(plain, d)
		}
	}
	progress.Begin(ctx, "unpack", fmt.Sprintf("%d of %s, read as they are", len(layers)-len(plain), units.Number(len(layers), "layer")), 0).EndCached()
	places, err := sandbox.Layers(ctx, st, plain)
	if err != nil {
		return nil, nil, err
	}
	return stack(indexes, places)
}

// stack puts trees of the layers that have indexes between the places of the others.
func stack(indexes []*layer.Index, places []string) (dirs []string, served []fuse.Node, err error) {
	pieces := layer.NewPieces(KeptBytes())
	var on below
	for len(indexes) > 0 {
		n := slices.Index(indexes, nil)
		if n == 0 {
			dirs, on = append(dirs, places[0]), slices.Insert(on, 0, lower(unpacked(places[0])))
			indexes, places = indexes[1:], places[1:]
			continue
		}
		if n < 0 {
			n = len(indexes)
		}
		tree, err := newTree(indexes[:n], slices.Clone(on), sandbox.Unpacked(), pieces)
		if err != nil {
			return nil, nil, err
		}
		dirs, served, on = append(dirs, sandbox.ServedLayer), append(served, tree), slices.Insert(on, 0, lower(tree.fs))
		indexes = indexes[n:]
	}
	return dirs, served, nil
}

// toServe returns the indexes of the layers that are served, nil for each of the others, and nil if none is.
func toServe(ctx context.Context, st *store.Store, layers []layer.Descriptor) ([]*layer.Index, error) {
	missing := sandbox.Missing(st, layers)
	if len(missing) == 0 {
		return nil, nil
	}
	all, err := seekable(st, layers)
	if err == nil {
		err = findChunks(ctx, st, layers, missing, all)
	}
	if err != nil {
		return nil, err
	}
	indexes := slices.Clone(all)
	for i, d := range layers {
		if !slices.Contains(missing, d) {
			indexes[i] = nil
		}
	}
	switch n := runs(indexes); {
	case n == 0:
		return nil, nil
	case n <= maxServed:
		return indexes, nil
	case runs(all) <= maxServed: // what is unpacked among them is not used then
		return all, nil
	}
	return nil, nil
}

// maxRead bounds how many layers are read at once: places in long files take 128 MiB of memory for each. What several cores inflate is bounded for all
// together, by package inflate.
const maxRead = 4

// findChunks adds the indexes of layers that sconce has made and that came from elsewhere, as those of an image do that was pushed and pulled. Those of
// one chunk may be anybody's: they are taken where they have a neighbour that is served, so that there is no tree more. Where nothing can be served,
// no layer is read for it.
func findChunks(ctx context.Context, st *store.Store, layers, missing []layer.Descriptor, indexes []*layer.Index) error {
	if fuse.Check() != nil {
		return nil //nolint:nilerr // nothing is served without FUSE
	}
	found := make([]*layer.Index, len(layers))
	g, working := errgroup.WithContext(ctx)
	g.SetLimit(min(maxRead, runtime.GOMAXPROCS(0)))
	for i, d := range layers {
		if indexes[i] == nil && slices.Contains(missing, d) {
			g.Go(func() (err error) {
				found[i], err = findOnce(working, st, d)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, ix := range found {
		if ix != nil && !ix.IsOneChunk() {
			indexes[i] = ix
		}
	}
	served := func(i int) bool { return indexes[i] != nil && slices.Contains(missing, layers[i]) }
	for i := 1; i < len(found); i++ {
		if indexes[i] == nil && served(i-1) {
			indexes[i] = found[i]
		}
	}
	for i := len(found) - 2; i >= 0; i-- {
		if indexes[i] == nil && served(i+1) {
			indexes[i] = found[i]
		}
	}
	keepFound(ctx, st, layers, found, indexes)
	return nil
}

// findOnce reads a layer, if nobody else does: the tasks of a job begin at once.
func findOnce(ctx context.Context, st *store.Store, d layer.Descriptor) (*layer.Index, error) {
	if st.ReadOnly() {
		return layer.FindChunks(ctx, st, d)
	}
	lock, err := st.LockBlob(ctx, "index "+string(d.Digest), "reads layer "+d.Digest.Short())
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if ix, err := layer.SeekableIndex(st, d); ix != nil || err != nil {
		return ix, err
	}
	ix, err := layer.FindChunks(ctx, st, d)
	if err != nil || ix == nil || ix.IsOneChunk() {
		return ix, err
	}
	return kept(ctx, st, d, ix), nil
}

// kept keeps an index that was found, and returns it with what need not be in memory left in the store. On a full disk it is as good, and the next
// run reads the layer again.
func kept(ctx context.Context, st *store.Store, d layer.Descriptor, ix *layer.Index) *layer.Index {
	if err := ix.Keep(st, d); err != nil {
		progress.Warn(ctx, fmt.Sprintf("the index of layer %s is not kept for the next run: %v", d.Digest.Short(), err), "")
		return ix
	}
	if stored, err := layer.SeekableIndex(st, d); err == nil && stored != nil {
		return stored
	}
	return ix
}

// keepFound keeps the indexes of one chunk that were found and taken.
func keepFound(ctx context.Context, st *store.Store, layers []layer.Descriptor, found, taken []*layer.Index) {
	for i, ix := range found {
		if ix != nil && taken[i] == ix && ix.IsOneChunk() {
			taken[i] = kept(ctx, st, layers[i], ix)
		}
	}
}

// runs counts the neighbours that have an index.
func runs(indexes []*layer.Index) int {
	n := 0
	for i, ix := range indexes {
		if ix != nil && (i == 0 || indexes[i-1] == nil) {
			n++
		}
	}
	return n
}
