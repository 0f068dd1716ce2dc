package clusterfile

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// startImage has files in two layers whose contents can be found in what is written.
func startImage(t *testing.T, st *store.Store) []layer.Descriptor {
	return []layer.Descriptor{
		foreignLayer(t, st, tarOf(t, dir("d"), file("d/a", noise(1, 5000)), file("d/b", noise(2, 300_000)), file("d/c", noise(3, 70_000)), file("d/large", noise(4, startLargest+1)))),
		ownLayer(t, st, layer.Gzip, dir("d"), file("d/b", noise(5, 40_000)), file("d/e", noise(6, 200_000)), hardLink("d/f", "d/e")),
	}
}

// writeStarted writes the image of layers with files of a start.
func writeStarted(t *testing.T, st *store.Store, o Options, start []string, layers ...layer.Descriptor) written {
	t.Helper()
	w := written{name: filepath.Join(t.TempDir(), "image.sqsh")}
	f, err := os.Create(w.name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := inputOf(st, &w.opened, layers...)
	in.Start, o.Store = start, st
	if err := WriteSquashfs(t.Context(), f, in, o); err != nil {
		t.Fatal(err)
	}
	if w.data, err = os.ReadFile(w.name); err != nil {
		t.Fatal(err)
	}
	if !Holds(w.reader(t), in, o.Squashfs) {
		t.Error("the file is not taken for what was written into it")
	}
	in.Start = append([]string{"else"}, start...)
	if Holds(w.reader(t), in, o.Squashfs) {
		t.Error("the file is taken for one with another order")
	}
	return w
}

// Files that a start reads stand behind all others, one after the other in the order of the start, whatever layers they come from; the
// tree is the same, and so are the bytes, whatever the store has kept of earlier files.
func TestFilesOfTheStart(t *testing.T) {
	// The blocks of a file come before the ends of files, which share fragments.
	start := []string{"d/e", "d/missing", "d/a", "d/large", "d", "d/b", "d/c", "d/e"}
	o := Options{Squashfs: squashfs.Options{Compression: squashfs.Stored, BlockSize: 4096, TailPacking: false}}
	st := newStore(t)
	layers := startImage(t, st)
	plain := writeTo(t, st, o, layers...)
	before := writeStarted(t, st, o, start, layers...)
	again := writeStarted(t, st, o, start, layers...)
	other := newStore(t)
	alone := writeStarted(t, other, Options{Squashfs: o.Squashfs, NoReuse: true}, start, startImage(t, other)...)
	if before.sum() != alone.sum() || again.sum() != alone.sum() {
		t.Error("the bytes depend on what was written before")
	}
	if len(again.opened) > 0 {
		t.Errorf("read again: %q", again.opened)
	}
	if got, want := before.tree(t), plain.tree(t); !maps.Equal(got, want) {
		t.Errorf("the tree is\n%v\nwant\n%v", got, want)
	}
	at := -1
	for i, content := range [][]byte{noise(4, startLargest+1), noise(6, 200_000), noise(1, 5000), noise(5, 40_000), noise(3, 70_000)} {
		found := bytes.Index(before.data, content[:4096])
		if found <= at {
			t.Errorf("file %d of those that were looked for stands at %d, the one before at %d", i, found, at)
		}
		at = found
	}
	if first, last := bytes.Index(before.data, noise(6, 4096)), bytes.Index(before.data, noise(3, 4096)); last-first > 200_000+5000+40_000+4*4096 {
		t.Errorf("the files of the start are not together: %d to %d", first, last)
	}
}

// A tar is written once, and nothing of it is kept.
func TestStartOfATar(t *testing.T) {
	st := newStore(t)
	in := inputOf(st, new([]string), startImage(t, st)...)
	for i := range in.Layers {
		in.Layers[i].Digest = ""
	}
	in.Start = []string{"d/e", "d/c"}
	f, err := os.Create(filepath.Join(t.TempDir(), "image.sqsh"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := WriteSquashfs(t.Context(), f, in, Options{Store: st, Squashfs: squashfs.DefaultOptions()}); err != nil {
		t.Fatal(err)
	}
	if keys, err := st.Keys(store.KindPacks); err != nil || len(keys) > 0 {
		t.Errorf("kept: %v, %v", keys, err)
	}
}
