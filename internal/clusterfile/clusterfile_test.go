package clusterfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// with changes the attributes of an object.
func with(o object, change func(e *layer.Entry)) object {
	change(&o.Entry)
	return o
}

func special(path string, t layer.Type, major, minor uint32) object {
	return object{layer.Entry{Path: path, Type: t, Mode: 0o660, GID: 6, Major: major, Minor: minor, ModTime: modTime}, nil}
}

// Sizes of files: several blocks, and much less than one.
const (
	large = 150_000
	small = 700
)

// sample is the layers of an image with everything that can go wrong when upper layers change lower ones. Files whose
// content nobody sees are called hidden.
var sample = sync.OnceValue(func() [][]object {
	base := []object{
		dir("bin"), dir("dev"), dir("etc"), dir("gone"), dir("many"), dir("opq"), dir("turned"), dir("usr"), dir("tmp"),
		file("etc/empty", nil), file("etc/passwd", prose(20, small)),
		file("etc/hidden-replaced", noise(1, large)), file("etc/hidden-deleted", noise(2, large)), file("etc/hidden-twice", noise(3, large)),
		file("etc/environment", noise(4, large)), // the personality's
		file("gone/hidden", noise(5, large)), file("opq/hidden", noise(6, large)), file("turned/hidden", noise(7, large)),
		file("hidden-file", noise(8, large)),
		file("usr/hidden-first", noise(9, large)), hardLink("usr/hidden-second", "usr/hidden-first"), hardLink("usr/third", "usr/hidden-first"),
		file("usr/one", noise(10, large)), hardLink("usr/two", "usr/one"),
		file("usr/same", noise(11, large)), file("usr/large", prose(12, 1_300_000)), file("usr/zeros", make([]byte, 400_000)),
		symlink("lib", "usr/lib"),
		special("dev/null", layer.Char, 1, 3), special("dev/sda", layer.Block, 8, 65_536), special("dev/pipe", layer.Fifo, 0, 0),
		with(file("bin/su", prose(13, small)), func(e *layer.Entry) { e.Mode = 0o6755 }),
		with(file("bin/ping", prose(14, small)), func(e *layer.Entry) {
			e.Xattrs = map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "user.long": strings.Repeat("x", 3000)}
		}),
		with(file("usr/owned", prose(15, small)), func(e *layer.Entry) { e.UID, e.GID = 70_000, 3_000_000_000 }),
		with(dir("var"), func(e *layer.Entry) { e.Mode, e.Xattrs = 0o1777, map[string]string{"user.k": "v"} }),
	}
	for i := range 300 {
		base = append(base, file(fmt.Sprintf("many/%03d", i), prose(uint64(1000+i), 20*i+1)))
	}
	middle := []object{
		dir("etc"), dir("many"), dir("usr"),
		file("etc/hidden-replaced", noise(31, large)), whiteout("etc/hidden-deleted"), whiteout("etc/hidden-twice"), whiteout("gone"),
		file("turned", noise(32, large)), whiteout("usr/hidden-first"),
	}
	for i := 5; i < 300; i += 30 {
		middle = append(middle, file(fmt.Sprintf("many/%03d", i), prose(uint64(2000+i), small)))
	}
	top := []object{
		dir("etc"), dir("hidden-file"), dir("opq"), dir("usr"),
		file("etc/hidden-twice", noise(33, large)), file("etc/hidden-replaced", noise(34, small)),
		file("hidden-file/inner", prose(35, small)), opaque("opq"), file("opq/new", noise(36, large)),
		file("usr/same-too", noise(11, large)), whiteout("usr/hidden-second"),
	}
	return [][]object{base, middle, top}
})

// sampleTree is what is to be seen of the sample.
func sampleTree() map[string]string {
	regular := func(data []byte) string { return "file 644 0:0 x1 " + sumOf(data) }
	tree := map[string]string{
		"bin": "dir 755 0:0", "dev": "dir 755 0:0", "etc": "dir 755 0:0", "many": "dir 755 0:0", "opq": "dir 755 0:0", "usr": "dir 755 0:0",
		"tmp": "dir 755 0:0", "hidden-file": "dir 755 0:0", "var": `dir 1777 0:0 map["user.k":"v"]`,
		"etc/empty": regular(nil), "etc/passwd": regular(prose(20, small)),
		"etc/hidden-replaced": regular(noise(34, small)), "etc/hidden-twice": regular(noise(33, large)),
		"turned": regular(noise(32, large)), "hidden-file/inner": regular(prose(35, small)), "opq/new": regular(noise(36, large)),
		"usr/third": regular(noise(9, large)),
		"usr/one":   "file 644 0:0 x2 " + sumOf(noise(10, large)), "usr/two": "= usr/one",
		"usr/same": regular(noise(11, large)), "usr/same-too": regular(noise(11, large)),
		"usr/large": regular(prose(12, 1_300_000)), "usr/zeros": regular(make([]byte, 400_000)),
		"usr/owned": "file 644 70000:3000000000 x1 " + sumOf(prose(15, small)),
		"bin/su":    "file 6755 0:0 x1 " + sumOf(prose(13, small)),
		"bin/ping": "file 644 0:0 x1 " + sumOf(prose(14, small)) + fmt.Sprintf(" %q", map[string]string{
			"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "user.long": strings.Repeat("x", 3000),
		}),
		"lib":      "-> usr/lib",
		"dev/null": "char 660 0:6 1,3", "dev/sda": "block 660 0:6 8,65536", "dev/pipe": "fifo 660 0:6",
	}
	for i := range 300 {
		data := prose(uint64(1000+i), 20*i+1)
		if i%30 == 5 {
			data = prose(uint64(2000+i), small)
		}
		tree[fmt.Sprintf("many/%03d", i)] = regular(data)
	}
	return tree
}

// madeHere and madeElsewhere put the sample into a store in two ways, with the same contents.
func madeHere(t testing.TB, st *store.Store) []layer.Descriptor {
	t.Helper()
	var ds []layer.Descriptor
	for i, objects := range sample() {
		ds = append(ds, ownLayer(t, st, []layer.Compression{layer.Zstd, layer.Gzip, layer.None}[i], objects...))
	}
	return ds
}

func madeElsewhere(t testing.TB, st *store.Store) []layer.Descriptor {
	t.Helper()
	var ds []layer.Descriptor
	for _, objects := range sample() {
		ds = append(ds, foreignLayer(t, st, tarOf(t, objects...)))
	}
	return ds
}

// What is written is the merged tree; what upper layers hide is not even read, and is not in the file.
func TestTree(t *testing.T) {
	for name, put := range map[string]func(testing.TB, *store.Store) []layer.Descriptor{"made here": madeHere, "made elsewhere": madeElsewhere} {
		t.Run(name, func(t *testing.T) {
			st := newStore(t)
			w := writeTo(t, st, Options{}, put(t, st)...)
			got := w.tree(t)
			want := sampleTree()
			maps.DeleteFunc(got, func(p, _ string) bool { return want[p] == "" && ofPersonality[p] })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			checkOpened(t, want, w.opened)
			checkNoise(t, w.data)
		})
	}
}

// ofPersonality are the directories and symlinks that runtimes expect, besides the files of personality.Paths.
var ofPersonality = map[string]bool{
	"proc": true, "sys": true, "root": true, "home": true, "var/tmp": true,
	"singularity": true, "environment": true, ".run": true, ".exec": true, ".test": true, ".shell": true,
}

// checkOpened compares what was read with the files that are seen.
func checkOpened(t *testing.T, tree map[string]string, opened []string) {
	t.Helper()
	seen := map[string]int{}
	for _, objects := range sample() {
		for _, o := range objects {
			if o.Type == layer.Regular && len(o.data) > 0 && strings.Contains(tree[o.Path], sumOf(o.data)) {
				seen[o.Path]++
			}
		}
	}
	read := map[string]int{}
	for _, p := range opened {
		read[p]++
	}
	if diff := cmp.Diff(seen, read); diff != "" {
		t.Errorf("other files were read than are seen: %s", diff)
	}
}

