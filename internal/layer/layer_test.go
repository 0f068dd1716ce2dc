package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// object is an entry with its content.
type object struct {
	Entry
	data []byte
}

func (o object) content() Content {
	if o.Type != Regular {
		return nil
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(o.data)), nil }
}

func file(p, data string) object {
	return object{Entry{Path: p, Mode: 0o644, Size: int64(len(data))}, []byte(data)}
}

func dir(p string) object { return object{Entry: Entry{Path: p, Type: Dir, Mode: 0o755}} }

func symlink(p, to string) object {
	return object{Entry: Entry{Path: p, Type: Symlink, Mode: 0o777, Link: to}}
}

func hardLink(p, to string) object {
	return object{Entry: Entry{Path: p, Type: HardLink, Mode: 0o644, Link: to}}
}

func write(tb testing.TB, st *store.Store, objects []object, o Options) Descriptor {
	tb.Helper()
	w, err := NewWriter(context.Background(), st, o)
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Abort()
	for _, obj := range objects {
		if err := w.Add(obj.Entry, obj.content()); err != nil {
			tb.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// randomTree makes a tree that uses everything a layer can hold: names that need pax headers, hard links, attributes, files
// larger than a chunk.
func randomTree(r *rand.Rand) []object { return randomTreeOf(r, ChunkSize+1234) }

// randomTreeOf is randomTree with files of at most largest bytes.
func randomTreeOf(r *rand.Rand, largest int) []object {
	byPath := map[string]object{".": dir(".")}
	dirs := []string{"."}
	var files []string
	for range 5 + r.IntN(80) {
		p := path.Join(dirs[r.IntN(len(dirs))], randomName(r))
		if _, ok := byPath[p]; ok || len(p) > 3000 {
			continue
		}
		o := object{Entry: Entry{Path: p, Mode: uint32(r.IntN(0o10000)), UID: r.IntN(70000), GID: r.IntN(5)}}
		if r.IntN(10) == 0 {
			o.UID = 1<<22 + r.IntN(1<<30)
		}
		if r.IntN(2) == 0 {
			o.ModTime = time.Unix(r.Int64N(1<<34)-1<<32, 0).UTC()
		}
		switch r.IntN(8) {
		case 0, 1:
			o.Type = Dir
			dirs = append(dirs, p)
		case 2:
			o.Type, o.Mode, o.Link = Symlink, 0o777, randomName(r)
		case 3:
			o.Type = Fifo
		case 4:
			o.Type, o.Major, o.Minor = Char, uint32(r.IntN(200)), 1+uint32(r.IntN(1<<20-1))
		default:
			o.data = randomData(r, largest)
			o.Size = int64(len(o.data))
			files = append(files, p)
		}
		if o.Type != Symlink && r.IntN(6) == 0 {
			o.Xattrs = map[string]string{"user.a": "x\x00y\n=", "user.ü": strings.Repeat("v", r.IntN(300))}
		}
		byPath[p] = o
	}
	slices.SortFunc(files, compare)
	for _, f := range files {
		p := f + "-linked" // sorts behind f
		if _, ok := byPath[p]; !ok && r.IntN(5) == 0 && len(path.Base(p)) <= maxName {
			byPath[p] = hardLink(p, f)
		}
	}
	objects := slices.Collect(maps.Values(byPath))
	slices.SortFunc(objects, func(a, b object) int { return compare(a.Path, b.Path) })
	return objects
}

func compare(a, b string) int {
	switch {
	case Less(a, b):
		return -1
	case Less(b, a):
		return 1
	}
	return 0
}

func randomName(r *rand.Rand) string {
	names := []string{"a", "b", "lib", "lib64", "a-b", "a.b", "é", "日本語", "x\xff", "with space", "new\nline", "=", "-"}
	n := names[r.IntN(len(names))] + fmt.Sprint(r.IntN(50))
	if r.IntN(10) == 0 {
		n += strings.Repeat("l", r.IntN(200))
	}
	return n
}

func randomData(r *rand.Rand, largest int) []byte {
	sizes := []int{0, 1, 511, 512, 513, 5000, largest / 10, largest}
	data := make([]byte, sizes[r.IntN(len(sizes))])
	for i := range data {
		data[i] = byte(r.IntN(1 + i%7))
	}
	return data
}

// TestRoundTrip writes random trees and reads them back: through the index made on writing, through one made by scanning
// what was written, and with archive/tar.
func TestRoundTrip(t *testing.T) {
	st, other := storetest.Alone(t), storetest.Alone(t)
	seeds := uint64(25)
	if tooltest.Less(t) {
		seeds = 3 // one for each compression
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		objects := randomTree(r)
		c := []Compression{Zstd, Gzip, None}[seed%3]
		d := write(t, st, objects, Options{Compression: c})
		if err := Verify(t.Context(), st, d); err != nil {
			t.Fatal(err)
		}
		own, err := OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		copyBlob(t, st, other, d.Digest)
		scanned, err := OpenIndex(t.Context(), other, d)
		if err != nil {
			t.Fatal(err)
		}
		if own.chunks == nil || scanned.chunks != nil {
			t.Fatal("the index on writing must have chunks, that of a scan cannot")
		}
		opts := cmp.Options{cmpopts.EquateEmpty()}
		if diff := cmp.Diff(own.Entries, scanned.Entries, opts); diff != "" {
			t.Fatalf("seed %d: the index on writing (-) and the scan (+) differ:\n%s", seed, diff)
		}
		checkObjects(t, own, objects, r)
		checkObjects(t, scanned, objects, r)
		reopened, err := OpenIndex(t.Context(), other, d)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(scanned.Entries, reopened.Entries, opts); diff != "" {
			t.Fatalf("seed %d: stored index differs:\n%s", seed, diff)
		}
		checkTar(t, st, d, objects)
	}
}

// checkObjects compares an index with what was written, reading contents in random order.
func checkObjects(t *testing.T, ix *Index, objects []object, r *rand.Rand) {
	t.Helper()
	if len(ix.Entries) != len(objects) {
		t.Fatalf("%d entries, want %d", len(ix.Entries), len(objects))
	}
	for _, i := range r.Perm(len(objects)) {
		want := objects[i]
		if want.ModTime.IsZero() {
			want.ModTime = DefaultModTime.UTC()
		}
		if diff := cmp.Diff(want.Entry, ix.Entries[i].Entry, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("entry %d:\n%s", i, diff)
		}
		if want.Type != Regular {
			continue
		}
		if got := readIndexed(t, ix, i); !bytes.Equal(got, want.data) {
			t.Fatalf("%q: content differs", want.Path)
		}
	}
}

func readIndexed(t *testing.T, ix *Index, i int) []byte {
	t.Helper()
	rc, err := ix.Open(i)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func checkTar(t *testing.T, st *store.Store, d Descriptor, objects []object) {
	t.Helper()
	tr := tar.NewReader(bytes.NewReader(rawTar(t, st, d)))
	for _, want := range objects {
		h, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if name != want.Path || h.Uid != want.UID || h.Uname != "" || h.Gname != "" || uint32(h.Mode) != want.Mode {
			t.Fatalf("archive/tar reads %+v, want %+v", h, want.Entry)
		}
		data, err := io.ReadAll(tr)
		if err != nil || !bytes.Equal(data, want.data) {
			t.Fatalf("%q: content differs (%v)", want.Path, err)
		}
	}
	if _, err := tr.Next(); !errors.Is(err, io.EOF) {
		t.Fatalf("more entries: %v", err)
	}
}

func rawTar(tb testing.TB, st *store.Store, d Descriptor) []byte {
	tb.Helper()
	f, err := st.OpenBlob(d.Digest)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	rc, err := Decompress(f)
	if err != nil {
		tb.Fatal(err)
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func copyBlob(tb testing.TB, from, to *store.Store, d store.Digest) {
	tb.Helper()
	p, err := from.BlobPath(d)
	if err != nil {
		tb.Fatal(err)
	}
	data, err := os.ReadFile(p)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := to.PutBlob(data); err != nil {
		tb.Fatal(err)
	}
}

// TestSameBytes checks that neither the number of workers nor what they compressed before shows in the blob.
func TestSameBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	files, counts := 40, []int{1, 2, 3, 16, 1}
	if tooltest.Less(t) {
		files, counts = 12, []int{1, 16}
	}
	var objects []object
	for i := range files {
		data := make([]byte, 1<<20+r.IntN(1000))
		for j := range data {
			data[j] = byte(r.IntN(1 + (i*7)%200))
		}
		objects = append(objects, file(fmt.Sprintf("f%02d", i), string(data)))
	}
	for _, c := range []Compression{Zstd, Gzip, None} {
		var first Descriptor
		for i, workers := range counts {
			d := write(t, storetest.Alone(t), objects, Options{Compression: c, Workers: workers})
			if i == 0 {
				first = d
			}
			if d != first {
				t.Errorf("%s with %d workers: %+v, want %+v", c, workers, d, first)
			}
			write(t, storetest.Alone(t), objects[r.IntN(files*3/4):], Options{Compression: c, Workers: workers}) // leaves other state behind
		}
	}
}

// TestKnownDigests pins the bytes of a layer. When they change, every step's key must change too: raise the version of the
// code that keys contain.
func TestKnownDigests(t *testing.T) {
	objects := []object{
		dir("."), dir("opt"), file("opt/a", "hello\n"), hardLink("opt/b", "opt/a"), symlink("opt/c", "a"),
		file("opt/"+strings.Repeat("long", 40), "x"), file("opt/é", strings.Repeat("0123456789", 600_000)),
	}
	const rawDigest = "7fc123b89be5180a37d6c9be4e2a789c707ffd910a9fd22aaa206e783ca80755"
	want := map[Compression][2]string{
		None: {rawDigest, rawDigest},
		Zstd: {rawDigest, "37fe602efd9ecf2cbe538cc58e803087b89da72a01c509405bb63fdacd1f6605"},
		Gzip: {rawDigest, "b906a91794eaae09116170986933145f58ec9254ef1d813986867797716ef0bf"},
	}
	for c, w := range want {
		d := write(t, storetest.Alone(t), objects, Options{Compression: c})
		if d.DiffID.Hex() != w[0] || d.Digest.Hex() != w[1] {
			t.Errorf("%s: diffID %s, digest %s", c, d.DiffID.Hex(), d.Digest.Hex())
		}
		if d.MediaType != c.MediaType() {
			t.Errorf("%s: media type %s", c, d.MediaType)
		}
	}
}

// TestProgramsReadLayers lets the programs that people have judge what is written.
func TestProgramsReadLayers(t *testing.T) {
	if testing.Short() {
		t.Skip("a large layer, written as those of TestRoundTrip, and read by other programs")
	}
	st := storetest.Alone(t)
	objects := randomTree(rand.New(rand.NewPCG(3, 3)))
	objects = append(objects, file("龍", strings.Repeat("many chunks ", 1<<20)))
	for c, program := range map[Compression]string{Zstd: "zstd", Gzip: "gzip"} {
		d := write(t, st, objects, Options{Compression: c})
		blob, err := st.BlobPath(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tooltest.Path(t, program), "-dc", blob).Output()
		if program == "gzip" {
			cmd := exec.Command(tooltest.Path(t, program), "-dc")
			cmd.Stdin, _ = os.Open(blob)
			out, err = cmd.Output()
		}
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		if got := store.DigestOf(out); got != d.DiffID || int64(len(out)) != d.RawSize {
			t.Errorf("%s -d gives %s of %d bytes, want %s of %d", program, got, len(out), d.DiffID, d.RawSize)
		}
		cmd := exec.Command(tooltest.Path(t, "tar"), "--list", "--null", "--quoting-style=literal", "--file=-")
		cmd.Stdin = bytes.NewReader(out)
		list, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tar --list: %v\n%s", err, list)
		}
		var want strings.Builder
		for _, o := range objects {
			want.WriteString(o.Path)
			if o.Type == Dir {
				want.WriteString("/")
			}
			want.WriteString("\n")
		}
		if string(list) != want.String() {
			t.Errorf("tar lists:\n%s\nwant:\n%s", list, want.String())
		}
	}
}

func TestWriterRefuses(t *testing.T) {
	long := strings.Repeat("n", maxName+1)
	for name, objects := range map[string][]object{
		"out of order":            {file("b", ""), file("a", "")},
		"it is out of order":      {file("a", ""), file("a", "")},
		"is not a directory":      {file("a", ""), file("a/b", "")},
		"path is absolute":        {file("/a", "")},
		`contains ".."`:           {file("a/../b", "")},
		"not clean":               {file("a//b", "")},
		"path is empty":           {file("", "")},
		"contains NUL":            {file("a\x00", "")},
		"component longer":        {file(long, "")},
		"no earlier regular file": {hardLink("a", "b"), file("b", "")},
		"1 bytes, 2":              {{Entry{Path: "a", Size: 2}, []byte("x")}},
		"longer than the 1":       {{Entry{Path: "a", Size: 1}, []byte("xy")}},
		"more than permission":    {{Entry: Entry{Path: "a", Type: Dir, Mode: 0o40755}}},
		"owner -1":                {{Entry: Entry{Path: "a", Type: Dir, UID: -1}}},
		"size -1":                 {{Entry: Entry{Path: "a", Size: -1}}},
		"symlink needs a target":  {symlink("a", "")},
		"root must be":            {file(".", "")},
		"unknown type":            {{Entry: Entry{Path: "a", Type: 77}}},
		"attributes take":         {{Entry: Entry{Path: "a", Type: Dir, Xattrs: manyXattrs()}}},
		"cannot be stored":        {{Entry: Entry{Path: "a", Type: Dir, Xattrs: map[string]string{"a=b": ""}}}},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.Alone(t)
			w, err := NewWriter(t.Context(), st, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				if err = w.Add(o.Entry, o.content()); err != nil {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Fatalf("error %v, want one with %q", err, name)
			}
			if _, closeErr := w.Close(); closeErr == nil {
				t.Error("the layer could be finished after an error")
			}
			if left, _ := filepath.Glob(filepath.Join(st.Dir(), "*", "*")); len(nonLocks(left)) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func nonLocks(paths []string) []string {
	return slices.DeleteFunc(paths, func(p string) bool {
		return strings.Contains(p, "locks-v1") || strings.HasSuffix(p, "blobs-v1/sha256")
	})
}

func manyXattrs() map[string]string {
	m := map[string]string{}
	for i := range 40 {
		m[fmt.Sprint("user.", i)] = strings.Repeat("v", 60_000)
	}
	return m
}

func TestCancelledWriter(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w, err := NewWriter(ctx, storetest.Alone(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := w.Add(dir("a").Entry, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Add: %v", err)
	}
	if _, err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v", err)
	}
}

func TestLess(t *testing.T) {
	want := []string{".", "a", "a/b", "a/b/c", "a/z", "a!", "a-b", "a-b/c", "a.b", "aa", "b"}
	got := slices.Clone(want)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	sort.Slice(got, func(i, j int) bool { return Less(got[i], got[j]) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "a/b"}, Parents("a/b/c")); diff != "" {
		t.Error(diff)
	}
}

// TestDamagedBlob changes single bytes of a stored layer: Verify must notice each, and reading must not give other content.
func TestDamagedBlob(t *testing.T) {
	st := storetest.Alone(t)
	d := write(t, st, []object{file("a", strings.Repeat("some text ", 1000))}, Options{})
	p, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 0x55
		if err := os.Chmod(p, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Verify(t.Context(), st, d); err == nil {
			t.Fatalf("byte %d changed and Verify is content", i)
		}
	}
	if err := os.Truncate(p, int64(len(good)/2)); err != nil {
		t.Fatal(err)
	}
	ix, err := OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	if rc, err := ix.Open(0); err == nil {
		if _, err := io.ReadAll(rc); err == nil {
			t.Error("a cut blob was read to the end")
		}
	}
}

// TestDamagedIndex checks that a stored index that cannot be used is made again.
func TestDamagedIndex(t *testing.T) {
	st := storetest.Alone(t)
	d := write(t, st, []object{file("a", "hello")}, Options{})
	short := &Index{format: formatGzip, chunks: []mark{{}, {d.Size, d.RawSize - 1}}}
	tooShort, err := short.encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, stored := range map[string][]byte{
		"nonsense":                  []byte(indexMagic + "nonsense"),
		"of version 1":              []byte("sconce layer index 1\n"),
		"chunks that are too short": tooShort,
	} {
		blob, err := st.PutBlob(stored)
		if err != nil {
			t.Fatal(err)
		}
		err = st.PutRecord(store.KindLayerIndex, d.Digest.Hex(), nil, indexRecord{Index: blob, DiffID: d.DiffID, RawSize: d.RawSize})
		if err != nil {
			t.Fatal(err)
		}
		ix, err := OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := readIndexed(t, ix, 0); string(got) != "hello" {
			t.Errorf("%s: content %q", name, got)
		}
	}
}

func TestWrongDiffID(t *testing.T) {
	st := storetest.Alone(t)
	d := write(t, st, []object{file("a", "hello")}, Options{})
	d.DiffID = store.DigestOf([]byte("something else"))
	if _, err := OpenIndex(t.Context(), st, d); err == nil {
		t.Error("OpenIndex believes a layer that is not what the image says")
	}
	if err := Verify(t.Context(), st, d); err == nil {
		t.Error("Verify believes it")
	}
	if err := Unpack(t.Context(), st, d, t.TempDir(), UnpackOptions{}); err == nil {
		t.Error("Unpack believes it")
	}
}

func TestDecompress(t *testing.T) {
	want := strings.Repeat("hello ", 10_000)
	for _, program := range []string{"gzip", "zstd", "xz", "cat"} {
		cmd := exec.Command(tooltest.Path(t, program))
		cmd.Stdin = strings.NewReader(want)
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		rc, err := Decompress(bytes.NewReader(packed))
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		got, err := io.ReadAll(rc)
		if err != nil || string(got) != want {
			t.Errorf("%s: %v", program, err)
		}
		rc.Close()
		if program == "cat" {
			continue
		}
		if rc, err := Decompress(bytes.NewReader(packed[:len(packed)-9])); err == nil {
			if _, err = io.ReadAll(rc); err == nil {
				t.Errorf("%s: cut data is read without an error", program)
			}
		}
	}
}

// TestDecompressRefusesHugeWindows gives streams whose header asks for more memory than anybody grants.
func TestDecompressRefusesHugeWindows(t *testing.T) {
	for name, data := range map[string][]byte{
		// RFC 8878 3.1.1.1: no single segment, window descriptor 0xa0 = 2^30 bytes, one empty raw block.
		"zstd": {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa0, 0x01, 0x00, 0x00},
		// xz file format 3.1: LZMA2 with a dictionary of 4 GiB - 1.
		"xz": append([]byte{0xfd, '7', 'z', 'X', 'Z', 0, 0, 4, 0xe6, 0xd6, 0xb4, 0x46, 2, 0, 0x21, 1, 40, 0, 0, 0, 0xe6, 0xa0, 0x11, 0xb3}, make([]byte, 60)...),
	} {
		rc, err := Decompress(bytes.NewReader(data))
		if err == nil {
			_, err = io.ReadAll(rc)
		}
		if err == nil {
			t.Errorf("%s: read without an error", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if name == "xz" && !strings.Contains(err.Error(), "dictionary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWriterMemory writes a file far larger than the buffers and watches the heap. What two workers need is eight chunks or
// so, of 4 MiB each, and their encoders.
func TestWriterMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("400 MB take long, with the race detector above all")
	}
	const size, limit = 400 << 20, 128 << 20
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	w, err := NewWriter(t.Context(), storetest.Alone(t), Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	g := &generator{left: size}
	if err := w.Add(Entry{Path: "big", Size: size}, func() (io.ReadCloser, error) { return io.NopCloser(g), nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if used := int64(g.peak) - int64(before.HeapInuse); used > limit {
		t.Errorf("writing %d MiB took %d MiB of memory; %d are enough", size>>20, used>>20, limit>>20)
	} else {
		t.Logf("%d MiB of memory", used>>20)
	}
}

// generator gives bytes that compress a little and looks at the heap now and then.
type generator struct {
	left, sinceLook int
	state           uint64
	peak            uint64
}

func (g *generator) Read(p []byte) (int, error) {
	if g.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), g.left)]
	for i := range p {
		g.state = g.state*6364136223846793005 + 1442695040888963407
		p[i] = byte(g.state>>58) & 0x2f
	}
	g.left -= len(p)
	if g.sinceLook += len(p); g.sinceLook > 16<<20 {
		g.sinceLook = 0
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		g.peak = max(g.peak, m.HeapInuse)
	}
	return len(p), nil
}

// TestDefaultModTime: a zip can hold the time wherever it is written, in its steps of two seconds (APPNOTE 4.4.6).
func TestDefaultModTime(t *testing.T) {
	for hours := -12; hours <= 14; hours++ {
		at := DefaultModTime.In(time.FixedZone("", hours*60*60))
		if at.Year() != 1980 || at.Second()%2 != 0 {
			t.Errorf("UTC%+d: %s", hours, at)
		}
	}
}
