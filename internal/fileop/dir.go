package fileop

import (
	"context"
	"fmt"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Dir is a directory that is to be there.
type Dir struct {
	Path  string // absolute; followed inside the image
	Owner string // USER[:GROUP]; "" is root
}

// Layer makes the directory in onto, and what is missing above it. They get the permissions 0755 and belong to the owner. There is no
// layer when the image has the directory, whatever it is like.
func (d Dir) Layer(ctx context.Context, st *store.Store, onto *image.Tree, o layer.Options) (layer.Descriptor, error) {
	s := newStage(onto)
	who, err := findOwner(d.Owner, onto)
	if err != nil {
		return layer.Descriptor{}, err
	}
	if _, err := s.enter(d.Path, newMaker(who)); err != nil {
		return layer.Descriptor{}, fmt.Errorf("make the directory %s: %w", quote(d.Path), err)
	}
	return s.changes(ctx, st, o)
}
