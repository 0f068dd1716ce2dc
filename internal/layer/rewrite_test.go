package layer

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// flipped gives what it reads with every bit the other way.
type flipped struct{ r io.Reader }

func (f flipped) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	for i := range p[:n] {
		p[i] ^= 0xff
	}
	return n, err
}

// someChanges flips about a third of the regular files of a layer, and does the same to tar.
func someChanges(ix *Index, tar []byte, r *rand.Rand) []Change {
	var changes []Change
	for _, e := range ix.Entries {
		if e.Type != Regular || r.IntN(3) > 0 {
			continue
		}
		old := tar[e.Offset : e.Offset+e.Size]
		for i := range old {
			old[i] ^= 0xff
		}
		content := func(r io.Reader) io.Reader { return flipped{r} }
		if r.IntN(2) == 0 { // without a look at the old one
			data := slices.Clone(old)
			content = func(io.Reader) io.Reader { return bytes.NewReader(data) }
		}
		changes = append(changes, Change{e, content})
	}
	r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	return changes
}

// checkRewrite rewrites a layer and wants its tar with nothing else changed, the same for any number of workers, and an index
// that a scan would make.
func checkRewrite(t *testing.T, st *store.Store, d Descriptor, mediaType string, r *rand.Rand) {
	t.Helper()
	ix, err := OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	want := rawTar(t, st, d)
	changes := someChanges(ix, want, r)
	got, err := Rewrite(t.Context(), st, d, changes, Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(rawTar(t, st, got), want) {
		t.Fatal("the tar is not the old one with the changes")
	}
	if got.DiffID != store.DigestOf(want) || got.RawSize != int64(len(want)) || got.MediaType != mediaType {
		t.Errorf("descriptor %+v, want media type %s", got, mediaType)
	}
	if again, err := Rewrite(t.Context(), st, d, changes, Options{Workers: 5}); err != nil || again != got {
		t.Errorf("with more workers %+v, %v; want %+v", again, err, got)
	}
	if err := Verify(t.Context(), st, got); err != nil {
		t.Error(err)
	}
	own, err := OpenIndex(t.Context(), st, got)
	if err != nil {
		t.Fatal(err)
	}
	other := storetest.Alone(t)
	copyBlob(t, st, other, got.Digest)
	scanned, err := OpenIndex(t.Context(), other, got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(scanned.Entries, own.Entries, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("index (-scanned +own):\n%s", diff)
	}
}

func TestRewrite(t *testing.T) {
	seeds := uint64(3)
	if tooltest.Less(t) {
		seeds = 1
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 9))
		objects, streams := deflatedTree(t, r)
		for _, c := range []Compression{Gzip, Zstd, None} {
			st := storetest.Alone(t)
			d := writeDeflated(t, st, objects, streams, Options{Compression: c})
			checkRewrite(t, st, d, c.MediaType(), r)
			if same, err := Rewrite(t.Context(), st, d, nil, Options{}); err != nil || c != None && same.Digest != d.Digest {
				t.Errorf("%s: without changes it is %s, %v; want %s", c, same.Digest, err, d.Digest)
			}
			other := storetest.Alone(t) // which does not know how the layer was made
			copyBlob(t, st, other, d.Digest)
			want := c.MediaType()
			if c == None {
				want = Gzip.MediaType()
			}
			checkRewrite(t, other, Descriptor{Digest: d.Digest, Size: d.Size, MediaType: d.MediaType}, want, r)
		}
	}
}

// putBlob stores a layer that somebody else has made.
func putBlob(t *testing.T, st *store.Store, data []byte) Descriptor {
	t.Helper()
	digest, err := st.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	return Descriptor{Digest: digest, Size: int64(len(data))}
}

// A layer that no Writer would make is kept as it is: the order, names twice, files with holes, what follows the end.
func TestRewriteForeign(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"z": "last comes first", "a": "content", ".wh.gone": "", ".wh..wh..opq": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	holes, err := os.Create(filepath.Join(dir, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writeWithHoles(holes, append(make([]byte, 3<<20), 1)), holes.Close(), os.Link(filepath.Join(dir, "z"), filepath.Join(dir, "y"))); err != nil {
		t.Fatal(err)
	}
	data := gnuTar(t, dir, "z", "holes", "y", ".wh.gone", "a", ".wh..wh..opq", "a")
	data = append(data, bytes.Repeat([]byte{0}, 3*blockSize)...)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(data)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	st := storetest.Alone(t)
	d := putBlob(t, st, packed.Bytes())
	ix, err := OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(data, []byte("content"))
	want := slices.Clone(data)
	copy(want[at:], "CONTENT")
	i := slices.IndexFunc(ix.Entries, func(e IndexEntry) bool { return e.Path == "a" && e.Offset == int64(at) })
	if i < 0 {
		t.Fatalf("the second a is not among %+v", ix.Entries)
	}
	got, err := Rewrite(t.Context(), st, d, []Change{{ix.Entries[i], func(io.Reader) io.Reader { return strings.NewReader("CONTENT") }}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(rawTar(t, st, got), want) {
		t.Error("the tar is not the old one with the change")
	}
	j := slices.IndexFunc(ix.Entries, func(e IndexEntry) bool { return e.Sparse > 0 })
	if j < 0 {
		t.Fatal("tar stored no file with holes")
	}
	if _, err := Rewrite(t.Context(), st, d, []Change{{ix.Entries[j], func(r io.Reader) io.Reader { return r }}}, Options{}); err == nil {
		t.Error("the content of a file with holes was replaced")
	}
}

// gnuTar is what tar makes of files of a directory, in this order.
func gnuTar(t *testing.T, dir string, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(tooltest.Path(t, "tar"), append([]string{"--sparse", "--format=gnu", "-C", dir, "-cf", "-"}, names...)...)
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRewriteErrors(t *testing.T) {
	st := storetest.Alone(t)
	d := write(t, st, []object{file("a", "12345"), file("b", "x")}, Options{})
	ix, err := OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("the content failed")
	for name, c := range map[string]struct {
		entry   IndexEntry
		content io.Reader
		want    string
	}{
		"short":    {ix.Entries[0], strings.NewReader("1234"), "its content is 4 bytes, 5 were announced"},
		"long":     {ix.Entries[0], strings.NewReader("123456"), "longer than the 5 bytes"},
		"broken":   {ix.Entries[0], io.MultiReader(strings.NewReader("12"), errorReader{failed}), failed.Error()},
		"no place": {IndexEntry{Entry: ix.Entries[0].Entry, Offset: 1 << 40}, strings.NewReader("12345"), "no place of its own"},
	} {
		_, err := Rewrite(t.Context(), st, d, []Change{{c.entry, func(io.Reader) io.Reader { return c.content }}}, Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	twice := func(io.Reader) io.Reader { return strings.NewReader("12345") }
	if _, err := Rewrite(t.Context(), st, d, []Change{{ix.Entries[0], twice}, {ix.Entries[0], twice}}, Options{}); err == nil {
		t.Error("one file was changed twice")
	}
	if left, err := filepath.Glob(filepath.Join(st.Dir(), "tmp-v1", "*")); err != nil || len(left) > 0 {
		t.Errorf("failures left %v, %v", left, err)
	}
	if _, err := Rewrite(t.Context(), st, Descriptor{Digest: store.DigestOf([]byte("no layer"))}, nil, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a layer that is not there: %v", err)
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }
