package facts

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

func gathered(t *testing.T, st *store.Store, im *image.Image) *Facts {
	t.Helper()
	f, err := OfImage(t.Context(), st, im, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// sameFacts compares what was gathered, but for the way to the files.
func sameFacts(t *testing.T, a, b *Facts) {
	t.Helper()
	if d := cmp.Diff(a, b, cmpopts.IgnoreUnexported(Facts{}), cmpopts.IgnoreFields(Facts{}, "Root")); d != "" {
		t.Errorf("other facts (-first +second):\n%s", d)
	}
}

// noLayers removes the layers' blobs: what needs one fails.
func noLayers(t *testing.T, st *store.Store, im *image.Image) {
	t.Helper()
	for _, d := range im.Layers {
		name, err := st.BlobPath(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, d.Size); err != nil { // still there, and zeros
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(name, 0o644), os.WriteFile(name, make([]byte, d.Size), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// A second look reads no file, and says the same.
func TestFactsAreKept(t *testing.T) {
	st := storetest.Alone(t)
	all := contents(t)
	lower := chunked(t, st, slices.DeleteFunc(slices.Clone(all), func(c content) bool { return c.link != "" }))
	upper := foreign(t, st, gzipped(t, tarOf(t, []content{{path: "opt/more.so", data: fixture(t, "host.so")}})), "application/vnd.oci.image.layer.v1.tar+gzip")
	im := imageOf(t, st, lower, upper)
	first := gathered(t, st, im)
	if len(first.GPU.Libraries) != 5 || len(first.GPU.Warnings) == 0 || len(first.Objects) != 4 {
		t.Errorf("%v, %q, %+v", lines(first.GPU), first.GPU.Warnings, first.Objects)
	}
	for _, l := range first.GPU.Libraries {
		for _, c := range slices.Concat(l.SASS, l.PTX, l.LTO) {
			if c.Architecture() == (fatbin.Arch{}) {
				t.Errorf("%s has code for %q without an architecture", l.Path, c.Arch)
			}
		}
	}
	noLayers(t, st, im)
	sameFacts(t, first, gathered(t, st, im))
	tree, err := im.Tree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(first.GPU, gpu(t, Tree(tree, st))); d != "" {
		t.Errorf("another report:\n%s", d)
	}
}

// What was found in a layer is known in every image with that layer, also when the first image hides some of its files.
func TestFactsOfSharedLayers(t *testing.T) {
	st := storetest.Alone(t)
	lib := fixture(t, "host.so")
	base := chunked(t, st, []content{{path: "a/shown.so", data: lib}, {path: "b/hidden.so", data: append(slices.Clone(lib), 1)}})
	top := chunked(t, st, []content{{path: "b/.wh.hidden.so"}, {path: "c/other.so", data: lib}})
	first := gathered(t, st, imageOf(t, st, base, top))
	if got := paths(first); !slices.Equal(got, []string{"a/shown.so", "c/other.so"}) {
		t.Errorf("objects %q", got)
	}
	known := cache{st}.layer(imageOf(t, st, base).Layers[0].DiffID)
	if len(known) != 1 {
		t.Errorf("%d files of the base are known, and one was seen", len(known))
	}
	second := gathered(t, st, imageOf(t, st, base))
	if got := paths(second); !slices.Equal(got, []string{"a/shown.so", "b/hidden.so"}) {
		t.Errorf("objects %q", got)
	}
	noLayers(t, st, imageOf(t, st, base, top))
	sameFacts(t, first, gathered(t, st, imageOf(t, st, base, top)))
	sameFacts(t, second, gathered(t, st, imageOf(t, st, base)))
}

func paths(f *Facts) []string {
	var list []string
	for _, o := range f.Objects {
		list = append(list, o.Path)
	}
	return list
}

// A read-only store has no room for facts, which is no reason to fail.
func TestFactsInReadOnlyStore(t *testing.T) {
	st := storetest.Alone(t)
	im := imageOf(t, st, asForeign(t, st, chunked(t, st, []content{{path: "a.so", data: fixture(t, "host.so")}})))
	want := gathered(t, st, im)
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	for _, dir := range []string{"records-v1", "tmp-v1", "."} {
		if err := os.Chmod(filepath.Join(st.Dir(), dir), 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(filepath.Join(st.Dir(), dir), 0o755) })
	}
	again, err := store.Open(t.Context(), st.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	sameFacts(t, want, gathered(t, again, im))
}

// The facts of a cluster file are known again as long as the file system is the same to the last time and length.
func TestFactsOfClusterFile(t *testing.T) {
	st := storetest.Alone(t)
	im := imageOf(t, st, chunked(t, st, []content{{path: "a.so", data: fixture(t, "host.so")}, {path: "b", data: make([]byte, 9000)}}))
	c := writeSquashfs(t, st, im)
	of := func(st *store.Store, c *source.ClusterFile) *Facts {
		t.Helper()
		f, err := OfClusterFile(t.Context(), st, c, "test")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := of(st, c)
	if len(first.Objects) != 1 || len(first.GPU.Libraries) != 1 || first.Platform != "linux/amd64" {
		t.Errorf("%+v %v %s", first.Objects, lines(first.GPU), first.Platform)
	}
	keys, err := st.Keys(store.KindAuditFile)
	if err != nil || len(keys) != 1 {
		t.Fatalf("%q, %v", keys, err)
	}
	if err := st.PutRecord(store.KindAuditFile, keys[0], nil, pathFacts{}); err != nil { // to see that it is believed
		t.Fatal(err)
	}
	if f := of(st, c); len(f.Objects) > 0 {
		t.Error("the file was read again")
	}
	other := writeSquashfs(t, st, imageOf(t, st, chunked(t, st, []content{{path: "a.so", data: fixture(t, "hip.o")}, {path: "b", data: make([]byte, 9000)}})))
	if f := of(st, other); len(f.Objects) == 0 {
		t.Error("another file system was taken for the first")
	}
	sameFacts(t, first, of(nil, c))
}

// Damage that may pass is not remembered.
func TestUnreadIsNotKept(t *testing.T) {
	st := storetest.Alone(t)
	diffID := store.DigestOf([]byte("x"))
	known := map[place]fileFacts{
		{1, 0}: {}, {2, 0}: {CodeDamage: []string{"no answer from the disk"}, unread: true}, {3, 1}: {Damage: []string{"really damaged"}},
	}
	if err := (cache{st}).keepLayer(diffID, known); err != nil {
		t.Fatal(err)
	}
	delete(known, place{2, 0})
	if d := cmp.Diff(known, cache{st}.layer(diffID), cmp.AllowUnexported(fileFacts{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if len((cache{}).layer(diffID)) > 0 || len((cache{st}).layer("")) > 0 {
		t.Error("facts from nowhere")
	}
}

// What rules read of contents that are slow to get at is there for the next check.
func TestSlowReadsAreKept(t *testing.T) {
	st := storetest.Alone(t)
	lib := slices.Concat(fixture(t, "host.so"), bytes.Repeat([]byte("x"), 200_000))
	im := imageOf(t, st, asForeign(t, st, chunked(t, st, []content{{path: "a.so", data: lib}, {path: "b.txt", data: []byte("small")}})))
	read := func(f *Facts, name string, off, n int) ([]byte, error) {
		h, err := f.Root.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		b := make([]byte, n)
		n, err = h.ReadAt(b, int64(off))
		return b[:n], err
	}
	first, err := OfImage(t.Context(), st, im, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range [][2]int{{0, 64}, {4000, 200}, {len(lib) - 10, 10}, {100_000, 60_000}} {
		b, err := read(first, "/a.so", at[0], at[1])
		if err != nil || !bytes.Equal(b, lib[at[0]:at[0]+at[1]]) {
			t.Errorf("%d bytes at %d: %v, or other bytes", at[1], at[0], err)
		}
	}
	if b, err := read(first, "/b.txt", 1, 10); string(b) != "mall" || !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v", b, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	noLayers(t, st, im)
	second := gathered(t, st, im)
	if b, err := read(second, "/a.so", 100_001, 59_000); err != nil || !bytes.Equal(b, lib[100_001:159_001]) {
		t.Errorf("a page that was read: %v, or other bytes", err)
	}
	if b, _ := read(second, "/b.txt", 0, 5); string(b) != "small" {
		t.Errorf("%q", b)
	}
	if _, err := read(second, "/a.so", 50_000, 10); err == nil {
		t.Error("a page was read that is nowhere")
	}
}

func TestGatherIsCancelled(t *testing.T) {
	st := storetest.Alone(t)
	im := imageOf(t, st, chunked(t, st, []content{{path: "a.so", data: fixture(t, "host.so")}}))
	c := writeSquashfs(t, st, im)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OfImage(ctx, st, im, "test"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := OfClusterFile(ctx, st, c, "test"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFactsShape(t *testing.T) {
	for _, name := range []string{"Soname string", "SASS", "Requires", "Links", "Pythons", "codeDamage"} {
		if !strings.Contains(factsShape, strings.Fields(name)[0]) {
			t.Errorf("the shape of what is kept says nothing of %s:\n%s", name, factsShape)
		}
	}
	if (cache{}).key("a", "b") == (cache{}).key("a b") {
		t.Error("two keys are one")
	}
}
