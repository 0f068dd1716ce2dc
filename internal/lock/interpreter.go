package lock

import (
	"context"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// interpreterFormat is part of the records' keys: it changes whenever [python.Find] would find more or something else.
const interpreterFormat = "-1"

// interpreterOf finds the Python of a base, reading the base only the first time: in layers that were not made here, a
// file is found by decompressing everything before it.
func interpreterOf(ctx context.Context, st *store.Store, im *image.Image, platform v1.Platform) (*python.Interpreter, error) {
	once := store.Once[*python.Interpreter]{
		Kind: store.KindInterpreter, Key: im.Digest.Hex() + interpreterFormat,
		Refs: func(*python.Interpreter) []store.Digest { return []store.Digest{im.Digest} },
	}
	found, _, err := once.Do(ctx, st, func(ctx context.Context) (*python.Interpreter, error) {
		tree, err := im.Tree(ctx, st)
		if err != nil {
			return nil, err
		}
		return python.Find(ctx, tree, platform, searchPath(im)...)
	})
	return found, err
}

// baseOf is what an environment on top of the base's own is based on.
func baseOf(ctx context.Context, st *store.Store, im *image.Image, platform v1.Platform) (*python.Base, error) {
	found, err := interpreterOf(ctx, st, im, platform)
	if err != nil {
		return nil, err
	}
	once := store.Once[*python.Base]{
		Kind: store.KindInterpreter, Key: im.Digest.Hex() + interpreterFormat + "-base2",
		Refs: func(*python.Base) []store.Digest { return []store.Digest{im.Digest} },
	}
	b, _, err := once.Do(ctx, st, func(ctx context.Context) (*python.Base, error) {
		tree, err := im.Tree(ctx, st)
		if err != nil {
			return nil, err
		}
		return python.FindBase(ctx, tree, *found, searchPath(im))
	})
	return b, err
}

// FindBase finds out what an environment on top of an image is based on. The image is in the store.
func FindBase(ctx context.Context, st *store.Store, im *image.Image) (*python.Base, error) {
	return baseOf(ctx, st, im, im.Platform())
}

// searchPath is the image's own PATH, where its Python is looked for first.
func searchPath(im *image.Image) []string {
	for _, kv := range im.Config.Config.Env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			return strings.Split(value, ":")
		}
	}
	return nil
}
