package layer

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	kflate "github.com/klauspost/compress/flate"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// deflateBytes packs data, at one of the levels of compress/flate, by a compressor that the race detector leaves alone.
func deflateBytes(tb testing.TB, data []byte, level int) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := kflate.NewWriter(&b, level)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func deflated(stream []byte) Deflated {
	return Deflated{Size: int64(len(stream)), Open: func() (io.Reader, error) { return bytes.NewReader(stream), nil }}
}

// writeDeflated is write for objects of which some have streams, by path.
func writeDeflated(tb testing.TB, st *store.Store, objects []object, streams map[string][]byte, o Options) Descriptor {
	tb.Helper()
	w, err := NewWriter(tb.Context(), st, o)
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Abort()
	for _, obj := range objects {
		var d Deflated
		if s, ok := streams[obj.Path]; ok {
			d = deflated(s)
		}
		if err := w.AddDeflated(obj.Entry, obj.content(), d); err != nil {
			tb.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// deflatedTree is randomTree with larger files, and streams for some of them, made in every way that compress/flate knows.
func deflatedTree(tb testing.TB, r *rand.Rand) ([]object, map[string][]byte) {
	objects := randomTreeOf(r, 100_000)
	streams := map[string][]byte{}
	for i := range objects {
		o := &objects[i]
		if o.Type != Regular || r.IntN(3) == 0 {
			continue
		}
		if r.IntN(2) == 0 {
			o.data = compressible(r, r.IntN([]int{10_000, 100_000, 100_000, 100_000, 2 * ChunkSize}[r.IntN(5)]))
			o.Size = int64(len(o.data))
		}
		streams[o.Path] = deflateBytes(tb, o.data, r.IntN(12)-2)
	}
	return objects, streams
}

// compressible gives n bytes that deflate to a half or less.
func compressible(r *rand.Rand, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.IntN(16))
	}
	return data
}

func readBlob(tb testing.TB, st *store.Store, d Descriptor) []byte {
	tb.Helper()
	p, err := st.BlobPath(d.Digest)
	if err != nil {
		tb.Fatal(err)
	}
	data, err := os.ReadFile(p)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// TestDeflated writes random trees with and without their streams. It must be the same tar, hold the streams byte for byte,
// be the same blob whatever the workers, and be read back right: by gzip, by its own index and by a scan.
func TestDeflated(t *testing.T) {
	st, other := storetest.Alone(t), storetest.Alone(t)
	taken := 0
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 5))
		objects, streams := deflatedTree(t, r)
		plain := write(t, st, objects, Options{})
		d := writeDeflated(t, st, objects, streams, Options{Workers: 1})
		if d.DiffID != plain.DiffID || d.RawSize != plain.RawSize {
			t.Fatalf("seed %d: with streams the tar is %s of %d bytes, without %s of %d", seed, d.DiffID, d.RawSize, plain.DiffID, plain.RawSize)
		}
		for _, workers := range []int{5} {
			if again := writeDeflated(t, storetest.Alone(t), objects, streams, Options{Workers: workers}); again != d {
				t.Errorf("seed %d: with %d workers %+v, with one %+v", seed, workers, again, d)
			}
		}
		blob := readBlob(t, st, d)
		for _, o := range objects {
			s, ok := streams[o.Path]
			want := ok && len(s) >= minDeflated && len(s) < len(o.data)
			if ok && len(s) > 1000 && bytes.Contains(blob, s) != want {
				t.Errorf("seed %d: a stream of %d bytes for %d is taken over: %t, want %t", seed, len(s), len(o.data), !want, want)
			}
			if want {
				taken++
			}
		}
		out := gunzip(t, blob)
		if got := store.DigestOf(out); got != d.DiffID || int64(len(out)) != d.RawSize {
			t.Fatalf("seed %d: gzip -d gives %s of %d bytes, want %s of %d", seed, got, len(out), d.DiffID, d.RawSize)
		}
		if err := Verify(t.Context(), st, d); err != nil {
			t.Fatal(err)
		}
		own, err := OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		checkObjects(t, own, objects, r)
		copyBlob(t, st, other, d.Digest)
		scanned, err := OpenIndex(t.Context(), other, d)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(own.Entries, scanned.Entries, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: the index on writing (-) and the scan (+) differ:\n%s", seed, diff)
		}
		checkTar(t, st, d, objects)
	}
	if taken < 10 {
		t.Errorf("only %d streams were taken over: the test has lost its meaning", taken)
	}
}

