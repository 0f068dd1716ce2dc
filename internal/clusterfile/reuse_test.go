package clusterfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// settings are the ways to compress that the bytes are compared under.
func settings() map[string]squashfs.Options {
	return map[string]squashfs.Options{
		"zstd":         squashfs.DefaultOptions(),
		"small blocks": {Compression: squashfs.Zstd, BlockSize: squashfs.MinBlockSize},
		"tails":        {Compression: squashfs.Gzip, Level: 1, BlockSize: 64 << 10, TailPacking: true},
		"stored":       {Compression: squashfs.Stored, BlockSize: squashfs.DefaultBlockSize},
	}
}

// The bytes of a file are the same whatever is reused, however many workers there are, and whether the layers were read
// before.
func TestSameBytes(t *testing.T) {
	counts := []int{1, 2, 5}
	if tooltest.Less(t) {
		counts = []int{5}
	}
	for name, sq := range settings() {
		t.Run(name, func(t *testing.T) {
			alone := newStore(t)
			want := writeTo(t, alone, Options{Squashfs: sq, NoReuse: true}, madeElsewhere(t, alone)...)
			for _, workers := range counts {
				sq.Workers = workers
				st := newStore(t)
				ds := madeElsewhere(t, st) // nothing is known of these layers
				cold := writeTo(t, st, Options{Squashfs: sq}, ds...)
				checkOpened(t, sampleTree(), cold.opened)
				warm := writeTo(t, st, Options{Squashfs: sq}, ds...)
				if len(warm.opened) > 0 {
					t.Errorf("%d workers: read again: %q", workers, warm.opened)
				}
				off := writeTo(t, st, Options{Squashfs: sq, NoReuse: true}, ds...)
				checkOpened(t, sampleTree(), off.opened)
				for what, got := range map[string]written{"cold": cold, "warm": warm, "reuse off": off} {
					if got.sum() != want.sum() {
						t.Errorf("%d workers, %s: other bytes", workers, what)
					}
				}
			}
		})
	}
}

// With NoReuse the store learns nothing.
func TestReuseOffKeepsNothing(t *testing.T) {
	st := newStore(t)
	ds := madeHere(t, st)
	writeTo(t, st, Options{NoReuse: true}, ds...)
	if keys, err := st.Keys(store.KindPacks); err != nil || len(keys) > 0 {
		t.Errorf("kept: %v, %v", keys, err)
	}
	writeTo(t, st, Options{}, ds...)
	if keys, err := st.Keys(store.KindPacks); err != nil || len(keys) != 3 {
		t.Errorf("kept for three layers: %v, %v", keys, err)
	}
}

// What another image has hidden of a shared layer is compressed, and nothing else of that layer.
func TestPartOfALayerIsKnown(t *testing.T) {
	st := newStore(t)
	ds := madeHere(t, st)
	hider := []object{dir("many"), dir("usr"), file("usr/large", prose(50, small))}
	var hidden []string
	for i := 100; i < 170; i++ {
		p := fmt.Sprintf("many/%03d", i)
		hider = append(hider, whiteout(p))
		if i%30 != 5 { // the middle layer hides those
			hidden = append(hidden, p)
		}
	}
	hidden = append(hidden, "usr/large")
	alone := newStore(t)
	want := writeTo(t, alone, Options{NoReuse: true}, madeHere(t, alone)...)
	writeTo(t, st, Options{}, ds[0], ownLayer(t, st, layer.Zstd, hider...))
	got := writeTo(t, st, Options{}, ds...)
	if got.sum() != want.sum() {
		t.Error("other bytes")
	}
	var ofBase []string
	for _, p := range got.opened {
		if slices.ContainsFunc(sample()[0], func(o object) bool { return o.Path == p && o.Size > 0 }) && !upper(p) {
			ofBase = append(ofBase, p)
		}
	}
	slices.Sort(hidden)
	slices.Sort(ofBase)
	if !slices.Equal(ofBase, hidden) {
		t.Errorf("of the shared layer these were read:\n%q\nwant\n%q", ofBase, hidden)
	}
}

// upper reports whether the upper layers of the sample have a file of this name.
func upper(p string) bool {
	for _, objects := range sample()[1:] {
		if slices.ContainsFunc(objects, func(o object) bool { return o.Path == p }) {
			return true
		}
	}
	return false
}

// Many images of random layers through one store: each has the bytes that it has without the others.
func TestManyImages(t *testing.T) {
	seeds := 4
	if tooltest.Less(t) {
		seeds = 1
	}
	for seed := range seeds {
		sq := settings()[[]string{"zstd", "small blocks", "tails", "stored"}[seed%4]]
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		shared, alone := newStore(t), newStore(t)
		var pool []layer.Descriptor
		for range 6 {
			tarred := tarOf(t, randomLayer(r)...)
			pool = append(pool, foreignLayer(t, shared, tarred))
			foreignLayer(t, alone, tarred)
		}
		for i := range 12 {
			var stack []layer.Descriptor
			for range 1 + r.IntN(5) {
				stack = append(stack, pool[r.IntN(len(pool))]) // one layer may be there twice
			}
			sq.Workers = 1 + r.IntN(4)
			want := writeTo(t, alone, Options{Squashfs: sq, NoReuse: true}, stack...)
			got := writeTo(t, shared, Options{Squashfs: sq}, stack...)
			if got.sum() != want.sum() {
				t.Errorf("seed %d: image %d has other bytes", seed, i)
			}
			got.reader(t)
		}
		checkPacks(t, shared)
	}
}

// Of many packs of one layer the newest are kept, and those that others have all of are not.
func TestPacksOfOneLayer(t *testing.T) {
	st := newStore(t)
	var objects []object
	for i := range 7 {
		objects = append(objects, file(fmt.Sprint("f", i), prose(uint64(i), 3000)))
	}
	base := ownLayer(t, st, layer.Zstd, objects...)
	showing := func(shown ...int) written { // an image that shows only some files of the layer
		var hidden []object
		for i := range 7 {
			if !slices.Contains(shown, i) {
				hidden = append(hidden, whiteout(fmt.Sprint("f", i)))
			}
		}
		return writeTo(t, st, Options{}, base, ownLayer(t, st, layer.Zstd, append(hidden, file("top", nil))...))
	}
	packs := func() int {
		var record packRecord
		key := (&reuse{key: squashfs.DefaultOptions().Key()}).recordKey(base.Digest)
		if ok, err := st.GetRecord(store.KindPacks, key, &record); err != nil || !ok {
			t.Fatal(err)
		}
		return len(record.Packs)
	}
	for i, want := range []int{1, 2, 3, 4, 4, 4} {
		if w := showing(i); !slices.Equal(w.opened, []string{fmt.Sprint("f", i)}) || packs() != want {
			t.Errorf("image %d: %q was read, and there are %d packs, want %d", i, w.opened, packs(), want)
		}
	}
	for shown, want := range map[int][]string{0: {"f0"}, 5: nil} { // the oldest was dropped, the newest was not
		if w := showing(shown); !slices.Equal(w.opened, want) {
			t.Errorf("%q was read, want %q", w.opened, want)
		}
	}
	showing(0, 1, 2, 3, 4, 5, 6)
	if n := packs(); n != 1 {
		t.Errorf("beside a pack with everything there are %d", n-1)
	}
}

// randomLayer makes objects under few names, with contents of which some are in many layers.
func randomLayer(r *rand.Rand) []object {
	var out []object
	files := map[string]bool{}
	for _, i := range r.Perm(60)[:40] {
		d, p := fmt.Sprint("d", i%5), fmt.Sprintf("d%d/f%02d", i%5, i)
		switch n := r.IntN(12); {
		case n == 0 && len(files) > 0:
			for first := range files {
				out = append(out, hardLink(p, first))
				break
			}
		case n == 1:
			out = append(out, whiteout(p))
		case n == 2:
			out = append(out, dir(p), file(p+"/inner", prose(r.Uint64N(50), 1+r.IntN(9000))))
		case n == 3:
			out = append(out, file(p, noise(r.Uint64N(9), 1+r.IntN(300_000))))
		case n == 4:
			out = append(out, file(p, make([]byte, r.IntN(200_000))))
		case n == 5:
			out = append(out, file(p, prose(r.Uint64N(9), 1+r.IntN(400_000))))
		default:
			out = append(out, file(p, prose(r.Uint64(), 1+r.IntN(4000))))
		}
		if last := out[len(out)-1]; last.Type == layer.Regular && last.Path == p {
			files = map[string]bool{p: true}
		}
		if r.IntN(200) == 0 {
			out = append(out, opaque(d))
		}
	}
	return out
}

