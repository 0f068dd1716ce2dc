package facts

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/store"
)

// elsewhere is an image of another store, which notes what is asked of it.
type elsewhere struct {
	v1.Image
	mu      sync.Mutex
	brought []v1.Hash // layers
	broken  error
}

func (e *elsewhere) LayerByDigest(h v1.Hash) (v1.Layer, error) {
	l, err := e.Image.LayerByDigest(h)
	return elsewhereLayer{l, e}, err
}

type elsewhereLayer struct {
	v1.Layer
	e *elsewhere
}

func (l elsewhereLayer) Compressed() (io.ReadCloser, error) {
	h, err := l.Digest()
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.e.brought = append(l.e.brought, h)
	if err == nil {
		err = l.e.broken
	}
	if err != nil {
		return nil, err
	}
	return l.Layer.Compressed()
}

func (e *elsewhere) asked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.brought)
	e.brought = nil
	return n
}

func away(t *testing.T, st *store.Store, im *image.Image) *elsewhere {
	t.Helper()
	img, err := im.V1(st)
	if err != nil {
		t.Fatal(err)
	}
	return &elsewhere{Image: img}
}

func outlineOf(t *testing.T, st *store.Store, e v1.Image) *image.Outline {
	t.Helper()
	o, err := image.ReadOutline(t.Context(), st, e)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func outlined(t *testing.T, st *store.Store, e v1.Image) *Facts {
	t.Helper()
	f, err := OfOutline(t.Context(), st, outlineOf(t, st, e), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// lose removes the layers' blobs from a store.
func lose(t *testing.T, st *store.Store, im *image.Image) {
	t.Helper()
	for _, d := range im.Layers {
		name, err := st.BlobPath(d.Digest)
		if err == nil {
			err = os.Remove(name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// withPackage has what rules read beside machine code.
func withPackage(t *testing.T) []content {
	t.Helper()
	return []content{
		{path: "etc/ld.so.conf", data: []byte("/opt/cuda/lib\n")},
		{path: "opt/more.so", data: fixture(t, "host.so")},
		{path: site + "thing-1.dist-info/METADATA", data: []byte("Metadata-Version: 2.1\nName: thing\nVersion: 1\n")},
	}
}

// What is brought when it is wanted tells the same as what is there, is brought once, and is not missed when it is gone.
func TestFactsOfOutline(t *testing.T) {
	from, st := testStore(t), testStore(t)
	const gz = "application/vnd.oci.image.layer.v1.tar+gzip"
	lower := chunked(t, from, slices.DeleteFunc(contents(t), func(c content) bool { return c.link != "" }))
	upper := foreign(t, from, gzipped(t, tarOf(t, withPackage(t))), gz)
	plain := foreign(t, from, tarOf(t, []content{{path: "opt/cuda/lib/.wh.x.fatbin"}, {path: "opt/third.so", data: fixture(t, "host.so")}}), "application/vnd.oci.image.layer.v1.tar")
	im := imageOf(t, from, lower, upper, plain)
	want := gathered(t, from, im)
	e := away(t, from, im)
	sameFacts(t, want, outlined(t, st, e))
	if n := e.asked(); n != 3 {
		t.Errorf("%d layers were brought, want 3", n)
	}
	sameFacts(t, want, outlined(t, st, e))
	if n := e.asked(); n != 0 {
		t.Errorf("%d layers were brought again", n)
	}
	lose(t, st, im)
	facts := outlined(t, st, e)
	sameFacts(t, want, facts)
	if d := cmp.Diff(want.GPU, gpu(t, Outlined(outlineOf(t, st, e), st))); d != "" {
		t.Errorf("another report:\n%s", d)
	}
	if n := e.asked(); n != 0 {
		t.Errorf("%d known layers were brought", n)
	}
	h, err := facts.Root.Open("/opt/third.so")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := h.ReadAt(make([]byte, 100), 200); err != nil || e.asked() != 1 {
		t.Errorf("a file that is not known: %v", err)
	}
}

// A layer that an image shares with a known one is known.
func TestOutlineOfSharedLayers(t *testing.T) {
	from, st := testStore(t), testStore(t)
	base := foreign(t, from, gzipped(t, tarOf(t, contents(t))), "application/vnd.oci.image.layer.v1.tar+gzip")
	top := chunked(t, from, withPackage(t))
	first := away(t, from, imageOf(t, from, base))
	gpu(t, Outlined(outlineOf(t, st, first), st))
	if n := first.asked(); n != 1 {
		t.Errorf("%d layers were brought", n)
	}
	second := away(t, from, imageOf(t, from, base, top))
	sameFacts(t, gathered(t, from, imageOf(t, from, base, top)), outlined(t, st, second))
	if n := second.asked(); n != 1 {
		t.Errorf("%d layers were brought, one is new", n)
	}
}

// A layer that does not come is an error, never a damaged file, and nothing is kept of what was seen without it.
func TestOutlineOfBrokenSource(t *testing.T) {
	from, st := testStore(t), testStore(t)
	im := imageOf(t, from, chunked(t, from, withPackage(t)))
	e := away(t, from, im)
	e.broken = errors.New("no way")
	if _, err := OfOutline(t.Context(), st, outlineOf(t, st, e), "test"); !errors.Is(err, e.broken) {
		t.Errorf("without the layer: %v", err)
	}
	e.broken = nil
	if _, err := outlineOf(t, st, e).Tree(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	lose(t, st, im) // the index is known, and nothing else
	e.broken = errors.New("no way any more")
	if _, err := OfOutline(t.Context(), st, outlineOf(t, st, e), "test"); !errors.Is(err, e.broken) {
		t.Errorf("without the content: %v", err)
	}
	if _, err := GPU(t.Context(), Outlined(outlineOf(t, st, e), st)); !errors.Is(err, e.broken) {
		t.Errorf("the report without the content: %v", err)
	}
	e.broken = nil
	want := gathered(t, from, im)
	f := outlined(t, st, e)
	sameFacts(t, want, f)
	lose(t, st, im)
	e.broken = errors.New("gone for good")
	f = outlined(t, st, e)
	h, err := f.Root.Open("/opt/more.so")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := h.ReadAt(make([]byte, 100), 300); !errors.Is(err, e.broken) {
		t.Errorf("a read: %v", err)
	}
	if err := f.Missing(); !errors.Is(err, e.broken) {
		t.Errorf("what is missing: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := image.ReadOutline(ctx, st, e); !errors.Is(err, context.Canceled) {
		t.Errorf("after the interrupt: %v", err)
	}
}

// arriving is an image whose layers arrive in a store piece by piece, at first with other bytes.
type arriving struct {
	*elsewhere
	st    *store.Store
	wrong []byte // what arrives in vain
}

func (a *arriving) LayerByDigest(h v1.Hash) (v1.Layer, error) {
	l, err := a.elsewhere.LayerByDigest(h)
	return arrivingLayer{l, a}, err
}

type arrivingLayer struct {
	v1.Layer
	a *arriving
}

func (l arrivingLayer) Follow(_ context.Context, read func(io.ReadCloser)) error {
	h, err := l.Digest()
	if err != nil {
		return err
	}
	part, err := l.a.st.OpenPartial(store.Digest(h.String()))
	if err != nil {
		return err
	}
	defer part.Close()
	r, err := part.Follow()
	if err != nil {
		return err
	}
	read(r)
	if len(l.a.wrong) > 0 {
		if _, err := part.Write(l.a.wrong); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // it is looked at, or not
		if err := part.Reset(); err != nil {
			return err
		}
	}
	right, err := l.Compressed()
	if err != nil {
		return err
	}
	defer right.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{part}, right, make([]byte, 1000)); err != nil {
		return err
	}
	return part.Commit()
}

// A layer is looked at while it arrives, and what turns out wrong is forgotten.
func TestOutlineOfArrivingLayers(t *testing.T) {
	from := testStore(t)
	const gz = "application/vnd.oci.image.layer.v1.tar+gzip"
	im := imageOf(t, from, foreign(t, from, gzipped(t, tarOf(t, contents(t))), gz), chunked(t, from, withPackage(t)))
	want := gathered(t, from, im)
	for name, wrong := range map[string][]byte{
		"right at once": nil,
		"garbage first": bytes.Repeat([]byte("garbage"), 1000),
		"another first": gzipped(t, tarOf(t, []content{
			{path: "opt/cuda/lib/x.fatbin", data: fixture(t, "host.so")}, {path: "opt/evil.so", data: fixture(t, "host.so")}, {path: "etc/ld.so.conf", data: []byte("/evil\n")},
		})),
	} {
		t.Run(name, func(t *testing.T) {
			st := testStore(t)
			a := &arriving{away(t, from, im), st, wrong}
			sameFacts(t, want, outlined(t, st, a))
			if n := a.asked(); n != 2 {
				t.Errorf("%d layers were brought", n)
			}
			lose(t, st, im)
			sameFacts(t, want, outlined(t, st, a))
			if n := a.asked(); n != 0 {
				t.Errorf("%d layers were brought again", n)
			}
		})
	}
	st := testStore(t)
	a := &arriving{away(t, from, im), st, []byte("x")}
	a.broken = errors.New("cut")
	if _, err := OfOutline(t.Context(), st, outlineOf(t, st, a), "test"); !errors.Is(err, a.broken) {
		t.Errorf("a download that fails: %v", err)
	}
}
