package layer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/inflate"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// pointed is a stream with the places where decoding can begin.
func pointed(tb testing.TB, stream []byte) Deflated {
	tb.Helper()
	d := deflated(stream)
	d.Points = func() []inflate.Point {
		z := inflate.NewReader(bytes.NewReader(stream), inflate.Options{ReadAhead: true, Points: SeekSpacing})
		defer z.Close()
		if _, err := io.Copy(io.Discard, z); err != nil {
			tb.Error(err)
		}
		return z.Points()
	}
	return d
}

// longLayer is a layer of small files around one that is a long chunk.
func longLayer(t *testing.T, st *store.Store, o Options, packed func([]byte) Deflated) (Descriptor, map[string][]byte) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	data := map[string][]byte{"a": compressible(r, 100_000), "long": compressible(r, ChunkSize+1234567), "z": compressible(r, 70_000), "zero": nil}
	w, err := NewWriter(t.Context(), st, o)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, name := range []string{"a", "long", "z", "zero"} {
		var d Deflated
		if name == "long" {
			d = packed(deflateBytes(t, data[name], 1))
		}
		e := Entry{Path: name, Type: Regular, Mode: 0o644, Size: int64(len(data[name]))}
		if err := w.AddDeflated(e, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data[name])), nil }, d); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return d, data
}

// seekable opens a layer to be read from anywhere.
func seekable(t *testing.T, st *store.Store, d Descriptor) *Index {
	t.Helper()
	ix, err := SeekableIndex(st, d)
	if err != nil || ix == nil {
		t.Fatalf("it cannot be read from anywhere: %v", err)
	}
	return ix
}

// wantAnywhere reads files from many places, by several at once.
func wantAnywhere(t *testing.T, ix *Index, data map[string][]byte) {
	t.Helper()
	pieces := NewPieces(5 << 20) // so that there is something to drop
	var all sync.WaitGroup
	for i, e := range ix.Entries {
		want := data[e.Path]
		f, err := ix.ReaderAt(e, pieces)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if n, err := f.ReadAt(make([]byte, 10), int64(len(want))); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("%s: at its end: %d, %v", e.Path, n, err)
			}
			if got, err := io.ReadAll(io.NewSectionReader(f, 0, e.Size)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d of %d bytes, %v", e.Path, len(got), len(want), err)
			}
			r := rand.New(rand.NewPCG(3, uint64(i)))
			for range 20 {
				if len(want) == 0 {
					return
				}
				at := r.Int64N(e.Size)
				p := make([]byte, min(e.Size-at, 1+r.Int64N(200_000)))
				if n, err := f.ReadAt(p, at); n != len(p) || err != nil || !bytes.Equal(p, want[at:at+int64(n)]) {
					t.Errorf("%s: %d of %d bytes at %d, %v", e.Path, n, len(p), at, err)
				}
			}
		})
	}
	all.Wait()
}

func TestReadFromAnywhere(t *testing.T) {
	st := storetest.Alone(t)
	for _, c := range []Compression{Gzip, Zstd} {
		t.Run(string(c), func(t *testing.T) {
			d, data := longLayer(t, st, Options{Compression: c}, func(b []byte) Deflated { return pointed(t, b) })
			wantAnywhere(t, seekable(t, st, d), data)
		})
	}
}