// checkPacks fails unless every record of the store has few packs, all sound.
func checkPacks(t *testing.T, st *store.Store) {
	t.Helper()
	keys, err := st.Keys(store.KindPacks)
	if err != nil || len(keys) == 0 {
		t.Fatalf("records: %v, %v", keys, err)
	}
	for _, key := range keys {
		var record packRecord
		if ok, err := st.GetRecord(store.KindPacks, key, &record); err != nil || !ok {
			t.Fatal(err)
		}
		if n := len(record.Packs); n == 0 || n > maxPacks {
			t.Errorf("a layer has %d packs", n)
		}
		r := newReuse(t.Context(), Options{Store: st, Squashfs: squashfs.DefaultOptions()})
		for _, p := range record.Packs {
			if _, err := r.open(p); err != nil {
				t.Error(err)
			}
		}
		r.close()
	}
}

// A store that may only be read gives what it has.
func TestReadOnlyStore(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	for _, known := range []bool{true, false} {
		at := t.TempDir()
		st := newStoreAt(t, at)
		put := madeElsewhere
		if known {
			put = madeHere
		}
		ds := put(t, st)
		want := writeTo(t, st, Options{NoReuse: !known}, ds...)
		if !known {
			at = t.TempDir()
			ds = put(t, newStoreAt(t, at)) // where the layers were never read
		}
		mountReadOnly(t, at)
		st = openStore(t, at)
		if !st.ReadOnly() {
			t.Fatal("the store can be written")
		}
		got := writeTo(t, st, Options{}, ds...)
		if got.sum() != want.sum() {
			t.Errorf("known layers %v: other bytes", known)
		}
		if known && len(got.opened) > 0 {
			t.Errorf("compressed again: %q", got.opened)
		}
	}
}

func newStoreAt(t *testing.T, at string) *store.Store {
	t.Helper()
	t.Setenv("SCONCE_SHARED_STORES", "")
	return openStore(t, at)
}

