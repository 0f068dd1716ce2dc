package image

import (
	"context"
	"fmt"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Arrival is an image whose layers come into the store while the first of them are used already. They come from the top down:
// that is the order in which a file system is made of them.
type Arrival struct {
	Image *Image // its layers may not be in the store before Wait says so

	outline *Outline
	what    string // errors begin with it
	begin   func() // brings the layers, once
	end     func(error)
	ended   sync.Once
	cancel  context.CancelFunc
	running sync.WaitGroup
	layers  []*delivery
}

// Arrive copies the manifest and the config of an image into the store, as [Import] does. Layers that are missing come from when
// one is wanted until ctx ends, at most jobs at a time, each checked against its digest. Errors begin with what. end is called
// once: when all are there, with why one is not, or by Close when nobody has wanted one.
func Arrive(ctx context.Context, st *store.Store, img v1.Image, jobs int, what string, end func(error)) (*Arrival, error) {
	o, err := readOutline(ctx, st, img, what)
	if err != nil {
		return nil, err
	}
	a := &Arrival{Image: o.Image, outline: o, what: what, end: end}
	for range o.Image.Layers {
		a.layers = append(a.layers, newDelivery())
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.begin = sync.OnceFunc(func() {
		a.running.Go(func() {
			err := a.bring(ctx, jobs)
			a.ended.Do(func() { a.end(err) })
		})
	})
	return a, nil
}

// bring brings all layers, or none if there is not enough room for them. Of several with the same digest the others wait for the first.
func (a *Arrival) bring(ctx context.Context, jobs int) error {
	if err := fetch.CheckRoom(a.outline.st, a.Image.Blobs()); err != nil {
		a.outline.fail(err)
		for _, d := range a.layers {
			d.end(err)
		}
		return a.Err()
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(jobs, 1))
	bringers := map[store.Digest]func() error{}
	for number, d := range slices.Backward(a.Image.Layers) {
		delivery := a.layers[number]
		bring, ok := bringers[d.Digest]
		if !ok {
			bring = a.outline.bringer(ctx, number, delivery.offer)
			bringers[d.Digest] = bring
		}
		group.Go(func() error {
			delivery.end(bring())
			return delivery.err
		})
	}
	_ = group.Wait() // Err has the first error too, and says of which image
	return a.Err()
}

// Wait returns when a layer, 0 being the lowest, is in the store, or with why one of the image does not come.
func (a *Arrival) Wait(ctx context.Context, number int) error {
	a.begin()
	select {
	case <-a.layers[number].ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if a.layers[number].err == nil {
		return nil
	}
	return a.Err() // which may be that of another layer, because of which this one was given up
}

// Layer returns a layer, 0 being the lowest, that is walked while it arrives. Errors of its Walk are [layer.ErrAgain] when what
// had arrived turned out to be wrong, and the layer came after all.
func (a *Arrival) Layer(number int) layer.Source {
	return &arriving{arrival: a, number: number, stored: layer.Stored(a.outline.st, a.Image.Layers[number])}
}

// Err returns why a layer did not come, or nil.
func (a *Arrival) Err() error {
	err := a.outline.Err()
	if err != nil {
		err = fmt.Errorf("%s %s: %w", a.what, a.Image.Digest.Short(), err)
	}
	return err
}

// Close gives up what has not arrived.
func (a *Arrival) Close() {
	a.cancel()
	a.running.Wait()
	a.ended.Do(func() { a.end(nil) })
	for _, d := range a.layers {
		d.close()
	}
}
