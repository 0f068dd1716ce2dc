package imagefs

import (
	"context"
	"fmt"
	"slices"

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
	indexes, err := toServe(st, layers)
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
func toServe(st *store.Store, layers []layer.Descriptor) ([]*layer.Index, error) {
	missing := sandbox.Missing(st, layers)
	if len(missing) == 0 {
		return nil, nil
	}
	all, err := seekable(st, layers)
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
