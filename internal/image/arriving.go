package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"sconce.dev/sconce/internal/layer"
)

// delivery is a layer on its way into the store.
type delivery struct {
	begun func()        // closes moves
	moves chan struct{} // closed when something of it is there to be read, or it has ended
	ended chan struct{} // closed when the layer is in the store, or does not come
	err   error         // why it does not come; there once that is closed

	mu      sync.Mutex
	stream  io.ReadCloser // what arrives, until somebody takes it
	started bool          // somebody has taken it
}

func newDelivery() *delivery {
	d := &delivery{moves: make(chan struct{}), ended: make(chan struct{})}
	d.begun = sync.OnceFunc(func() { close(d.moves) })
	return d
}

// offer gives the bytes of the layer to the first who reads it as it arrives. Of one that begins anew nobody who has begun to read it
// can make use.
func (d *delivery) offer(r io.ReadCloser) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started {
		r.Close()
		return
	}
	if d.stream != nil {
		d.stream.Close()
	}
	d.stream = r
	d.begun()
}

// end says that the layer is in the store, or why it does not come.
func (d *delivery) end(err error) {
	d.err = err
	close(d.ended)
	d.begun()
}

// take returns the bytes of the layer as they arrive, nil when they are to be read in the store.
func (d *delivery) take() io.ReadCloser {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.stream
	d.stream, d.started = nil, true
	return r
}

// close gives up what nobody has read.
func (d *delivery) close() {
	if r := d.take(); r != nil {
		r.Close()
	}
}

// arriving is a layer that is read as it arrives by whoever walks it first, and in the store by all others.
type arriving struct {
	arrival *Arrival
	number  int
	stored  layer.Source
	ix      *layer.Index
}

func (l *arriving) Walk(ctx context.Context, visit layer.Visitor) error {
	r, err := l.stream(ctx)
	if err != nil {
		return err
	}
	if r == nil {
		return l.stored.Walk(ctx, visit)
	}
	defer r.Close()
	w := witness{visit: visit}
	ix, err := layer.Arriving(ctx, l.arrival.outline.st, l.arrival.Image.Layers[l.number], r, w.see)
	if err != nil && (w.refused || ctx.Err() != nil) {
		return err
	}
	// Whether the bytes were right, and what was read of them is to be believed, is known when all have come.
	if missing := l.arrival.Wait(ctx, l.number); missing != nil {
		return missing
	}
	if err != nil {
		return fmt.Errorf("%w: %w", layer.ErrAgain, err)
	}
	l.ix = ix
	return nil
}

func (l *arriving) Index(ctx context.Context) (*layer.Index, error) {
	if l.ix != nil {
		return l.ix, nil
	}
	if err := l.arrival.Wait(ctx, l.number); err != nil {
		return nil, err
	}
	return l.stored.Index(ctx)
}

// stream waits until the layer begins to arrive. It returns nil when it is in the store.
func (l *arriving) stream(ctx context.Context) (io.ReadCloser, error) {
	l.arrival.begin()
	d := l.arrival.layers[l.number]
	select {
	case <-d.moves:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if r := d.take(); r != nil {
		return r, nil
	}
	return nil, l.arrival.Wait(ctx, l.number)
}

// witness tells the errors of a visitor from those of the bytes that it was shown.
type witness struct {
	visit   layer.Visitor
	damaged bool // a content could not be read
	refused bool // the visitor has ended the walk for a reason of its own
}

func (w *witness) see(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
	err := w.visit(e, func() (io.ReadCloser, error) {
		r, err := open()
		if err != nil {
			return nil, err
		}
		return &witnessed{r, w}, nil
	})
	w.refused = err != nil && !w.damaged
	return err
}

// witnessed is a content that is being read.
type witnessed struct {
	io.ReadCloser
	w *witness
}

func (r *witnessed) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.w.damaged = true
	}
	return n, err
}