// A chunk that a rewritten layer takes over can still be read from anywhere.
func TestReadFromAnywhereAfterRewrite(t *testing.T) {
	st := storetest.Alone(t)
	d, data := longLayer(t, st, Options{}, func(b []byte) Deflated { return pointed(t, b) })
	ix := seekable(t, st, d)
	slices.Reverse(data["z"])
	made, err := Rewrite(t.Context(), st, d, []Change{{ix.Entries[2], func(io.Reader) io.Reader { return bytes.NewReader(data["z"]) }}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Digest == d.Digest {
		t.Fatal("nothing has changed")
	}
	wantAnywhere(t, seekable(t, st, made), data)
}

// What lies beside a piece that is wanted is decompressed ahead; of each piece the reader is told once, rightly and in its place.
func TestPiecesBesideAreTold(t *testing.T) {
	st := storetest.Alone(t)
	d, data := longLayer(t, st, Options{}, func(b []byte) Deflated { return pointed(t, b) })
	ix := seekable(t, st, d)
	f, err := ix.ReaderAt(ix.Entries[1], NewPieces(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	want := data["long"]
	told := make(chan []int64, 1000) // from, to
	f.Tell(func(part []byte, off int64) {
		if off < 0 || off+int64(len(part)) > int64(len(want)) || !bytes.Equal(part, want[off:off+int64(len(part))]) {
			t.Errorf("%d bytes at %d are not what is there", len(part), off)
		}
		told <- []int64{off, off + int64(len(part))}
	})
	p := make([]byte, 1)
	if _, err := f.ReadAt(p, int64(len(want)/2)); err != nil {
		t.Fatal(err)
	}
	first, second := <-told, <-told // the second was not asked for: without it this waits forever
	if first[0] != second[1] && first[1] != second[0] {
		t.Errorf("told of %d and %d, which do not lie side by side", first, second)
	}
	sum := first[1] - first[0] + second[1] - second[0]
	for at := 0; at < len(want); at += 1000 {
		if _, err := f.ReadAt(p, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	for sum < int64(len(want)) {
		part := <-told
		sum += part[1] - part[0]
	}
	if sum != int64(len(want)) {
		t.Errorf("told %d bytes of %d", sum, len(want))
	}
}

func TestNotFromAnywhere(t *testing.T) {
	st := storetest.Alone(t)
	for name, o := range map[string]Options{"a long chunk without points": {}, "without checksums": {Compression: None}} {
		d, _ := longLayer(t, st, o, deflated)
		if ix, err := SeekableIndex(st, d); ix != nil || err != nil {
			t.Errorf("%s: %v, %v", name, ix, err)
		}
	}
	if ix, err := SeekableIndex(st, Descriptor{Digest: store.DigestOf([]byte("x"))}); ix != nil || err != nil {
		t.Errorf("a layer that is not there: %v, %v", ix, err)
	}
}

// Bytes that are not what was written are never shown; what is whole around them is.
func TestDamageIsNotRead(t *testing.T) {
	st := storetest.Alone(t)
	d, data := longLayer(t, st, Options{}, func(b []byte) Deflated { return pointed(t, b) })
	ix := seekable(t, st, d)
	number := ix.chunkAt(ix.Entries[1].Offset)
	list, err := ix.seekPoints(number)
	if err != nil || len(list) < 4 {
		t.Fatalf("%d points, %v", len(list), err)
	}
	bad := partOf(list, 2)
	flip(t, st, d.Digest, ix.chunks[number].blob+(bad.bit+bad.endBit)/16)
	f, err := ix.ReaderAt(ix.Entries[1], NewPieces(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1000)
	_, err = f.ReadAt(p, bad.raw)
	if err == nil || !strings.Contains(err.Error(), d.Digest.Short()) || !strings.Contains(fault.HintOf(err), "cache verify") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
	if _, err := f.ReadAt(p, bad.endRaw); err != nil || !bytes.Equal(p, data["long"][bad.endRaw:][:1000]) {
		t.Errorf("behind the damage: %v", err)
	}
}

// flip turns a bit of a blob over.
func flip(t *testing.T, st *store.Store, blob store.Digest, at int64) {
	t.Helper()
	name, err := st.BlobPath(blob)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// A table of points is somebody's file like any other.
func FuzzSeeks(f *testing.F) {
	data, err := seeks{3: {{raw: 100, bit: 800, crc: 7, window: []byte("w")}, {raw: 200, bit: 900}}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = readSeeks(bytes.NewReader(data)) })
}
