package lock

import (
	"context"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// interpreterKind is the kind of the records that remember the Python of a base.
const interpreterKind store.Kind = "interpreter"

// interpreterFormat is part of their keys: it changes whenever [python.Find] would find more or something else.
const interpreterFormat = "-1"

// interpreterOf finds the Python of a base, reading the base only the first time: in layers that were not made here, a
// file is found by decompressing everything before it.
func interpreterOf(ctx context.Context, st *store.Store, im *image.Image, platform v1.Platform) (*python.Interpreter, error) {
	key := im.Digest.Hex() + interpreterFormat
	var known python.Interpreter
	if found, err := st.GetRecord(interpreterKind, key, &known); found || err != nil {
		return &known, err
	}
	tree, err := im.Tree(ctx, st)
	if err != nil {
		return nil, err
	}
	found, err := python.Find(ctx, tree, platform, searchPath(im)...)
	if err != nil || st.ReadOnly() {
		return found, err
	}
	return found, st.PutRecord(interpreterKind, key, []store.Digest{im.Digest}, found)
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
