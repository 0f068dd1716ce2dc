package store_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sconce.dev/sconce/internal/store"
)

// What is unpacked goes before what has to be downloaded, whatever was used last, and what an image needs stays.
func TestKeepWithin(t *testing.T) {
	s := open(t, t.TempDir())
	blob := func(c byte) store.Digest { return put(t, s, string(make([]byte, 999))+string(c)) }
	ofImage, old, fresh := blob('i'), blob('o'), blob('f')
	image(t, s, "kept", ofImage)
	ageBlob(t, s, ofImage, month)
	ageBlob(t, s, old, month)
	tree := func(name string) string {
		dir, err := s.Tree(t.Context(), name, func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1000), 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir := tree("unpacked")
	keep := func(limit int64) (store.PruneReport, bool) {
		r, ok, err := s.KeepWithin(t.Context(), store.Limits{Bytes: limit})
		if err != nil {
			t.Fatal(err)
		}
		return r, ok
	}
	if r, ok := keep(1 << 20); !ok || r.Bytes > 0 {
		t.Errorf("a store that fits: %+v, %v", r, ok)
	}
	if _, ok := keep(1); ok {
		t.Error("it was measured again at once")
	}
	later := func() { age(t, filepath.Join(s.Dir(), "measured-v1"), 2*time.Hour) }

	other, err := store.Open(context.Background(), s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	later()
	if _, ok := keep(1); ok {
		t.Error("something was removed that another process may use")
	}
	other.Close()
	if r, ok := keep(4200); !ok || r.Trees != 1 || r.Blobs != 0 {
		t.Errorf("%+v, %v: only the tree goes", r, ok)
	}
	for _, path := range []string{dir, dir + ".size", dir + ".done"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	tree("unpacked") // once more
	later()
	if r, ok := keep(2600); !ok || r.Trees != 1 || r.Blobs != 1 || exists(s, old) || !exists(s, fresh) {
		t.Errorf("%+v, %v: the tree and the old blob go", r, ok)
	}
	later()
	if r, ok := keep(1); !ok || r.Blobs != 1 || !exists(s, ofImage) || r.Kept == 0 {
		t.Errorf("%+v, %v: the image stays", r, ok)
	}
}
