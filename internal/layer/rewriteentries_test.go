package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// someEdits removes some files and links of a layer and gives some files another content. It returns what is then there.
func someEdits(ix *Index, objects []object, r *rand.Rand) ([]Edit, []object) {
	var edits []Edit
	var left []object
	renamed := map[string]string{} // of removed files, the name that takes the place; "" as long as there is none
	for i, o := range objects {
		if ix.Entries[i].Path != o.Path {
			panic("the index has another order")
		}
		if to, gone := renamed[o.Link]; gone && o.Type == HardLink {
			if r.IntN(3) == 0 {
				edits = append(edits, Edit{At: i, Remove: true})
				continue
			}
			if to != "" {
				o.Link = to
			} else {
				first := objects[slices.IndexFunc(objects, func(f object) bool { return f.Path == o.Link })]
				renamed[o.Link] = o.Path
				o.Type, o.Link, o.data, o.Size, o.Xattrs = Regular, "", first.data, first.Size, first.Xattrs
			}
			left = append(left, o)
			continue
		}
		switch n := r.IntN(4); {
		case o.Type == Dir || n > 1:
			left = append(left, o)
		case n == 0:
			edits = append(edits, Edit{At: i, Remove: true})
			if o.Type == Regular {
				renamed[o.Path] = ""
			}
		case o.Type == Regular:
			old := o.data
			o.data = slices.Concat(old[len(old)/2:], []byte("more"))[:r.IntN(len(old)/2+1)]
			o.Size = int64(len(o.data))
			data := o.data
			edits = append(edits, Edit{At: i, Size: o.Size, Content: func(r io.Reader) io.Reader {
				return io.MultiReader(skipped{r, len(old) / 3}, bytes.NewReader(data))
			}})
			left = append(left, o)
		default:
			left = append(left, o)
		}
	}
	r.Shuffle(len(edits), func(i, j int) { edits[i], edits[j] = edits[j], edits[i] })
	return edits, left
}

// skipped reads n bytes and shows none of them.
type skipped struct {
	r io.Reader
	n int
}

func (s skipped) Read([]byte) (int, error) {
	_, _ = io.CopyN(io.Discard, s.r, int64(s.n))
	return 0, io.EOF
}

// TestRewriteEntries wants of a layer made here what would have been made of what is left.
func TestRewriteEntries(t *testing.T) {
	seeds := uint64(2)
	if tooltest.Less(t) {
		seeds = 1
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 11))
		objects, streams := deflatedTree(t, r)
		for _, c := range []Compression{Gzip, Zstd, None} {
			st := storetest.Alone(t)
			d := writeDeflated(t, st, objects, streams, Options{Compression: c})
			ix, err := OpenIndex(t.Context(), st, d)
			if err != nil {
				t.Fatal(err)
			}
			edits, left := someEdits(ix, objects, r)
			want := rawTar(t, st, writeDeflated(t, st, left, nil, Options{Compression: None}))
			got := checkEdits(t, st, d, edits, want)
			foreign := storetest.Alone(t) // which does not know how the layer was made
			copyBlob(t, st, foreign, d.Digest)
			if other := checkEdits(t, foreign, d, edits, want); other.DiffID != got.DiffID {
				t.Errorf("%s: without the index it is %s", c, other.DiffID)
			}
			if same, err := RewriteEntries(t.Context(), st, d, nil, Options{}); err != nil || same.Digest != d.Digest {
				t.Errorf("%s: without edits it is %s, %v", c, same.Digest, err)
			}
		}
	}
}

func checkEdits(t *testing.T, st *store.Store, d Descriptor, edits []Edit, want []byte) Descriptor {
	t.Helper()
	got, err := RewriteEntries(t.Context(), st, d, edits, Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if raw := rawTar(t, st, got); !bytes.Equal(raw, want) {
		t.Fatalf("the tar is not that of what is left: %d bytes, want %d", len(raw), len(want))
	}
	if again, err := RewriteEntries(t.Context(), st, d, edits, Options{Workers: 5}); err != nil || again != got {
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
	for _, e := range own.Entries {
		if e.Type != Regular {
			continue
		}
		rc, err := own.OpenContent(e)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(rc); err != nil || !bytes.Equal(data, want[e.Offset:e.Offset+e.Size]) {
			t.Errorf("%s read at random is something else (%v)", e.Path, err)
		}
		rc.Close()
	}
	return got
}

// TestRewriteForeignEntries edits a tar as others write them; what is not edited keeps what only they know.
func TestRewriteForeignEntries(t *testing.T) {
	st := storetest.Alone(t)
	long := string(bytes.Repeat([]byte("long/"), 60)) + "name"
	write := func(entries ...*tar.Header) Descriptor {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, h := range entries {
			if err := tw.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := tw.Write(bytes.Repeat([]byte{'x'}, int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		d, err := st.PutBlob(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return Descriptor{Digest: d, Size: int64(b.Len())}
	}
	entry := func(name string, size int64, format tar.Format) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: size, Mode: 0o600, Uname: "joe", Format: format}
	}
	global := &tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}
	other := entry("b", 30, tar.FormatPAX)
	other.PAXRecords = map[string]string{"VENDOR.thing": "kept"}
	smaller := *other
	smaller.Size = 7
	d := write(global, entry(long, 5, tar.FormatGNU), entry("a", 700, tar.FormatUSTAR), other, entry(long+"2", 9, tar.FormatPAX))
	want := write(global, entry("a", 700, tar.FormatUSTAR), &smaller)
	shorter := func(r io.Reader) io.Reader { return io.LimitReader(r, 7) }
	made, err := RewriteEntries(t.Context(), st, d, []Edit{{At: 0, Remove: true}, {At: 2, Size: 7, Content: shorter}, {At: 3, Remove: true}}, Options{Compression: None})
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := rawTar(t, st, made), rawTar(t, st, want)
	for i := range min(len(got), len(wanted)) {
		if got[i] != wanted[i] {
			t.Fatalf("block %d, byte %d: got %q, want %q", i/blockSize, i%blockSize, got[i], wanted[i])
		}
	}
	if made.Digest != want.Digest {
		t.Errorf("%d bytes, want %d", len(got), len(wanted))
	}
	for _, bad := range [][]Edit{
		{{At: 9, Remove: true}}, {{At: -1, Remove: true}}, {{At: 1, Remove: true}, {At: 1, Remove: true}}, {{At: 1}}, {{At: 1, Size: 9, Content: shorter}},
	} {
		if _, err := RewriteEntries(t.Context(), st, d, bad, Options{}); err == nil {
			t.Errorf("%+v is done", bad)
		}
	}
}

// TestRewriteEntriesHoles refuses a layer whose entries cannot be told apart.
func TestRewriteEntriesHoles(t *testing.T) {
	st := storetest.Alone(t)
	digest, err := st.PutBlob(sparseBomb(t, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	d := Descriptor{Digest: digest}
	if _, err := RewriteEntries(t.Context(), st, d, []Edit{{At: 0, Remove: true}}, Options{}); !errors.Is(err, ErrHoles) {
		t.Errorf("%v", err)
	}
}
