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
	mk, err := makerFor(d.Owner, onto)
	if err != nil {
		return layer.Descriptor{}, err
	}
	if _, err := s.enter(d.Path, mk); err != nil {
		return layer.Descriptor{}, fmt.Errorf("make the directory %s: %w", quote(d.Path), err)
	}
	if !s.root.touched {
		return layer.Descriptor{}, nil
	}
	return s.layer(ctx, st, o)
}

// makerFor makes directories that belong to an owner, USER[:GROUP].
func makerFor(name string, onto *image.Tree) (*maker, error) {
	mk := &maker{mode: 0o755}
	o, err := findOwner(name, onto)
	if err != nil {
		return nil, fmt.Errorf("give files to %q: %w", name, err)
	}
	if o != nil {
		mk.owner = *o
	}
	return mk, nil
}