// gunzip lets gzip itself unpack, after it has tested the blob.
func gunzip(t *testing.T, blob []byte) []byte {
	t.Helper()
	for _, args := range [][]string{{"-t"}, {"-dc"}} {
		cmd := exec.Command(tooltest.Path(t, "gzip"), args...)
		cmd.Stdin = bytes.NewReader(blob)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || errs.Len() > 0 {
			t.Fatalf("gzip %s: %v %s", args, err, errs.String())
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// TestKnownDeflatedDigest is TestKnownDigests for a layer with a stream. No compressor has a part in that: it is a stored
// block of 8 KiB and a copy of its last byte (RFC 1951, 3.2.4 and 3.2.6).
func TestKnownDeflatedDigest(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), minDeflated/16)
	stream := []byte{0, 0, minDeflated >> 8, 0xff, 0xff - minDeflated>>8}
	stream = append(stream, content...)
	stream = append(stream, fixedTail...)
	content = append(content, strings.Repeat("f", 258)...)
	if got, err := io.ReadAll(flate.NewReader(bytes.NewReader(stream))); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("the stream is not what it should be: %d bytes, %v", len(got), err)
	}
	d := writeDeflated(t, storetest.Alone(t), []object{file("a", "x"), file("b", string(content))}, map[string][]byte{"b": stream}, Options{})
	if d.Digest.Hex() != "7bf288e90c60c56aedfcedeb41e695ecab479f78f9276efab43a09a0bd013f4f" || d.Size < int64(len(stream)) {
		t.Errorf("digest %s, %d bytes", d.Digest, d.Size)
	}
}

// fixedTail is a last block with fixed codes: a copy of 258 bytes from one byte back, and the end. Its bits, from the lowest
// of each byte on: 1 (last), 10 (fixed codes), 11000101 (length 258), 00000 (distance 1), 0000000 (end).
var fixedTail = []byte{0b0001_1011, 0b0000_0101, 0b0000_0000}

// TestDeflatedElsewhere checks that layers of other kinds compress, or do not, as always.
func TestDeflatedElsewhere(t *testing.T) {
	objects, streams := deflatedTree(t, rand.New(rand.NewPCG(9, 9)))
	for _, c := range []Compression{Zstd, None} {
		with := writeDeflated(t, storetest.Alone(t), objects, streams, Options{Compression: c})
		if without := write(t, storetest.Alone(t), objects, Options{Compression: c}); with != without {
			t.Errorf("%s: %+v with streams, %+v without", c, with, without)
		}
	}
}

