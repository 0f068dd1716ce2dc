package clusterfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// opening is a layer that calls opened when a content in it is opened.
type opening struct {
	layer.Source
	opened func()
}

func (o opening) Walk(ctx context.Context, visit func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error) error {
	return o.Source.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		return visit(e, func() (io.ReadCloser, error) {
			o.opened()
			return open()
		})
	})
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

// again is a layer whose first walks end in the middle of a content.
type again struct {
	layer.Source
	times *int
}

func (a again) Walk(ctx context.Context, visit func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error) error {
	if *a.times == 0 {
		return a.Source.Walk(ctx, visit)
	}
	*a.times--
	wrong := errors.New("wrong bytes")
	err := a.Source.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		return visit(e, func() (io.ReadCloser, error) {
			r, err := open()
			if err != nil {
				return nil, err
			}
			return io.NopCloser(io.MultiReader(io.LimitReader(r, 1), iotest.ErrReader(wrong))), nil
		})
	})
	if !errors.Is(err, wrong) {
		return fmt.Errorf("ended otherwise: %w", err)
	}
	return fmt.Errorf("%w: %w", layer.ErrAgain, err)
}

// onFewAndManyCores calls test for a machine on which one layer is compressed at a time, and for one on which they are beside each other.
// written is the file of the layers of madeElsewhere when they are in the store.
func onFewAndManyCores(t *testing.T, test func(o Options, cores int, written []byte)) {
	t.Helper()
	old := besideLeast
	besideLeast = 1
	defer func() { besideLeast = old }()
	for _, cores := range []int{2, besideCores} {
		sq := settings()["tails"]
		sq.Workers = cores
		o := Options{Squashfs: sq, NoReuse: true}
		st := newStore(t)
		test(o, cores, writeTo(t, st, o, madeElsewhere(t, st)...).data)
	}
}

// A layer that came wrong at first is read again, however many do so, and the file is the same.
func TestAgain(t *testing.T) {
	onFewAndManyCores(t, func(o Options, cores int, want []byte) {
		st := newStore(t)
		ds := madeElsewhere(t, st)
		times := make([]int, len(ds))
		for i := range times {
			times[i] = 1
		}
		got, err := writeSources(t, st, o, func(i int, s layer.Source) layer.Source { return again{s, &times[i]} }, ds...)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d cores: other bytes, %v", cores, err)
		}
		if slices.Max(times) > 0 {
			t.Errorf("%d cores: not every layer was read: %v", cores, times)
		}
	})
}

// writeAwaited writes an image whose layers arrive when wait returns. used is called when a file of the highest layer is opened.
func writeAwaited(t *testing.T, st *store.Store, o Options, used func(), wait func(context.Context, int) error, layers ...layer.Descriptor) ([]byte, error) {
	t.Helper()
	return writeSources(t, st, o, func(number int, s layer.Source) layer.Source {
		if number == len(layers)-1 {
			s = opening{s, used}
		}
		return awaited{s, func(ctx context.Context) error { return wait(ctx, number) }}
	}, layers...)
}

// writeSources writes an image of layers as source makes them of those in the store.
func writeSources(t *testing.T, st *store.Store, o Options, source func(number int, s layer.Source) layer.Source, layers ...layer.Descriptor) ([]byte, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image.sqsh")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := inputOf(st, new([]string), layers...)
	for i, d := range layers {
		in.Layers[i].Source, in.Layers[i].Packed = source(i, layer.Stored(st, d)), d.Size
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // instead of waiting forever
	defer cancel()
	o.Store = st
	if err := WriteSquashfs(ctx, f, in, o); err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

// The upper layers are compressed while the lower ones are on their way, and the file is the same.
func TestAwait(t *testing.T) {
	onFewAndManyCores(t, func(o Options, cores int, want []byte) {
		st := newStore(t)
		ds := madeElsewhere(t, st)
		inUse := make(chan struct{})
		used := sync.OnceFunc(func() { close(inUse) })
		got, err := writeAwaited(t, st, o, used, func(ctx context.Context, number int) error {
			if number == len(ds)-1 {
				return nil
			}
			select { // the lower layers arrive when the highest is in use, and not before
			case <-inUse:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, ds...)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d cores: other bytes, %v", cores, err)
		}
	})
}

// A layer that does not arrive ends the writing with the reason.
func TestAwaitFails(t *testing.T) {
	gone := errors.New("it is gone")
	st := newStore(t)
	_, err := writeAwaited(t, st, Options{Squashfs: settings()["tails"]}, func() {}, func(_ context.Context, number int) error {
		if number == 0 {
			return gone
		}
		return nil
	}, madeElsewhere(t, st)...)
	if !errors.Is(err, gone) {
		t.Errorf("error %v", err)
	}
}
