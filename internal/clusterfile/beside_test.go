package clusterfile

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// writeBeside writes an image of which all layers are worth compressing beside others. What is read of the lowest is in opened.
func writeBeside(t *testing.T, st *store.Store, o Options, layers ...layer.Descriptor) (sum string, opened []string, err error) {
	t.Helper()
	old := besideLeast
	besideLeast = 1
	defer func() { besideLeast = old }()
	o.Store = st
	name := filepath.Join(t.TempDir(), "image.sqsh")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := inputOf(st, new([]string), layers...)
	for i, d := range layers {
		in.Layers[i].Packed = d.Size
		if in.Layers[i].Source = layer.Stored(st, d); i == 0 {
			in.Layers[i].Source = recorder{in.Layers[i].Source, &opened}
		}
	}
	if err := WriteSquashfs(t.Context(), f, in, o); err != nil {
		return "", opened, err
	}
	data, err := os.ReadFile(name)
	return fmt.Sprintf("%x", sha256.Sum256(data)), opened, err
}

// Layers that are compressed beside each other make the same bytes as one after the other, and are kept for the next image.
func TestBeside(t *testing.T) {
	hidden := 0
	for _, name := range []string{"small blocks", "tails"} {
		sq := settings()[name]
		t.Run(name, func(t *testing.T) {
			alone := newStore(t)
			want := writeTo(t, alone, Options{Squashfs: sq, NoReuse: true}, madeElsewhere(t, alone)...)
			for _, cores := range []int{besideCores} {
				sq.Workers = cores
				st := newStore(t)
				ds := madeElsewhere(t, st)
				for _, o := range []Options{{Squashfs: sq, NoReuse: true}, {Squashfs: sq}} {
					got, opened, err := writeBeside(t, st, o, ds...)
					hidden += max(0, len(opened)-len(want.opened))
					if err != nil || got != want.sum() {
						t.Errorf("%d cores, no reuse %t: other bytes, %v", cores, o.NoReuse, err)
					}
				}
				if again := writeTo(t, st, Options{Squashfs: sq}, ds...); len(again.opened) > 0 || again.sum() != want.sum() {
					t.Errorf("%d cores: read again: %q", cores, again.opened)
				}
			}
		})
	}
	if hidden == 0 {
		t.Error("nothing hidden was read: no layer was compressed before its turn")
	}
}

// A layer that is damaged is refused with the words that it is refused with when it is read in its turn.
func TestBesideDamaged(t *testing.T) {
	st := newStore(t)
	ds := madeElsewhere(t, st)
	ds[0] = brokenLayer(t, st)
	_, want := tryWrite(t, st, Options{NoReuse: true}, ds...)
	o := Options{NoReuse: true}
	o.Squashfs.Workers = besideCores
	_, _, err := writeBeside(t, st, o, ds...)
	if err == nil || fmt.Sprint(err) != fmt.Sprint(want) {
		t.Errorf("refused with %v; in its turn with %v", err, want)
	}
	if left, _ := filepath.Glob(filepath.Join(st.Dir(), "tmp-v1", "file-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// brokenLayer is a gzip layer with a bit that has flipped.
func brokenLayer(t *testing.T, st *store.Store) layer.Descriptor {
	t.Helper()
	d := foreignLayer(t, st, tarOf(t, file("a", prose(3, 100<<10))))
	data, err := st.ReadBlob(d.Digest, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Clone(data)
	data[len(data)/2] ^= 4
	d.Digest, err = st.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