// TestDeflatedUnpacks lets GNU tar, and Unpack, lay down a layer with streams.
func TestDeflatedUnpacks(t *testing.T) {
	if testing.Short() {
		t.Skip("a large file, written and read as those of TestDeflated")
	}
	st := storetest.Alone(t)
	r := rand.New(rand.NewPCG(4, 4))
	a, b := compressible(r, 9<<20), compressible(r, 50_000)
	objects := []object{dir("d"), file("d/a", string(a)), file("d/b", string(b)), file("d/c", "small")}
	streams := map[string][]byte{"d/a": deflateBytes(t, a, 6), "d/b": deflateBytes(t, b, 9)}
	d := writeDeflated(t, st, objects, streams, Options{})
	byTar, byUs := t.TempDir(), t.TempDir()
	cmd := exec.Command(tooltest.Path(t, "tar"), "--extract", "--gzip", "--file=-", "--directory="+byTar)
	cmd.Stdin = bytes.NewReader(readBlob(t, st, d))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	if err := Unpack(t.Context(), st, d, byUs, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{byTar, byUs} {
		for _, o := range objects[1:] {
			if got, err := os.ReadFile(filepath.Join(dir, o.Path)); err != nil || !bytes.Equal(got, o.data) {
				t.Errorf("%s: content differs (%v)", o.Path, err)
			}
		}
	}
}

// TestDeflatedRefuses gives streams that are not what they are said to be, and contents that turn out wrong: no layer may
// come of it.
func TestDeflatedRefuses(t *testing.T) {
	data := compressible(rand.New(rand.NewPCG(1, 3)), 200_000)
	stream := deflateBytes(t, data, 6)
	size := int64(len(stream))
	errBroken := errors.New("broken")
	reader := func(b []byte) func() (io.Reader, error) {
		return func() (io.Reader, error) { return bytes.NewReader(b), nil }
	}
	for name, tc := range map[string]struct {
		d    Deflated
		data []byte
		want string
	}{
		"short stream":   {Deflated{Size: size, Open: reader(stream[:size-1])}, data, "does not have"},
		"long stream":    {Deflated{Size: size, Open: reader(append(slices.Clone(stream), 0))}, data, "does not have"},
		"no stream":      {Deflated{Size: size, Open: func() (io.Reader, error) { return nil, errBroken }}, data, "broken"},
		"failing stream": {Deflated{Size: size, Open: func() (io.Reader, error) { return iotest.ErrReader(errBroken), nil }}, data, "broken"},
		"short content":  {deflated(stream), data[1:], "announced"},
		"long content":   {deflated(stream), append(slices.Clone(data), 0), "announced"},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.Alone(t)
			w, err := NewWriter(t.Context(), st, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Abort()
			first := file("a", string(tc.data))
			first.Size = int64(len(data))
			_ = w.AddDeflated(first.Entry, first.content(), tc.d) // may say it now or later
			_ = w.Add(file("b", "").Entry, nil)
			if _, err = w.Close(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
			if left, _ := filepath.Glob(filepath.Join(st.Dir(), "*", "*")); len(nonLocks(left)) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestDamagedChunks changes bytes of a layer, one at a time. What is read at random through the index must be right, or an error.
func TestDamagedChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("many large files, one goroutine")
	}
	st := storetest.Alone(t)
	r := rand.New(rand.NewPCG(8, 8))
	long := bytes.Repeat(compressible(r, 40_000), 120) // deflates to little more than the 40 kB
	objects := []object{file("a", "small"), file("b", string(compressible(r, 30_000))), file("c", string(long))}
	streams := map[string][]byte{"b": deflateBytes(t, objects[1].data, 6), "c": deflateBytes(t, long, 9)}
	d := writeDeflated(t, st, objects, streams, Options{})
	p, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	good := readBlob(t, st, d)
	if err := os.Chmod(p, 0o600); err != nil {
		t.Fatal(err)
	}
	const tries = 80
	noticed := 0
	for range tries {
		bad := slices.Clone(good)
		bad[r.IntN(len(bad))] ^= byte(1 + r.IntN(255))
		if err := os.WriteFile(p, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		ix, err := OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range objects {
			rc, err := ix.Open(i)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(rc)
			rc.Close()
			if err != nil {
				noticed++
			} else if !bytes.Equal(got, o.data) {
				t.Fatalf("%s has other content, and no error", o.Path)
			}
		}
	}
	if noticed < tries*5/8 {
		t.Errorf("only %d errors", noticed)
	}
}

// TestLongChunk reads a file that is one chunk of many times the memory that reading may take, from its beginning and from
// the entries around it.
func TestLongChunk(t *testing.T) {
	if testing.Short() {
		t.Skip("200 MB take long, with the race detector above all")
	}
	const size, limit = 200 << 20, 64 << 20
	st := storetest.Alone(t)
	var packed bytes.Buffer
	z, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(z, &generator{left: size}); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(t.Context(), st, Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, o := range []object{file("a", "before"), file("big", ""), file("c", "after")} {
		content, d := o.content(), Deflated{}
		if o.Path == "big" {
			o.Size, d = size, deflated(packed.Bytes())
			content = func() (io.ReadCloser, error) { return io.NopCloser(&generator{left: size}), nil }
		}
		if err := w.AddDeflated(o.Entry, content, d); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	ix, err := OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	if len(ix.chunks) != 4 || ix.rawLen(1) != size {
		t.Fatalf("chunks start at %v", ix.chunks)
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	rc, err := ix.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	want := &generator{left: size}
	if err := sameBytes(rc, want); err != nil {
		t.Fatal(err)
	}
	if used := int64(want.peak) - int64(before.HeapInuse); used > limit {
		t.Errorf("reading took %d MiB of memory", used>>20)
	}
	for i, content := range map[int]string{0: "before", 2: "after"} {
		if got := readIndexed(t, ix, i); string(got) != content {
			t.Errorf("entry %d: %q", i, got)
		}
	}
	// From the middle on, over the end of the chunk.
	part, err := ix.section(ix.Entries[1].Offset+size-5000, 5000+512)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(part)
	if err != nil || len(got) != 5512 || string(got[5000:5001]) != "c" {
		t.Errorf("a part over the end of the long chunk: %d bytes, %v", len(got), err)
	}
	half, err := ix.Open(1) // and one that is closed before its end
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, half, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := half.Close(); err != nil {
		t.Fatal(err)
	}
}

func sameBytes(a, b io.Reader) error {
	x, y := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := 0; ; at += len(x) {
		n, errA := io.ReadFull(a, x)
		m, errB := io.ReadFull(b, y)
		if n != m || !bytes.Equal(x[:n], y[:m]) {
			return fmt.Errorf("they differ after %d bytes: %w", at, errors.Join(errA, errB))
		}
		if errA != nil || errB != nil {
			if errors.Is(errA, io.EOF) || errors.Is(errA, io.ErrUnexpectedEOF) {
				return nil
			}
			return errors.Join(errA, errB)
		}
	}
}
