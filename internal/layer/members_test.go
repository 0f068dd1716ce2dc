package layer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// pulled puts the bytes of a layer into a store that knows nothing of it.
func pulled(t *testing.T, from *store.Store, d Descriptor) *store.Store {
	t.Helper()
	data, err := from.ReadBlob(d.Digest, d.Size)
	if err != nil {
		t.Fatal(err)
	}
	st := storetest.Alone(t)
	put(t, st, data)
	return st
}

func put(t *testing.T, st *store.Store, data []byte) Descriptor {
	t.Helper()
	digest, err := st.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	return Descriptor{Digest: digest, Size: int64(len(data)), MediaType: Gzip.MediaType()}
}

// What the store that has made a layer knows of it is found in its bytes: chunks, entries, and where long chunks can be entered.
func TestFindChunks(t *testing.T) {
	from := storetest.Alone(t)
	d, data := longLayer(t, from, Options{Compression: Gzip}, func(b []byte) Deflated { return pointed(t, b) })
	want := seekable(t, from, d)
	st := pulled(t, from, d)
	ix, err := FindChunks(t.Context(), st, d)
	if err != nil || ix == nil {
		t.Fatalf("it has no chunks: %v", err)
	}
	if diff := cmp.Diff(want.Entries, ix.Entries); diff != "" {
		t.Errorf("entries (-made +found):\n%s", diff)
	}
	if diff := cmp.Diff(want.chunks, ix.chunks, cmp.AllowUnexported(mark{})); diff != "" || ix.DiffID != want.DiffID || ix.RawSize != want.RawSize {
		t.Errorf("%s of %d bytes, chunks (-made +found):\n%s", ix.DiffID, ix.RawSize, diff)
	}
	wantAnywhere(t, ix, data)
	if kept, err := SeekableIndex(st, d); kept != nil || err != nil {
		t.Errorf("kept unasked: %v", err)
	}
	if err := ix.Keep(st, d); err != nil {
		t.Fatal(err)
	}
	wantAnywhere(t, seekable(t, st, d), data)
	other := d
	other.DiffID = store.DigestOf([]byte("x"))
	if ix, err := FindChunks(t.Context(), st, other); ix != nil || err == nil || !strings.Contains(err.Error(), "unpacks to") {
		t.Errorf("a layer that is not what the image says: %v", err)
	}
}

// On many cores a layer is found to be what it is on one, bit by bit, and so is one that is damaged anywhere.
func TestFindChunksOnManyCores(t *testing.T) {
	from := storetest.Alone(t)
	d, _ := longLayer(t, from, Options{Compression: Gzip}, func(b []byte) Deflated { return pointed(t, b) })
	data, err := from.ReadBlob(d.Digest, d.Size)
	if err != nil {
		t.Fatal(err)
	}
	st := storetest.Alone(t)
	if first, again := foundOn(t, st, data, 1), foundOn(t, st, data, 16); first != again || !strings.HasPrefix(first, indexMagic) {
		t.Errorf("on 16 cores another index of %d bytes, on one of %d", len(again), len(first))
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 6 {
		bad, at := bytes.Clone(data), r.IntN(len(data))
		bad[at] ^= 1 << r.IntN(8)
		if first, again := foundOn(t, st, bad, 1), foundOn(t, st, bad, 16); first != again {
			t.Errorf("damaged at %d: %.200q on 16 cores, %.200q on one", at, again, first)
		}
	}
}

// foundOn is what FindChunks makes of a layer on some cores: an index with its points, an error, or nothing.
func foundOn(t *testing.T, st *store.Store, data []byte, cores int) string {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	ix, err := FindChunks(t.Context(), st, put(t, st, data))
	if err != nil || ix == nil {
		return fmt.Sprint(err)
	}
	list, err := ix.seeks()
	if err != nil {
		t.Fatal(err)
	}
	points, err := list.encode()
	if err != nil {
		t.Fatal(err)
	}
	index, err := ix.encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(index) + string(points) + string(ix.DiffID)
}

// A layer that is not made of chunks is left alone, and of a long stream no more than a chunk is read: what is wrong behind it is not noticed.
func TestFindNoChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("many large streams, looked at by the goroutines of TestFindChunks")
	}
	st := storetest.Alone(t)
	content := compressible(rand.New(rand.NewPCG(7, 8)), ChunkSize*3/2)
	raw := tarOfOne(t, content)
	stream := gzipStream(t, raw, "")
	cut := stream[:len(stream)*3/4]
	small := tarOfOne(t, []byte("small"))
	zst, _ := longLayer(t, st, Options{Compression: Zstd}, func(b []byte) Deflated { return pointed(t, b) })
	for name, d := range map[string]Descriptor{
		"a long stream": put(t, st, stream), "one that is cut off later": put(t, st, cut), "a tar": put(t, st, small), "zstd": zst,
		"a stream with a name": put(t, st, gzipStream(t, small, "layer.tar")), "something behind it": put(t, st, append(gzipStream(t, small, ""), "more than a header"...)),
		"nothing": put(t, st, []byte{0}),
	} {
		if ix, err := FindChunks(t.Context(), st, Descriptor{Digest: d.Digest, Size: d.Size}); ix != nil || err != nil {
			t.Errorf("%s: an index: %v, %v", name, ix != nil, err)
		}
	}
	ix, err := FindChunks(t.Context(), st, put(t, st, gzipStream(t, small, "")))
	if err != nil || ix == nil || !ix.IsOneChunk() {
		t.Errorf("a small stream is a chunk: %v", err)
	}
	// A member that goes on is left before the places in it fill the memory.
	const part = 1000
	long := append(gzipStream(t, raw[:part], ""), gzipStream(t, raw[part:], "")...)
	if ix, err := FindChunks(t.Context(), st, put(t, st, long)); ix == nil || err != nil {
		t.Fatalf("two members: %v", err)
	}
	before := maxMember
	maxMember = int64(len(raw)) / 2
	if ix, err := FindChunks(t.Context(), st, put(t, st, long)); ix != nil || err != nil {
		t.Errorf("one that is too long: an index: %v, %v", ix != nil, err)
	}
	maxMember = before
	half := len(raw) / 8
	two := append(gzipStream(t, raw[:half], ""), gzipStream(t, raw[half:], "")...)
	two[len(two)-5] ^= 1
	if _, err := FindChunks(t.Context(), st, put(t, st, two)); err == nil {
		t.Error("a wrong checksum is no error")
	}
}

func tarOfOne(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipStream(t testing.TB, data []byte, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Name = name
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
