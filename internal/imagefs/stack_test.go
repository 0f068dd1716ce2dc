package imagefs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

// foreign returns a layer with the same files as somebody else would have written it: one stream of gzip that has a name, without an index.
func foreign(t *testing.T, st *store.Store, d layer.Descriptor) layer.Descriptor {
	t.Helper()
	f, err := st.OpenBlob(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := layer.Decompress(f)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Name = "layer.tar"
	if _, err := io.Copy(w, raw); err != nil {
		t.Fatal(err)
	}
	w.Close()
	d.Size = int64(b.Len())
	if d.Digest, err = st.PutBlob(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	return d
}

// stacked is options with the layers of an image as [Stack] makes them ready; served is how many trees there must be.
func stacked(t *testing.T, st *store.Store, layers []layer.Descriptor, served int, script string) sandbox.Options {
	t.Helper()
	o := options(t, script)
	var err error
	if o.Layers, o.Served, err = Stack(t.Context(), st, layers); err != nil {
		t.Fatal(err)
	}
	if len(o.Served) != served {
		t.Fatalf("%d trees are served, want %d: %q", len(o.Served), served, o.Layers)
	}
	return o
}

// overlapping are layers that hide and replace each other's files in every way, above that of imageOf.
func overlapping() [][]entry {
	owned := func(h *tar.Header) { h.Uid, h.Gid, h.Mode = 33, 70000, 0o2750 }
	return [][]entry{
		{
			dir("data", 0o755), regular("data/kept", "kept"), regular("data/gone", "x"), regular("data/back", "first"), regular("data/file", "a file"),
			dir("data/dir", 0o755), regular("data/dir/below", "hidden by a file"), dir("data/merged", 0o755), regular("data/merged/one", "1"),
			dir("data/cleared", 0o755), regular("data/cleared/old", "old"), dir("data/swapped", 0o755), regular("data/swapped/old", "old"),
			regular("data/linked", "two names"), link(tar.TypeLink, "data/other name", "data/linked"), dir("deep", 0o755), dir("deep/er", 0o755), regular("deep/er/most", "deep"),
			regular("data/color", "c").with(func(h *tar.Header) {
				h.PAXRecords = map[string]string{"SCHILY.xattr.user.color": "blue", "SCHILY.xattr.user.overlay.opaque": "y"}
			}),
		}, {
			dir("data", 0o775).with(owned), regular("data/.wh.gone", ""), regular("data/.wh.back", ""), regular("data/dir", "a file now"), dir("data/file", 0o700),
			regular("data/file/inside", "in"), dir("data/merged", 0o711), regular("data/merged/two", "2"), dir("data/cleared", 0o755), regular("data/cleared/.wh..wh..opq", ""),
			regular("data/cleared/new", "new"), dir("data/fresh", 0o755), regular("data/fresh/first", "1"), regular("data/fresh/second", "2"), dir("data/swapped", 0o755),
			dir("deep", 0o755), dir("deep/er", 0o755), regular("deep/er/.wh.most", ""),
		}, {
			dir("data", 0o755), regular("data/back", "again"), dir("data/fresh", 0o755), regular("data/fresh/.wh.first", ""), regular("data/.wh.swapped", ""),
			dir("data/merged", 0o755), regular("data/merged/.wh.one", ""), regular("data/.wh.never there", ""), dir("fresh", 0o755), regular("fresh/.wh.nothing", ""), regular("fresh/something", "s"),
		}, {
			dir("data", 0o755), dir("data/swapped", 0o755), regular("data/swapped/new", "new"), dir("data/dir", 0o755), regular("data/dir/after", "the file"),
			dir("data/merged", 0o755), regular("data/merged/three", "3"),
		},
	}
}

// Whichever layers are unpacked, and whichever are served, the files are the same.
func TestAnyLayersServed(t *testing.T) {
	const own = 5 // with that of imageOf
	// The names in some directories besides, whiteouts too if they are listed, which no look at a file would find.
	const script = describe + "\necho data/* data/fresh/* data/cleared/* data/merged/* data/swapped/* deep/er/*"
	st, layers := imageOf(t, overlapping()...)
	o := options(t, script)
	var err error
	if o.Layers, err = sandbox.Layers(t.Context(), st, layers); err != nil {
		t.Fatal(err)
	}
	want := run(t, o)
	if strings.Count(want, "\n") < 30 {
		t.Fatalf("too few files:\n%s", want)
	}
	foreigners := slices.Clone(layers)
	for i := range layers {
		foreigners[i] = foreign(t, st, layers[i])
	}
	for unpacked := 1; unpacked < 1<<own-1; unpacked += 2 { // the base, and any others
		if err := store.RemoveAll(trees(st)); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(trees(st), 0o755); err != nil {
			t.Fatal(err)
		}
		layers, served := slices.Clone(layers), 0
		for i := range layers {
			switch {
			case unpacked>>i&1 == 0:
				if i == 0 || unpacked>>(i-1)&1 == 1 {
					served++
				}
			case i%2 == 0:
				layers[i] = foreigners[i]
			default:
				if _, err := sandbox.Layers(t.Context(), st, layers[i:i+1]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := run(t, stacked(t, st, layers, served, script)); got != want {
			t.Errorf("unpacked %05b:\n%s\nwant\n%s", unpacked, got, want)
		}
		if left := len(sandbox.Missing(st, layers)); left != own-bits.OnesCount(uint(unpacked)) {
			t.Errorf("unpacked %05b: %d layers are still packed", unpacked, left)
		}
	}
}

// trees is where a store has what is unpacked.
func trees(st *store.Store) string { return filepath.Join(st.Dir(), "trees-v1") }

// An image of a base from elsewhere and layers of our own is read from the latter, which is told; once all are unpacked, nothing is served.
func TestForeignBase(t *testing.T) {
	st, layers := imageOf(t, []entry{dir("data", 0o755), regular("data/file", "content")})
	layers[0] = foreign(t, st, layers[0])
	var told warnings
	dirs, served, err := Stack(progress.With(t.Context(), &told), st, layers)
	if err != nil || len(dirs) != 2 || len(served) != 1 || dirs[0] == sandbox.ServedLayer || dirs[1] != sandbox.ServedLayer {
		t.Fatalf("%q, %d trees, %v", dirs, len(served), err)
	}
	if all := strings.Join(told.text, "\n"); !strings.Contains(all, "1 of 2 layers, read as they are") {
		t.Errorf("told: %s", all)
	}
	if _, err := sandbox.Layers(t.Context(), st, layers); err != nil {
		t.Fatal(err)
	}
	if dirs, served, err := Stack(t.Context(), st, layers); dirs != nil || served != nil || err != nil {
		t.Errorf("all unpacked: %q, %v, %v", dirs, served, err)
	}
}

// Nothing is served of an image whose layers are all from elsewhere, and nothing is unpacked yet.
func TestAllForeign(t *testing.T) {
	st, layers := imageOf(t, []entry{dir("data", 0o755)})
	for i := range layers {
		layers[i] = foreign(t, st, layers[i])
	}
	if dirs, served, err := Stack(t.Context(), st, layers); dirs != nil || served != nil || err != nil {
		t.Errorf("%q, %v, %v", dirs, served, err)
	}
	if left := len(sandbox.Missing(st, layers)); left != 2 {
		t.Errorf("%d layers are still packed, want 2", left)
	}
}

// Where layers of both kinds lie in turns, those in between that are unpacked already are served with their neighbours; an image that
// would take too many trees even so is unpacked.
func TestTooManyTrees(t *testing.T) {
	var many [][]entry
	for i := range 2 * maxServed {
		many = append(many, []entry{dir("data", 0o755), regular(fmt.Sprintf("data/%d", i), "")})
	}
	st, layers := imageOf(t, many...)
	foreigners := append([]layer.Descriptor{}, layers...)
	for i := 1; i < len(layers); i += 2 {
		if _, err := sandbox.Layers(t.Context(), st, layers[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	o := stacked(t, st, layers, 1, "ls /data")
	if got := strings.Fields(run(t, o)); len(got) != len(many) {
		t.Errorf("files: %q", got)
	}
	for i := 1; i < len(layers); i += 2 {
		foreigners[i] = foreign(t, st, layers[i])
	}
	if dirs, served, err := Stack(t.Context(), st, foreigners); dirs != nil || served != nil || err != nil {
		t.Errorf("%q, %d trees, %v", dirs, len(served), err)
	}
}

// Several commands that begin at once on one image, none of whose layers are unpacked, all see it, and it is unpacked once.
func TestBaseUnpackedOnce(t *testing.T) {
	st, layers := imageOf(t, []entry{dir("data", 0o755), regular("data/file", strings.Repeat("0123456789abcdef", 1<<18))})
	layers[0] = foreign(t, st, layers[0])
	var all sync.WaitGroup
	answers := make([]string, 4)
	for i := range answers {
		o := options(t, "sha256sum /data/file")
		all.Go(func() {
			var err error
			var out bytes.Buffer
			if o.Layers, o.Served, err = Stack(t.Context(), st, layers); err != nil {
				t.Error(err)
				return
			}
			o.Stdout = &out
			if code, err := sandbox.Run(t.Context(), o); code != 0 || err != nil {
				t.Errorf("exit code %d, %v", code, err)
			}
			answers[i] = out.String()
		})
	}
	all.Wait()
	for _, a := range answers {
		if a != answers[0] || !strings.HasSuffix(a, "/data/file\n") {
			t.Errorf("%q", answers)
		}
	}
	if left := sandbox.Missing(st, layers); len(left) != 1 || left[0] != layers[1] {
		t.Errorf("still packed: %v, want the layer above the base", left)
	}
}

// pulled returns the layers in a store of their own, as they come from a registry: without what the other store knows of them.
func pulled(t *testing.T, from *store.Store, layers []layer.Descriptor) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		st.Close()
		_ = store.RemoveAll(st.Dir())
	})
	for _, d := range layers {
		data, err := from.ReadBlob(d.Digest, d.Size)
		if err == nil {
			_, err = st.PutBlob(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// An image that was made here is read from its layers after a pull as it was before, and what was found of it is kept. Small layers of one
// chunk, which may be anybody's, are served beside others, and do not make a tree of their own.
func TestPulledImage(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", layer.ChunkSize/16+1000)
	at, made := imageOf(t, []entry{dir("data", 0o755)}, []entry{dir("data", 0o755), regular("data/long", long)}, []entry{regular("data/small", "s")}, []entry{regular("data/above", "a")})
	for i, d := range made {
		if i%2 == 1 {
			made[i] = asGzip(t, at, d)
		}
	}
	want := run(t, served(t, at, made, describe))
	small := slices.Delete(slices.Clone(made), 2, 3)
	small[0] = foreign(t, at, small[0])
	st := pulled(t, at, slices.Concat(made, small[:1]))
	if dirs, served, err := Stack(t.Context(), st, small); dirs != nil || served != nil || err != nil {
		t.Errorf("an image of layers of one chunk: %q, %d trees, %v", dirs, len(served), err)
	}
	for range 2 {
		if got := run(t, stacked(t, st, made, 1, describe)); got != want {
			t.Errorf("pulled:\n%s\nwant\n%s", got, want)
		}
		if left := len(sandbox.Missing(st, made)); left != len(made) {
			t.Errorf("%d of %d layers are still packed", left, len(made))
		}
		for _, d := range made {
			if ix, err := layer.SeekableIndex(st, d); ix == nil || err != nil {
				t.Errorf("what was found of layer %s is not kept: %v", d.Digest.Short(), err)
			}
		}
	}
}

// Commands that begin at once on an image that was pulled read its layers once.
func TestPulledImageIsReadOnce(t *testing.T) {
	at, made := imageOf(t, []entry{dir("data", 0o755)}, []entry{regular("long", strings.Repeat("0123456789abcdef", layer.ChunkSize/16+1000))})
	made = []layer.Descriptor{asGzip(t, at, made[2])}
	st := pulled(t, at, made)
	var all sync.WaitGroup
	readings := &begins{kind: "index"}
	for range 4 {
		all.Go(func() {
			if _, served, err := Stack(progress.With(t.Context(), readings), st, made); len(served) != 1 || err != nil {
				t.Errorf("%d trees, %v", len(served), err)
			}
		})
	}
	all.Wait()
	if n := readings.n.Load(); n != 1 {
		t.Errorf("the layer was read %d times", n)
	}
}

// begins counts the tasks of a kind that begin.
type begins struct {
	kind string
	n    atomic.Int32
}

func (b *begins) Emit(e progress.Event) {
	if e.Kind == progress.Start && e.Verb == b.kind {
		b.n.Add(1)
	}
}

// asGzip returns a layer with the same files in chunks of gzip.
func asGzip(t *testing.T, st *store.Store, d layer.Descriptor) layer.Descriptor {
	t.Helper()
	f, err := st.OpenBlob(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := layer.Decompress(f)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	made, err := layer.FromTar(t.Context(), st, raw, layer.Options{ModTime: layer.KeepTimes})
	if err != nil {
		t.Fatal(err)
	}
	return made
}
