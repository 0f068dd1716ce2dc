package facts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
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
	from, st := storetest.Alone(t), storetest.Alone(t)
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
	from, st := storetest.Alone(t), storetest.Alone(t)
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
	from, st := storetest.Alone(t), storetest.Alone(t)
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
	from := storetest.Alone(t)
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
			st := storetest.Alone(t)
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
	st := storetest.Alone(t)
	a := &arriving{away(t, from, im), st, []byte("x")}
	a.broken = errors.New("cut")
	if _, err := OfOutline(t.Context(), st, outlineOf(t, st, a), "test"); !errors.Is(err, a.broken) {
		t.Errorf("a download that fails: %v", err)
	}
}

// importing is a package with an extension module that is none, far from its __init__.py, and a linker's script.
func importing() []content {
	return []content{
		{path: site + "pkg/__init__.py", data: []byte("from . import sub\n")},
		{path: site + "pkg/sub/__init__.py", data: []byte("from .deep import _c\n")},
		{path: site + "pkg/sub/deep/__init__.py", data: []byte("x = 1\n")},
		{path: site + "pkg/sub/deep/_c.cpython-312-x86_64-linux-gnu.so", data: []byte("version https://git-lfs.github.com/spec/v1\n")},
		{path: "usr/lib/libm.so", data: []byte("GROUP ( /lib/libm.so.6 )\n")},
	}
}

// What is wanted when all files are looked at together is copied while a layer is read: it is not decompressed again.
func TestLayersAreReadOnce(t *testing.T) {
	from, st := storetest.Alone(t), storetest.Alone(t)
	const gz = "application/vnd.oci.image.layer.v1.tar+gzip"
	im := imageOf(t, from, foreign(t, from, gzipped(t, tarOf(t, importing())), gz), foreign(t, from, gzipped(t, tarOf(t, withPackage(t))), gz))
	want := gathered(t, from, im)
	if i := slices.IndexFunc(want.Links, func(l LinkProblem) bool { return l.Role == RoleImport }); i < 0 {
		t.Fatalf("no import was followed: %+v", want.Links)
	}
	e := away(t, from, im)
	o := outlineOf(t, st, e)
	l := newLayered(t.Context(), st, o.Image, "test")
	var err error
	if l.root.tree, err = l.passing.tree(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	e.asked()
	lose(t, st, im)
	f, err := l.gatherTree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	sameFacts(t, want, f)
	if n := e.asked(); n != 0 {
		t.Errorf("%d layers were read again", n)
	}
}

// manyLibraries are in one layer, with device code and without, damaged ones among them.
func manyLibraries(t *testing.T) []content {
	t.Helper()
	lib, bad := fixture(t, "host.so"), damaged(t)
	var list []content
	for i := range 60 {
		data := lib
		if i%5 == 0 {
			data = bad
		}
		list = append(list, content{path: fmt.Sprintf("opt/lib%02d.so", i), data: append(slices.Clone(data), byte(i))})
	}
	return list
}

// What is found in a layer, and what is kept of it, is the same bytes with one look at a time and with many, for a layer that arrives
// and for one that is there.
func TestFactsOfManyLooks(t *testing.T) {
	from := storetest.Alone(t)
	im := imageOf(t, from, foreign(t, from, gzipped(t, tarOf(t, manyLibraries(t))), "application/vnd.oci.image.layer.v1.tar+gzip"))
	var want *Facts
	var record []byte
	for _, n := range []int{1, 16} {
		arriving, there := storetest.Alone(t), storetest.Alone(t)
		o := outlineOf(t, arriving, away(t, from, im))
		l := newLayered(t.Context(), arriving, o.Image, "test")
		l.passing.looks = looks{make(chan struct{}, n)}
		first, err := l.ofOutline(t.Context(), arriving, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { first.Close() })
		img, err := im.V1(from)
		if err != nil {
			t.Fatal(err)
		}
		again, err := image.Import(t.Context(), there, img, 1)
		if err != nil {
			t.Fatal(err)
		}
		l = newLayered(t.Context(), there, again, "test")
		l.passing.looks = looks{make(chan struct{}, n)}
		if l.root.tree, err = again.Tree(t.Context(), there); err != nil {
			t.Fatal(err)
		}
		second, err := l.gatherTree(t.Context(), there)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { second.Close() })
		if want == nil {
			want, record = first, layerRecord(t, arriving, im)
			if len(want.Objects) != 60 || len(want.GPU.Warnings) == 0 {
				t.Fatalf("%d objects, warnings %q", len(want.Objects), want.GPU.Warnings)
			}
		}
		sameFacts(t, want, first)
		sameFacts(t, want, second)
		for name, st := range map[string]*store.Store{"arrives": arriving, "is there": there} {
			if got := layerRecord(t, st, im); !bytes.Equal(got, record) {
				t.Errorf("%d looks at a layer that %s: another record:\n%s\n%s", n, name, got, record)
			}
		}
	}
}

// layerRecord is what a store keeps of the image's only layer.
func layerRecord(t *testing.T, st *store.Store, im *image.Image) []byte {
	t.Helper()
	var r json.RawMessage
	c := cache{st}
	if ok, err := st.GetRecord(store.KindAuditLayer, c.key(string(im.Layers[0].DiffID)), &r); !ok || err != nil {
		t.Fatalf("what was found is not kept: %v", err)
	}
	return r
}

// A look does not keep the next file of the layer from being read, and no more are under way than there is memory for.
func TestLooksAtOnce(t *testing.T) {
	for _, c := range []struct {
		cores     int
		available int64
		want      int
	}{{16, 64 << 30, 16}, {16, 512 << 20, 8}, {16, 128 << 20, 2}, {16, 0, 1}, {1, 64 << 30, 1}} {
		if got := looksAtOnce(c.cores, c.available); got != c.want {
			t.Errorf("%d cores and %d bytes: %d looks, want %d", c.cores, c.available, got, c.want)
		}
	}
	l := looks{make(chan struct{}, 2)}
	var group sync.WaitGroup
	second := make(chan struct{})
	l.begin(&group, func() { <-second }) // ends when the second has begun
	l.begin(&group, func() { close(second) })
	var now, most atomic.Int32
	for range 20 {
		l.begin(&group, func() {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			runtime.Gosched()
			now.Add(-1)
		})
	}
	group.Wait()
	if n := most.Load(); n > 2 {
		t.Errorf("%d looks at once, and 2 are allowed", n)
	}
}