func mountReadOnly(t *testing.T, at string) {
	t.Helper()
	if err := unix.Mount(at, at, "", unix.MS_BIND, ""); err != nil {
		tooltest.Missing(t, "mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}

// What a site's store has is copied, and nothing of it is stored again.
func TestSharedStore(t *testing.T) {
	site := newStore(t)
	ds := madeHere(t, site)
	want := writeTo(t, site, Options{}, ds...)
	t.Setenv("SCONCE_SHARED_STORES", site.Dir())
	mine := openStore(t, t.TempDir())
	got := writeTo(t, mine, Options{}, ds...)
	if got.sum() != want.sum() || len(got.opened) > 0 {
		t.Errorf("same bytes: %v; compressed again: %q", got.sum() == want.sum(), got.opened)
	}
	if keys, err := mine.Keys(store.KindPacks); err != nil || len(keys) > 0 {
		t.Errorf("kept, although the site's store has it: %v, %v", keys, err)
	}
	// What is new on top of the site's layers goes to the own store.
	top := ownLayer(t, mine, layer.Zstd, file("new", noise(60, large)))
	first := writeTo(t, mine, Options{}, append(slices.Clone(ds), top)...)
	if second := writeTo(t, mine, Options{}, append(slices.Clone(ds), top)...); second.sum() != first.sum() || len(second.opened) > 0 || !slices.Equal(first.opened, []string{"new"}) {
		t.Errorf("first %q was read, then %q", first.opened, second.opened)
	}
	if keys, err := mine.Keys(store.KindPacks); err != nil || len(keys) != 1 {
		t.Errorf("kept for one new layer: %v, %v", keys, err)
	}
}

// warnings collects what the user should know.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) Emit(e progress.Event) {
	if e.Kind == progress.Warning {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.text = append(w.text, e.Text+" ("+e.Hint+")")
	}
}

// rewrite writes an image from a store with damaged packs.
func rewrite(t *testing.T, st *store.Store, ds []layer.Descriptor) (data []byte, warned string, err error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var w warnings
	var opened []string
	err = WriteSquashfs(progress.With(t.Context(), &w), f, inputOf(st, &opened, ds...), Options{Store: st, Squashfs: squashfs.DefaultOptions()})
	if _, seekErr := f.Seek(0, io.SeekStart); seekErr != nil {
		t.Fatal(seekErr)
	}
	data, readErr := io.ReadAll(f)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return data, strings.Join(w.text, "\n"), err
}

// packOfBase returns the record of the lowest layer of an image and its newest pack.
func packOfBase(t *testing.T, st *store.Store, d layer.Descriptor) (key string, p storedPack) {
	t.Helper()
	key = (&reuse{key: squashfs.DefaultOptions().Key()}).recordKey(d.Digest)
	var record packRecord
	if ok, err := st.GetRecord(store.KindPacks, key, &record); err != nil || !ok || len(record.Packs) == 0 {
		t.Fatalf("the layer has no packs: %v", err)
	}
	return key, slices.MaxFunc(record.Packs, func(a, b storedPack) int { return int(a.Size - b.Size) })
}

// damage changes the bytes of a blob, which has the wrong hash then.
func damage(t *testing.T, st *store.Store, d store.Digest, change func(data []byte) []byte) {
	t.Helper()
	p, err := st.BlobPath(d)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	data = change(data)
	if err := os.Remove(p); err != nil {
		t.Fatal(err)
	}
	if data == nil {
		return
	}
	if err := os.WriteFile(p, data, 0o444); err != nil {
		t.Fatal(err)
	}
}

func flip(at func(n int) int) func([]byte) []byte {
	return func(data []byte) []byte {
		data[at(len(data))] ^= 0x10
		return data
	}
}

// Packs that are not what they should be are not used, and the user hears of it.
func TestDamagedPacks(t *testing.T) {
	alone := newStore(t)
	want := writeTo(t, alone, Options{NoReuse: true}, madeHere(t, alone)...)
	nothing := func([]byte) []byte { return []byte{} }
	gone := func([]byte) []byte { return nil }
	half := func(data []byte) []byte { return data[:len(data)/2] }
	last := func(data []byte) []byte { return data[:len(data)-1] }
	for _, c := range []struct {
		name        string
		index, data func([]byte) []byte
		quiet       bool // as good as never compressed
	}{
		{name: "index, first byte", index: flip(func(int) int { return 0 })},
		{name: "index, middle", index: flip(func(n int) int { return n / 2 })},
		{name: "index, end", index: flip(func(n int) int { return n - 1 })},
		{name: "index cut", index: half},
		{name: "index empty", index: nothing},
		{name: "index gone", index: gone, quiet: true},
		{name: "data cut", data: half},
		{name: "data without its last byte", data: last},
		{name: "data empty", data: nothing},
		{name: "data gone", data: gone, quiet: true},
		{name: "data too long", data: func(data []byte) []byte { return append(data, 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := newStore(t)
			ds := madeHere(t, st)
			writeTo(t, st, Options{}, ds...)
			_, p := packOfBase(t, st, ds[0])
			if c.index != nil {
				damage(t, st, p.Index, c.index)
			}
			if c.data != nil {
				damage(t, st, p.Data, c.data)
			}
			data, warned, err := rewrite(t, st, ds)
			if err != nil || !bytes.Equal(data, want.data) {
				t.Errorf("error %v, same bytes: %v", err, bytes.Equal(data, want.data))
			}
			if !c.quiet && !strings.Contains(warned, "cache verify") {
				t.Errorf("the user is told %q", warned)
			}
			// What was compressed again took the place of what was damaged.
			if healed := writeTo(t, st, Options{}, ds...); healed.sum() != want.sum() || len(healed.opened) > 0 {
				t.Errorf("compressed a third time: %q", healed.opened)
			}
			if report, err := st.Verify(t.Context(), false); err != nil || !report.OK() {
				t.Errorf("damage is left: %v, %v", report.Damaged, err)
			}
		})
	}
}

// Records are files that anybody with the rights may have written.
func TestHostileRecords(t *testing.T) {
	st := newStore(t)
	ds := madeHere(t, st)
	want := writeTo(t, st, Options{}, ds...)
	key, good := packOfBase(t, st, ds[0])
	_, other := packOfBase(t, st, ds[1])
	for name, p := range map[string]storedPack{
		"size":          {Index: good.Index, Data: good.Data, Size: good.Size - 1},
		"negative size": {Index: good.Index, Data: good.Data, Size: -1},
		"other's data":  {Index: good.Index, Data: other.Data, Size: good.Size},
		"other's both":  {Index: other.Index, Data: other.Data, Size: other.Size},
		"swapped":       {Index: good.Data, Data: good.Index, Size: good.Size},
		"no digest":     {Index: "", Data: "", Size: 0},
		"a path":        {Index: "sha256:../../../../etc/passwd", Data: "../../etc/passwd", Size: 10},
		"not there":     {Index: store.DigestOf([]byte("x")), Data: store.DigestOf([]byte("y")), Size: 10},
	} {
		if err := st.PutRecord(store.KindPacks, key, nil, packRecord{Packs: []storedPack{p}}); err != nil {
			t.Fatal(err)
		}
		data, warned, err := rewrite(t, st, ds)
		t.Logf("%s: warning %q", name, warned)
		if name == "other's both" { // a sound pack of something else, which only a person can have put there
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !bytes.Equal(data, want.data) {
			t.Errorf("%s: other bytes", name)
		}
	}
	if err := st.PutRecord(store.KindPacks, key, nil, []int{1, 2}); err != nil {
		t.Fatal(err)
	}
	if data, _, err := rewrite(t, st, ds); err != nil || !bytes.Equal(data, want.data) {
		t.Errorf("a record of another shape: %v, same bytes: %v", err, bytes.Equal(data, want.data))
	}
}

// Flipped bits of compressed blocks are copied unseen, unless the block has to be unpacked, as those of any file are. That
// is what verifying the store is for.
func TestVerifyFindsDamagedData(t *testing.T) {
	st := newStore(t)
	ds := madeHere(t, st)
	want := writeTo(t, st, Options{}, ds...)
	_, p := packOfBase(t, st, ds[0])
	damage(t, st, p.Data, flip(func(n int) int { return n / 2 }))
	if data, _, err := rewrite(t, st, ds); err != nil {
		t.Logf("the damage was found: %v", err)
	} else if bytes.Equal(data, want.data) {
		t.Error("the damage is nowhere")
	}
	report, err := st.Verify(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if report.OK() {
		t.Error("the store finds itself sound")
	}
	if data, _, err := rewrite(t, st, ds); err != nil || !bytes.Equal(data, want.data) {
		t.Errorf("after the damage was removed: %v, same bytes: %v", err, bytes.Equal(data, want.data))
	}
}

// Small files that have to be put together anew are unpacked, and damage of theirs is found there.
func TestDamagedFragment(t *testing.T) {
	st := newStore(t)
	var many []object
	for i := range 400 {
		many = append(many, file(fmt.Sprintf("f%03d", i), noise(uint64(i), 500)))
	}
	base := ownLayer(t, st, layer.Zstd, many...)
	writeTo(t, st, Options{}, base)
	_, p := packOfBase(t, st, base)
	damage(t, st, p.Data, func(data []byte) []byte {
		for i := range data {
			data[i] ^= 1
		}
		return data
	})
	top := []object{}
	for i := 0; i < 400; i += 3 {
		top = append(top, whiteout(fmt.Sprintf("f%03d", i)))
	}
	ds := []layer.Descriptor{base, ownLayer(t, st, layer.Zstd, top...)}
	data, warned, err := rewrite(t, st, ds)
	alone := newStore(t)
	ds = []layer.Descriptor{ownLayer(t, alone, layer.Zstd, many...), ownLayer(t, alone, layer.Zstd, top...)}
	want := writeTo(t, alone, Options{NoReuse: true}, ds...)
	if err != nil || !bytes.Equal(data, want.data) || !strings.Contains(warned, "cache verify") {
		t.Errorf("error %v, same bytes %v, warning %q", err, bytes.Equal(data, want.data), warned)
	}
}

// A store that cannot keep what was compressed does not keep the file from being written.
func TestStoreFull(t *testing.T) {
	at := tooltest.SmallDisk(t, "size=3m")
	t.Setenv("SCONCE_SHARED_STORES", "")
	st, err := store.Open(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	ds := []layer.Descriptor{ownLayer(t, st, layer.None, file("a", noise(1, 1_500_000)), file("b", noise(2, 400_000)))}
	alone := newStore(t)
	want := writeTo(t, alone, Options{NoReuse: true}, ownLayer(t, alone, layer.None, file("a", noise(1, 1_500_000)), file("b", noise(2, 400_000))))
	data, warned, err := rewrite(t, st, ds)
	if err != nil || !bytes.Equal(data, want.data) || !strings.Contains(warned, "could not be kept") {
		t.Errorf("error %v, same bytes %v, warning %q", err, bytes.Equal(data, want.data), warned)
	}
	left, err := fs.Glob(os.DirFS(at), "tmp-v1/*")
	if err := errors.Join(err); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestCompressedByOne: of a layer that another writer is compressing, nothing is compressed again: who needs it waits, and takes what the
// other has kept.
func TestCompressedByOne(t *testing.T) {
	for name, workers := range map[string]int{"in turn": 2, "beside each other": besideCores} {
		t.Run(name, func(t *testing.T) { compressedByOne(t, workers) })
	}
}

func compressedByOne(t *testing.T, workers int) {
	st := newStore(t)
	ds := madeElsewhere(t, st)
	o := Options{Store: st, Squashfs: squashfs.DefaultOptions()}
	o.Squashfs.Workers = workers
	write := func(ctx context.Context, in Input) (string, error) {
		f, err := os.Create(filepath.Join(t.TempDir(), "image.sqsh"))
		if err != nil {
			return "", err
		}
		defer f.Close()
		if err := WriteSquashfs(ctx, f, in, o); err != nil {
			return "", err
		}
		data, err := os.ReadFile(f.Name())
		return string(store.DigestOf(data)), err
	}
	old := besideLeast
	besideLeast = 1
	t.Cleanup(func() { besideLeast = old })
	var read atomic.Int64
	sums := make([]string, 4)
	var g errgroup.Group
	for n := range sums {
		in := inputOf(st, nil, ds...)
		for i, d := range ds {
			in.Layers[i].Source, in.Layers[i].Packed = counted{layer.Stored(st, d), &read}, d.Size
		}
		g.Go(func() (err error) {
			sums[n], err = write(t.Context(), in)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(slices.Clone(sums))) != 1 {
		t.Errorf("other bytes: %q", sums)
	}
	all := int64(0)
	for _, d := range ds {
		ix, err := layer.Stored(st, d).Index(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ix.Entries {
			if e.Type == layer.Regular && e.Size > 0 {
				all++
			}
		}
	}
	if read.Load() > all {
		t.Errorf("%d writers read %d files, and there are %d", len(sums), read.Load(), all)
	}
}

// counted counts the files that are read.
type counted struct {
	layer.Source
	read *atomic.Int64
}

func (c counted) Walk(ctx context.Context, visit func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error) error {
	return c.Source.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		return visit(e, func() (io.ReadCloser, error) {
			c.read.Add(1)
			return open()
		})
	})
}
