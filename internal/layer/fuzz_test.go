package layer

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

func seedTars(f *testing.F) {
	st := storetest.Alone(f)
	for seed := range uint64(4) {
		d := write(f, st, randomTreeOf(rand.New(rand.NewPCG(seed, 2)), 2000), Options{Compression: []Compression{None, Gzip, Zstd, None}[seed]})
		p, err := st.BlobPath(d.Digest)
		if err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, data := range hostileTars(f) {
		f.Add(data)
	}
}

// maxFuzzed keeps a single fuzzing step short: what unfolds to more is left alone.
const maxFuzzed = 1 << 20

// FuzzIndex makes an index of arbitrary bytes. It must not panic, its stored form must be read back the same, and each file
// it names must be readable.
func FuzzIndex(f *testing.F) {
	seedTars(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		ix, err := scan(context.Background(), nil, bytes.NewReader(data), nil)
		if err != nil {
			return
		}
		stored, err := ix.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeIndex(stored)
		if err != nil {
			t.Fatalf("the stored index cannot be read: %v", err)
		}
		if len(back.Entries) != len(ix.Entries) {
			t.Fatalf("%d entries became %d", len(ix.Entries), len(back.Entries))
		}
		st := fuzzStore(t)
		digest, err := st.PutBlob(data)
		if err != nil {
			t.Fatal(err)
		}
		ix.from = storedBlob{st, digest}
		for i, e := range ix.Entries {
			if e.Type != Regular || e.Size > maxFuzzed {
				continue
			}
			rc, err := ix.Open(i)
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(rc)
			rc.Close()
			if err != nil || int64(len(content)) != e.Size {
				t.Fatalf("entry %d: %d of %d bytes, %v", i, len(content), e.Size, err)
			}
		}
	})
}

// FuzzStoredIndex reads arbitrary bytes as a stored index; what is accepted must be written back to the same meaning.
func FuzzStoredIndex(f *testing.F) {
	ix := &Index{format: formatZstd, chunks: []mark{{}, {10, ChunkSize}, {30, ChunkSize + 2048}}, Entries: []IndexEntry{
		{Entry: Entry{Path: "a", Type: Dir, Mode: 0o755, ModTime: DefaultModTime}},
		{Entry: Entry{Path: "a/b", Size: 5, ModTime: DefaultModTime, Xattrs: map[string]string{"user.k": "v"}}, Offset: 1024},
	}}
	plain, err := ix.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain[len(indexMagic):])
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, stored := range [][]byte{append([]byte(indexMagic), data...), packIndex(t, data)} {
			one, err := decodeIndex(stored)
			if err != nil {
				continue
			}
			again, err := one.encode()
			if err != nil {
				t.Fatal(err)
			}
			two, err := decodeIndex(again)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(one.Entries, two.Entries, cmpopts.EquateEmpty()); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func packIndex(t *testing.T, data []byte) []byte {
	packed, err := compressZstd([]byte(indexMagic), data)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// FuzzFromTar makes a layer of arbitrary bytes. What is accepted must give the same layer when made again of its own tar, and
// must unpack without touching anything outside.
func FuzzFromTar(f *testing.F) {
	seedTars(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		st := fuzzStore(t)
		d, err := FromTar(context.Background(), st, bytes.NewReader(data), Options{Compression: None, Workers: 1})
		if err != nil || d.RawSize > 8*maxFuzzed {
			return
		}
		again, err := FromTar(context.Background(), st, bytes.NewReader(rawTar(t, st, d)), Options{Compression: None, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if again != d {
			t.Fatal("a layer made of a layer differs")
		}
		parent := t.TempDir()
		to := filepath.Join(parent, "to")
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = Unpack(context.Background(), st, d, to, UnpackOptions{}) // may fail, as on a name the file system refuses
		if files, _ := os.ReadDir(parent); len(files) != 1 {
			t.Fatalf("something appeared beside the directory: %v", files)
		}
	})
}

func fuzzStore(t *testing.T) *store.Store {
	st, err := store.Open(context.Background(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}