// checkNoise looks for the large files, which are stored as they are.
func checkNoise(t *testing.T, data []byte) {
	t.Helper()
	want := map[uint64]int{9: 1, 10: 1, 11: 1, 32: 1, 33: 1, 36: 1} // once, although two files have seed 11
	for seed := range uint64(40) {
		if n := bytes.Count(data, noise(seed, large)[5000:5064]); n != want[seed] {
			t.Errorf("the content with seed %d is in the file %d times, want %d", seed, n, want[seed])
		}
	}
}

// A layer of somebody else's may have a hard link to a file of a layer below.
func TestHardLinkIntoLayerBelow(t *testing.T) {
	st := newStore(t)
	base := foreignLayer(t, st, tarOf(t, file("a", noise(1, large)), file("b", noise(2, large)), file("c", noise(3, large))))
	top := foreignLayer(t, st, tarOf(t, hardLink("x", "a"), hardLink("y", "b"), file("c", noise(4, large))))
	w := writeTo(t, st, Options{}, base, top)
	got := w.tree(t)
	want := map[string]string{"a": sumOf(noise(1, large)), "b": sumOf(noise(2, large)), "c": sumOf(noise(4, large))}
	for p, sum := range want {
		if !strings.Contains(got[p], sum) {
			t.Errorf("%s is %q, want %s", p, got[p], sum)
		}
	}
	if got["x"] != "= a" || got["y"] != "= b" {
		t.Errorf("x is %q, y is %q", got["x"], got["y"])
	}
	if warm := writeTo(t, st, Options{}, base, top); warm.sum() != w.sum() || len(warm.opened) > 0 {
		t.Errorf("the second time %q was read, same bytes: %v", warm.opened, warm.sum() == w.sum())
	}
}

