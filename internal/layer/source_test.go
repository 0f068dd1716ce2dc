package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// walked is what a walk showed: the entries, and the contents of those that want chose.
type walked struct {
	entries  []IndexEntry
	contents map[int][]byte
}

// walk walks over a source and opens the files that want chooses, of which it reads only a part now and then.
func walk(tb testing.TB, s Source, want func(i int) bool, r *rand.Rand) walked {
	tb.Helper()
	w := walked{contents: map[int][]byte{}}
	err := s.Walk(tb.Context(), func(e IndexEntry, open func() (io.ReadCloser, error)) error {
		i := len(w.entries)
		w.entries = append(w.entries, e)
		if e.Type != Regular || !want(i) {
			return nil
		}
		rc, err := open()
		if err != nil {
			return err
		}
		if r.IntN(4) == 0 {
			_, err := io.CopyN(io.Discard, rc, r.Int64N(e.Size+1))
			return err
		}
		w.contents[i], err = io.ReadAll(rc)
		return errors.Join(err, rc.Close())
	})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// checkWalked compares a walk with what was written.
func checkWalked(tb testing.TB, what string, w walked, objects []object) {
	tb.Helper()
	if len(w.entries) != len(objects) {
		tb.Fatalf("%s: %d entries, want %d", what, len(w.entries), len(objects))
	}
	for i, want := range objects {
		if w.entries[i].Path != want.Path || w.entries[i].Size != want.Size {
			tb.Fatalf("%s: entry %d is %q of %d bytes, want %q of %d", what, i, w.entries[i].Path, w.entries[i].Size, want.Path, want.Size)
		}
		if got, ok := w.contents[i]; ok && !bytes.Equal(got, want.data) {
			tb.Fatalf("%s: %q has another content", what, want.Path)
		}
	}
}

// some is a choice of entries: all, none, or most or few of them at random.
func some(r *rand.Rand) func(int) bool {
	share := []int{0, 1, 10, 50, 90, 100}[r.IntN(6)]
	return func(int) bool { return r.IntN(100) < share }
}

// TestSources walks over the same random trees as layers that were made here and elsewhere, whose index is known and is not,
// and as files outside the store.
func TestSources(t *testing.T) {
	st := storetest.Alone(t)
	seeds, largest := uint64(9), ChunkSize+1234
	if tooltest.Less(t) {
		seeds, largest = 3, ChunkSize/5 // each compression once; all of a tree is still several chunks
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 9))
		objects := randomTreeOf(r, largest)
		d := write(t, st, objects, Options{Compression: []Compression{Zstd, Gzip, None}[seed%3]})
		ix, err := OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		foreign := storetest.Alone(t)
		copyBlob(t, st, foreign, d.Digest)
		checkSource(t, "made here", Stored(st, d), objects, ix, r)
		checkSource(t, "foreign", Stored(foreign, d), objects, ix, r)
		checkSource(t, "foreign and known", Stored(foreign, d), objects, ix, r)
		if _, known := Known(foreign, d); !known {
			t.Error("the walk did not leave an index in the store")
		}
		p, err := st.BlobPath(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkSource(t, "file", TarFile(st, mustOpen(t, p)), objects, ix, r)
	}
}

// checkSource walks over a source twice, and reads the contents again through the index it gives.
func checkSource(t *testing.T, what string, s Source, objects []object, want *Index, r *rand.Rand) {
	t.Helper()
	checkWalked(t, what, walk(t, s, some(r), r), objects)
	got, err := s.Index(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Entries, got.Entries, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s: the index differs:\n%s", what, diff)
	}
	if got.RawSize != want.RawSize || got.DiffID != want.DiffID && got.DiffID != "" {
		t.Errorf("%s: %d bytes, %s, want %d bytes, %s", what, got.RawSize, got.DiffID, want.RawSize, want.DiffID)
	}
	checkWalked(t, what+", again", walk(t, s, some(r), r), objects)
	checkObjects(t, got, objects, r)
}

// TestSparseSources walks over files with holes, which GNU tar writes in four ways.
func TestSparseSources(t *testing.T) {
	prog := tooltest.Path(t, "tar")
	dir := t.TempDir()
	var names []string
	want := map[string][]byte{}
	for i, size := range []int{700_000, 3, 900_000, 500_000, 4096, 0} {
		name := fmt.Sprint("f", i)
		data := make([]byte, size)
		if size > 100_000 {
			copy(data[size/2:], strings.Repeat(name, 1000))
			data[size-1] = 1
		} else {
			copy(data, strings.Repeat("z", size))
		}
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(f.Truncate(int64(size)), writeWithHoles(f, data), f.Close())
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
		want[name] = data
	}
	for _, format := range [][]string{{"--format=gnu"}, {"--format=posix", "--sparse-version=0.0"}, {"--format=posix", "--sparse-version=0.1"}, {"--format=posix", "--sparse-version=1.0"}} {
		data, err := exec.Command(prog, append(append([]string{"--create", "--sparse", "--directory=" + dir}, format...), names...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		packed, err := compressGzip(nil, data)
		if err != nil {
			t.Fatal(err)
		}
		for _, blob := range [][]byte{data, packed} {
			checkSparse(t, fmt.Sprint(format), blob, want)
		}
	}
}

func checkSparse(t *testing.T, what string, blob []byte, want map[string][]byte) {
	t.Helper()
	st := storetest.Alone(t)
	digest, err := st.PutBlob(blob)
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(t.TempDir(), "tar")
	if err := os.WriteFile(p, blob, 0o600); err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, p)
	for _, s := range []Source{Stored(st, Descriptor{Digest: digest}), TarFile(st, f)} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 1))
			w := walk(t, s, some(r), r)
			sparse := 0
			for i, e := range w.entries {
				if got, ok := w.contents[i]; ok && !bytes.Equal(got, want[e.Path]) {
					t.Fatalf("%s: %s differs", what, e.Path)
				}
				if e.Sparse > 0 {
					sparse++
				}
			}
			if len(w.entries) != len(want) || sparse != 3 {
				t.Fatalf("%s: %d entries, %d with holes", what, len(w.entries), sparse)
			}
		}
	}
}

