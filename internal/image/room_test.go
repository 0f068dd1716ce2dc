package image

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// Of an image whose layers do not all fit into the store none comes, and of one that has come nothing counts.
func TestImageThatDoesNotFit(t *testing.T) {
	refused := func(t *testing.T, b *bringing, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "has room for") || !strings.Contains(fault.HintOf(err), "cache prune") {
			t.Errorf("error %v with hint %q", err, fault.HintOf(err))
		}
		if len(b.begun) > 0 {
			t.Errorf("layers %v were asked for", b.begun)
		}
	}
	largeOn := func(t *testing.T, disk string) *bringing {
		t.Helper()
		b := newBringing(t, 1, func(context.Context, int) error { return nil })
		var err error
		if b.img, err = random.Image(800_000, 3); err != nil {
			t.Fatal(err)
		}
		if b.st, err = store.Open(t.Context(), tooltest.SmallDisk(t, disk)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.st.Close() })
		b.describe(t)
		return b
	}
	t.Run("imported", func(t *testing.T) {
		b := largeOn(t, "size=2m")
		_, err := Import(t.Context(), b.st, b.view(), 2)
		refused(t, b, err)
	})
	t.Run("arriving", func(t *testing.T) {
		b := largeOn(t, "size=2m")
		a, ends := b.arrive(t, 2)
		for number := range 3 {
			refused(t, b, a.Wait(limited(t), number))
		}
		refused(t, b, a.Layer(2).Walk(limited(t), nil))
		a.Close()
		if len(*ends) != 1 || (*ends)[0] == nil {
			t.Errorf("ended with %v", *ends)
		}
	})
	t.Run("here already", func(t *testing.T) {
		b := largeOn(t, "size=3m") // of which less than an image is left
		if _, err := Import(t.Context(), b.st, b.view(), 2); err != nil {
			t.Fatal(err)
		}
		if _, err := Import(t.Context(), b.st, b.view(), 2); err != nil {
			t.Errorf("the second time: %v", err)
		}
		a, _ := b.arrive(t, 2)
		if err := a.Wait(limited(t), 0); err != nil {
			t.Errorf("as it arrives: %v", err)
		}
	})
}