// Files that the tar stores with holes.
func TestSparse(t *testing.T) {
	gnuTar := tooltest.Path(t, "tar")
	from := t.TempDir()
	contents := map[string][]byte{}
	for i, size := range []int{3_000_000, 200_000, 5_000_000} {
		data := make([]byte, size)
		copy(data[size/3:], prose(uint64(i), 9000))
		copy(data[size-50_000:], noise(uint64(i), 20_000))
		name := fmt.Sprint("f", i)
		contents[name] = data
		f, err := os.Create(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		_, first := f.WriteAt(data[size/3:size/3+9000], int64(size/3))
		_, second := f.WriteAt(data[size-50_000:size-30_000], int64(size-50_000))
		if err := errors.Join(first, second, f.Truncate(int64(size)), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []string{"gnu", "posix"} {
		tarred, err := exec.Command(gnuTar, "--create", "--sparse", "--format="+format, "--directory="+from, "f0", "f1", "f2").Output()
		if err != nil {
			t.Fatal(err)
		}
		if len(tarred) > 500_000 {
			t.Fatalf("tar has not left out the holes: %d bytes", len(tarred))
		}
		st := newStore(t)
		base, top := foreignLayer(t, st, tarred), foreignLayer(t, st, tarOf(t, file("f1", noise(9, large))))
		cold := writeTo(t, st, Options{}, base, top)
		tree := cold.tree(t)
		for name, data := range contents {
			if name == "f1" {
				data = noise(9, large)
			}
			if !strings.Contains(tree[name], sumOf(data)) {
				t.Errorf("%s: %s is %q, want %s", format, name, tree[name], sumOf(data))
			}
		}
		if warm := writeTo(t, st, Options{}, base, top); warm.sum() != cold.sum() || len(warm.opened) > 0 {
			t.Errorf("%s: with reuse %q was read, same bytes: %v", format, warm.opened, warm.sum() == cold.sum())
		}
	}
}

// A SIF holds the very file system that stands alone otherwise.
func TestSIFHoldsTheSame(t *testing.T) {
	st := newStore(t)
	ds := madeHere(t, st)
	alone := writeTo(t, st, Options{NoReuse: true}, ds...)
	for _, what := range []string{"cold", "warm"} { // what was compressed at one offset is of use at another
		name := filepath.Join(t.TempDir(), "image.sif")
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var opened []string
		o := Options{Store: st, Squashfs: squashfs.DefaultOptions()}
		if err := WriteSIF(t.Context(), f, inputOf(st, &opened, ds...), o); err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		s, err := sif.Open(f, st.Size())
		if err != nil {
			t.Fatal(err)
		}
		inside, err := io.ReadAll(s.Section(s.Partition))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(inside, alone.data) || s.Arch != "amd64" || len(s.Deffile) == 0 || !bytes.Contains(s.Config, []byte("A=B")) {
			t.Errorf("%s: another file system: %v, arch %q, config %s", what, !bytes.Equal(inside, alone.data), s.Arch, s.Config)
		}
		if what == "warm" && len(opened) > 0 {
			t.Errorf("read although it was compressed before: %q", opened)
		}
	}
}

// A walk that is called off ends with the context's error, and the next one works.
func TestCalledOff(t *testing.T) {
	st := newStore(t)
	ds := madeElsewhere(t, st)
	want := writeTo(t, st, Options{NoReuse: true}, ds...)
	for _, after := range []int{1, 5, 100, 300} {
		ctx, cancel := context.WithCancel(t.Context())
		f, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		var opened []string
		in := inputOf(st, &opened, ds...)
		for i, l := range in.Layers {
			in.Layers[i].Source = stopper{l.Source, &after, cancel}
		}
		err = WriteSquashfs(ctx, f, in, Options{Store: st, Squashfs: squashfs.DefaultOptions()})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("called off: %v", err)
		}
		f.Close()
		cancel()
	}
	if got := writeTo(t, st, Options{}, ds...); got.sum() != want.sum() {
		t.Error("the file differs after some that were called off")
	}
}

// stopper calls the work off after some entries.
type stopper struct {
	layer.Source
	left *int
	stop context.CancelFunc
}

func (s stopper) Walk(ctx context.Context, visit func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error) error {
	return s.Source.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		if *s.left--; *s.left == 0 {
			s.stop()
		}
		return visit(e, open)
	})
}

// What cannot be written is an error that names it.
func TestRefused(t *testing.T) {
	st := newStore(t)
	cut := tarOf(t, file("a", noise(1, large)), file("b", noise(2, large)))
	for _, c := range []struct {
		name, words string
		layer       layer.Descriptor
	}{
		{"owner", "a/b", foreignLayer(t, st, tarOf(t, dir("a"), with(file("a/b", nil), func(e *layer.Entry) { e.UID = 1 << 32 })))},
		{"other tar", "read layer", func() layer.Descriptor {
			d := foreignLayer(t, st, cut)
			d.DiffID = store.DigestOf([]byte("another"))
			return d
		}()},
		{"cut off", `file "b": the file is shorter`, foreignLayer(t, st, cut[:200_000])},
		{"link to nothing", `"x"`, foreignLayer(t, st, tarOf(t, hardLink("x", "nothing")))},
	} {
		_, err := tryWrite(t, st, Options{}, c.layer)
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: the error is %v, which lacks %q", c.name, err, c.words)
		}
	}
}

// An image of no layers, and one of nothing that has content, is the personality.
func TestEmpty(t *testing.T) {
	st := newStore(t)
	if got := writeTo(t, st, Options{}).tree(t); len(got) == 0 || got["etc"] == "" {
		t.Errorf("an image of nothing has %v", got)
	}
	got := writeTo(t, st, Options{}, foreignLayer(t, st, tarOf(t, file("only", nil), whiteout("x"), opaque("y")))).tree(t)
	if got["only"] != "file 644 0:0 x1 "+sumOf(nil) || got["x"] != "" {
		t.Errorf("the tree is %v", got)
	}
}
