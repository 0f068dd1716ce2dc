package layer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// checkOpenAt reads the file of an index in any order, or makes sure that it cannot be.
func checkOpenAt(t *testing.T, ix *Index, name string, want []byte, random bool) {
	t.Helper()
	for _, e := range ix.Entries {
		if e.Path != name {
			continue
		}
		r, err := ix.OpenAt(e)
		if err != nil || (r != nil) != random {
			t.Fatalf("OpenAt gives a reader: %v, error %v", r != nil, err)
		}
		if r == nil {
			return
		}
		defer r.Close()
		source := rand.New(rand.NewPCG(1, 2))
		for range 50 {
			at := source.IntN(len(want))
			got := make([]byte, source.IntN(len(want)-at)+1)
			if n, err := r.ReadAt(got, int64(at)); n != len(got) || err != nil || !bytes.Equal(got, want[at:at+n]) {
				t.Fatalf("%d of %d bytes at %d, error %v, or they are wrong", n, len(got), at, err)
			}
		}
		got := make([]byte, 10)
		if n, err := r.ReadAt(got, int64(len(want)-3)); n != 3 || !errors.Is(err, io.EOF) || !bytes.Equal(got[:3], want[len(want)-3:]) {
			t.Errorf("at the end: %d bytes, error %v", n, err)
		}
		e.Offset = ix.RawSize
		if _, err := ix.OpenAt(e); err == nil {
			t.Error("a content beyond the end is opened")
		}
		return
	}
	t.Fatalf("no %s", name)
}

func TestOpenAt(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	long := compressible(r, ChunkSize+ChunkSize/2)
	objects := []object{file("a", "small"), file("big", string(long)), file("z", "last")}
	streams := map[string][]byte{"big": deflateBytes(t, long, 1)}
	open := func(d Descriptor, st *store.Store) *Index {
		t.Helper()
		ix, err := OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		return ix
	}
	st := storetest.Alone(t)
	for _, c := range []Compression{Zstd, Gzip, None} {
		ix := open(write(t, st, objects, Options{Compression: c}), st)
		checkOpenAt(t, ix, "big", long, true)
		checkOpenAt(t, ix, "a", []byte("small"), true)
	}
	ix := open(writeDeflated(t, st, objects, streams, Options{Compression: Gzip}), st)
	checkOpenAt(t, ix, "big", long, false) // is one long chunk
	checkOpenAt(t, ix, "z", []byte("last"), true)

	foreign := storetest.Alone(t)
	packed := write(t, st, objects, Options{Compression: Gzip})
	copyBlob(t, st, foreign, packed.Digest)
	checkOpenAt(t, open(Descriptor{MediaType: packed.MediaType, Digest: packed.Digest, Size: packed.Size}, foreign), "big", long, false)
}
