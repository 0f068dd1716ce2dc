package clusterfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
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

// writeAwaited writes an image whose layers arrive when wait returns. used is called when a file of the highest layer is opened.
func writeAwaited(t *testing.T, st *store.Store, o Options, used func(), wait func(context.Context, int) error, layers ...layer.Descriptor) ([]byte, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image.sqsh")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := inputOf(st, new([]string), layers...)
	for i, d := range layers {
		in.Layers[i].Source, in.Layers[i].Packed = layer.Stored(st, d), d.Size
	}
	top := &in.Layers[len(layers)-1]
	top.Source = opening{top.Source, used}
	in.Await(wait)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // instead of waiting forever
	defer cancel()
	o.Store = st
	if err := WriteSquashfs(ctx, f, in, o); err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

// The upper layers are compressed while the lower ones are on their way, and the file is the same.
func TestAwait(t *testing.T) {
	old := besideLeast
	besideLeast = 1
	defer func() { besideLeast = old }()
	for _, cores := range []int{2, besideFrom} {
		sq := settings()["tails"]
		sq.Workers = cores
		o := Options{Squashfs: sq, NoReuse: true}
		st := newStore(t)
		want := writeTo(t, st, o, madeElsewhere(t, st)...)

		st = newStore(t)
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
		if err != nil || !bytes.Equal(got, want.data) {
			t.Errorf("%d cores: other bytes, %v", cores, err)
		}
	}
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
