package image

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// bringing is an image whose layers come as a test says.
type bringing struct {
	st     *store.Store
	img    v1.Image
	digest []v1.Hash // of the layers, lowest first

	mu     sync.Mutex
	begun  []int // the numbers of layers that were asked for, in order
	before func(ctx context.Context, number int) error
}

func newBringing(t *testing.T, layers int, before func(ctx context.Context, number int) error) *bringing {
	t.Helper()
	img, err := random.Image(1000, int64(layers))
	if err != nil {
		t.Fatal(err)
	}
	b := &bringing{st: storetest.Alone(t), img: img, before: before}
	b.describe(t)
	return b
}

func (b *bringing) describe(t *testing.T) {
	t.Helper()
	m, err := b.img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	b.digest = nil
	for _, d := range m.Layers {
		b.digest = append(b.digest, d.Digest)
	}
}

func (b *bringing) ensure(ctx context.Context, l v1.Layer) error {
	digest, err := l.Digest()
	if err != nil {
		return err
	}
	number := slices.Index(b.digest, digest)
	b.mu.Lock()
	b.begun = append(b.begun, number)
	b.mu.Unlock()
	if err := b.before(ctx, number); err != nil {
		return err
	}
	r, err := l.Compressed()
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, err = b.st.PutBlob(data)
	return err
}

func (b *bringing) view() v1.Image {
	return watched{b.img, func(l v1.Layer) v1.Layer { return ensuredLayer{l, b.ensure} }}
}

// arrive begins. What end was called with is in ends after Close.
func (b *bringing) arrive(t *testing.T, jobs int) (a *Arrival, ends *[]error) {
	t.Helper()
	ends = new([]error)
	a, err := Arrive(t.Context(), b.st, b.view(), jobs, "import image", func(err error) { *ends = append(*ends, err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, ends
}

// limited ends a test that would wait forever.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// An upper layer is there before the lower ones, which come in order.
func TestArrive(t *testing.T) {
	gate := make(chan struct{})
	b := newBringing(t, 4, func(ctx context.Context, number int) error {
		if number == 3 {
			return nil
		}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	a, ends := b.arrive(t, 1)
	ctx := limited(t)
	if err := a.Wait(ctx, 3); err != nil {
		t.Fatal(err)
	}
	if !b.st.HasBlob(a.Image.Layers[3].Digest) || b.st.HasBlob(a.Image.Layers[0].Digest) {
		t.Error("not the upper layer alone is there")
	}
	close(gate)
	for number := range 4 {
		if err := a.Wait(ctx, number); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	if !slices.Equal(b.begun, []int{3, 2, 1, 0}) {
		t.Errorf("layers came in the order %v", b.begun)
	}
	if len(*ends) != 1 || (*ends)[0] != nil || a.Err() != nil {
		t.Errorf("ended with %v, %v", *ends, a.Err())
	}
	if _, err := Load(ctx, b.st, a.Image.Digest); err != nil {
		t.Error(err)
	}
}

// Of a layer that does not come everyone is told, in the words of Import.
func TestArriveFails(t *testing.T) {
	gone := errors.New("it is gone")
	fails := func(ctx context.Context, number int) error {
		if number == 1 {
			return gone
		}
		<-ctx.Done() // ends because of the other
		return ctx.Err()
	}
	b := newBringing(t, 2, fails)
	_, want := Import(t.Context(), b.st, b.view(), 2)
	if !errors.Is(want, gone) {
		t.Fatal(want)
	}
	a, ends := b.arrive(t, 2)
	for _, number := range []int{0, 1} {
		if err := a.Wait(limited(t), number); err == nil || err.Error() != want.Error() || !errors.Is(err, gone) {
			t.Errorf("layer %d: %v, want %v", number, err, want)
		}
	}
	a.Close()
	if len(*ends) != 1 || !errors.Is((*ends)[0], gone) {
		t.Errorf("ended with %v", *ends)
	}
}

// Nothing is brought for nobody.
func TestArriveUnused(t *testing.T) {
	b := newBringing(t, 2, func(context.Context, int) error { return nil })
	a, ends := b.arrive(t, 2)
	a.Close()
	if len(b.begun) > 0 || len(*ends) != 1 || (*ends)[0] != nil {
		t.Errorf("layers %v were brought, ended with %v", b.begun, *ends)
	}
}

// Who waits can give up, and so can who brings.
func TestArriveCancelled(t *testing.T) {
	asked := make(chan struct{}, 1)
	b := newBringing(t, 1, func(ctx context.Context, _ int) error {
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	a, _ := b.arrive(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if err := a.Wait(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ended with %v", err)
	}
	a.Close()
	if err := a.Wait(limited(t), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("after Close: %v", err)
	}
}

// A layer that an image has twice is brought once.
func TestArriveTwice(t *testing.T) {
	b := newBringing(t, 2, func(context.Context, int) error { return nil })
	layers, err := b.img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if b.img, err = mutate.AppendLayers(b.img, layers[0]); err != nil {
		t.Fatal(err)
	}
	b.describe(t)
	a, _ := b.arrive(t, 3)
	for number := range 3 {
		if err := a.Wait(limited(t), number); err != nil {
			t.Error(err)
		}
	}
	a.Close()
	if len(b.begun) != 2 {
		t.Errorf("layers %v were brought", b.begun)
	}
}

// With little memory, fewer layers are on their way at once.
func TestBroughtAtOnce(t *testing.T) {
	for available, want := range map[int64]int{0: 2, 256 << 20: 2, 512 << 20: 4, 1 << 30: maxBrought, 1 << 40: maxBrought} {
		if got := broughtAtOnce(available); got != want {
			t.Errorf("%d bytes: %d layers, want %d", available, got, want)
		}
	}
}