// writeWithHoles writes what is not zero.
func writeWithHoles(f *os.File, data []byte) error {
	const block = 4096
	for at := 0; at < len(data); at += block {
		piece := data[at:min(at+block, len(data))]
		if bytes.Count(piece, []byte{0}) == len(piece) {
			continue
		}
		if _, err := f.WriteAt(piece, int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// TestSourceErrors has what a visitor gets and gives when something is wrong.
func TestSourceErrors(t *testing.T) {
	st := storetest.Alone(t)
	objects := []object{dir("d"), file("e", "one"), file("f", strings.Repeat("two", 100_000)), file("g", "three")}
	d := write(t, st, objects, Options{})
	foreign := storetest.Alone(t)
	copyBlob(t, st, foreign, d.Digest)
	mine := errors.New("mine")
	for name, s := range map[string]Source{"known": Stored(st, d), "unknown": Stored(foreign, d)} {
		err := s.Walk(t.Context(), func(e IndexEntry, open func() (io.ReadCloser, error)) error {
			if e.Path == "f" {
				return mine
			}
			return nil
		})
		if err != mine { //nolint:errorlint // it must come back as it is
			t.Errorf("%s: the visitor's error came back as %v", name, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = s.Walk(ctx, func(IndexEntry, func() (io.ReadCloser, error)) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: cancelled: %v", name, err)
		}
		checkLending(t, name, s)
	}
	if err := Stored(foreign, Descriptor{Digest: d.Digest, DiffID: store.DigestOf(nil)}).Walk(t.Context(), ignore); err == nil || !strings.Contains(err.Error(), "unpacks to") {
		t.Errorf("a wrong DiffID: %v", err)
	}
}

func ignore(IndexEntry, func() (io.ReadCloser, error)) error { return nil }

// checkLending makes sure that contents are given once, and taken back.
func checkLending(t *testing.T, name string, s Source) {
	t.Helper()
	var kept io.Reader
	err := s.Walk(t.Context(), func(e IndexEntry, open func() (io.ReadCloser, error)) error {
		if kept != nil {
			if _, err := kept.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
				t.Errorf("%s: a content could be read after its visit: %v", name, err)
			}
			kept = nil
		}
		r, err := open()
		if e.Type != Regular {
			if err == nil {
				t.Errorf("%s: a directory could be opened", name)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := open(); err == nil {
			t.Errorf("%s: a content could be opened twice", name)
		}
		kept = r
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDamagedSource cuts and changes the blob of a layer. A walk must fail, unless the bytes that were changed are not used,
// and must not show other contents when its index is known.
func TestDamagedSource(t *testing.T) {
	for _, c := range []Compression{Zstd, Gzip, None} {
		st := storetest.Alone(t)
		objects := []object{file("a", strings.Repeat("some text ", 900_000)), file("b", "short")}
		d := write(t, st, objects, Options{Compression: c})
		p, err := st.BlobPath(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		good, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, good[:len(good)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		err = Stored(st, d).Walk(t.Context(), func(_ IndexEntry, open func() (io.ReadCloser, error)) error {
			r, err := open()
			if err == nil {
				_, err = io.Copy(io.Discard, r)
			}
			return err
		})
		if err == nil {
			t.Errorf("%s: a layer that was cut in half could be read", c)
		}
		if err := Stored(st, d).Walk(t.Context(), ignore); err != nil {
			t.Errorf("%s: a walk that opens nothing read the blob: %v", c, err)
		}
		if err := TarFile(st, mustOpen(t, p)).Walk(t.Context(), ignore); err == nil {
			t.Errorf("%s: a file that was cut in half is accepted", c)
		}
	}
}

// TestTarFileRefuses has files that are no root file system. What links and paths mean together is the tree's to judge.
func TestTarFileRefuses(t *testing.T) {
	st := storetest.Alone(t)
	for want, data := range hostileTars(t) {
		p := filepath.Join(t.TempDir(), "tar")
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
		err := TarFile(st, mustOpen(t, p)).Walk(t.Context(), ignore)
		if strings.Contains(want, "no earlier") || strings.Contains(want, "lies below") {
			want = ""
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v\nwant one with %q", err, want)
		}
	}
	if err := TarFile(st, mustOpen(t, t.TempDir())).Walk(t.Context(), ignore); err == nil {
		t.Error("a directory is accepted")
	}
}

func mustOpen(t *testing.T, p string) *os.File {
	t.Helper()
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
