package clusterfile

import (
	"context"
	"io"

	"sconce.dev/sconce/internal/layer"
)

// Await makes the input wait for a layer, 0 being the lowest, before it is read. So a file is made of the upper layers of an image
// while the lower ones come from a registry, or are copied into the store.
func (in *Input) Await(wait func(ctx context.Context, number int) error) {
	for number := range in.Layers {
		l := &in.Layers[number]
		l.Source = awaited{l.Source, func(ctx context.Context) error { return wait(ctx, number) }}
	}
}

// awaited is a layer that has to arrive before it can be read.
type awaited struct {
	layer.Source
	wait func(ctx context.Context) error
}

func (a awaited) Walk(ctx context.Context, visit func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error) error {
	if err := a.wait(ctx); err != nil {
		return err
	}
	return a.Source.Walk(ctx, visit)
}

func (a awaited) Index(ctx context.Context) (*layer.Index, error) {
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	return a.Source.Index(ctx)
}
