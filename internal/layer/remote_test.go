package layer

import (
	"errors"
	"io"
	"os"
	"testing"

	"sconce.dev/sconce/internal/store/storetest"
)

// The index of a layer outlives its blob, which is brought when a content is wanted.
func TestKnownIndex(t *testing.T) {
	st := storetest.Alone(t)
	for _, c := range []Compression{Gzip, Zstd, None} {
		t.Run(string(c), func(t *testing.T) {
			d := write(t, st, []object{file("a", "hello"), file("b", string(c))}, Options{Compression: c})
			name, err := st.BlobPath(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			aside := name + ".aside"
			if err := os.Rename(name, aside); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenIndex(t.Context(), st, d); err == nil {
				t.Error("OpenIndex is content without the blob")
			}
			brought := 0
			bring := func() error {
				brought++
				return os.Rename(aside, name)
			}
			ix, err := KnownIndex(st, d, bring)
			if err != nil || ix == nil || len(ix.Entries) != 2 || brought != 0 {
				t.Fatalf("%v, %v, brought %d times", ix, err, brought)
			}
			for i, want := range []string{"hello", string(c)} {
				r, err := ix.OpenAt(ix.Entries[i])
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(want))
				if _, err := r.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) || string(got) != want {
					t.Errorf("read %q, %v, want %q", got, err, want)
				}
				r.Close()
			}
			if brought != 1 {
				t.Errorf("brought %d times", brought)
			}
			d.DiffID = d.Digest
			if c != None {
				if _, err := KnownIndex(st, d, nil); err == nil {
					t.Error("a layer that is not what the image says is believed")
				}
			}
		})
	}
	d := write(t, st, []object{file("a", "x")}, Options{})
	d.Digest = "sha256:" + d.Digest[7:60] + "00000000000"
	if ix, err := KnownIndex(st, d, nil); ix != nil || err != nil {
		t.Errorf("of an unknown layer: %v, %v", ix, err)
	}
}
