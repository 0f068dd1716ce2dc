package layer

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// A layer of somebody else is the same layer, or damaged in the same words, whether it is read by many cores or by two.
func TestLayerOnManyCores(t *testing.T) {
	content := make([]byte, 5<<20) // enough for trials that are in vain to be given up
	_, _ = rand.NewChaCha8([32]byte{2}).Read(content)
	var raw, packed bytes.Buffer
	w := tar.NewWriter(&raw)
	text := fmt.Appendf(nil, "%x", content[:3<<19])
	for name, data := range map[string][]byte{"noise": content, "text": text} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(data)
	}
	w.Close()
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(raw.Bytes())
	z.Close()
	torn := bytes.Clone(packed.Bytes())
	torn[len(torn)/2] ^= 4
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for name, data := range map[string][]byte{"whole": packed.Bytes(), "torn": torn, "cut": packed.Bytes()[:packed.Len()/2]} {
		var said []string
		for _, cores := range []int{2, 8} {
			runtime.GOMAXPROCS(cores)
			st := storetest.Alone(t)
			d := putBlob(t, st, data)
			ix, err := OpenIndex(t.Context(), st, d)
			said = append(said, fmt.Sprint(err))
			if name != "whole" {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := store.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256(raw.Bytes()))); ix.DiffID != want {
				t.Errorf("on %d cores it unpacks to %s and not to %s", cores, ix.DiffID, want)
			}
			for i, e := range ix.Entries {
				r, err := ix.Open(i)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, map[string][]byte{"noise": content, "text": text}[e.Path]) {
					t.Errorf("on %d cores %s has %d bytes, %v", cores, e.Path, len(got), err)
				}
				r.Close()
			}
		}
		if said[0] != said[1] || (name == "whole") != (said[0] == "<nil>") {
			t.Errorf("%s: on two cores %q, on many %q", name, said[0], said[1])
		}
	}
}
