package python

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// packedWheel makes a wheel with one file, demo.bin, that is stored as packed, whatever that is.
func packedWheel(t testing.TB, data, packed []byte, edit func(*zip.FileHeader)) []byte {
	t.Helper()
	record := recordOf("demo.bin", string(data), int64(len(data)))
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, m := range []struct {
		name         string
		data, packed []byte
	}{
		{"demo.bin", data, packed},
		{testDist + "WHEEL", []byte(wheelText), deflate(t, wheelText)},
		{testDist + "METADATA", []byte(metadataText), deflate(t, metadataText)},
		{testDist + "RECORD", []byte(record), deflate(t, record)},
	} {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate, CRC32: crc32.ChecksumIEEE(m.data), CompressedSize64: uint64(len(m.packed)), UncompressedSize64: uint64(len(m.data))}
		if m.name == "demo.bin" && edit != nil {
			edit(h)
		}
		w, err := z.CreateRaw(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.packed); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// halfRandom gives n bytes that deflate to about a half.
func halfRandom(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.IntN(16))
	}
	return data
}

// buildWheel puts a wheel into a new store and makes its layer.
func buildWheel(t testing.TB, wheel []byte, c layer.Compression) (*store.Store, layer.Descriptor, error) {
	t.Helper()
	st := storetest.New(t)
	digest, err := st.PutBlob(wheel)
	if err != nil {
		t.Fatal(err)
	}
	item := Item{Name: "demo-pkg", Version: "1.0", File: testWheelFile, Digest: digest, Size: int64(len(wheel))}
	o := LayerOptions{Options: layer.Options{Compression: c}}
	d, _, err := BuildLayer(t.Context(), st, Group{"demo", []Item{item}}, testTarget("3.11.2"), nil, o)
	return st, d, err
}

// TestHostileStreams gives members whose packed bytes are not exactly one deflate stream of the content. A layer that took
// them over would hold what nobody has checked; nothing may come of any, however the layer is compressed.
func TestHostileStreams(t *testing.T) {
	defer func(from int64) { streamFrom = from }(streamFrom)
	streamFrom = 2 * inflateBuffer
	for _, size := range []int{100_000, int(streamFrom) + 100_000} { // in memory, and as a stream
		data := halfRandom(size)
		good := deflate(t, string(data))
		evil := deflate(t, "import evil\n")
		cut := bytes.Clone(good[:len(good)-5])
		for name, tc := range map[string]struct {
			packed []byte
			edit   func(*zip.FileHeader)
		}{
			"garbage behind the last block":    {append(bytes.Clone(good), "garbage"...), nil},
			"one zero behind the last block":   {append(bytes.Clone(good), 0), nil},
			"another stream behind it":         {append(bytes.Clone(good), evil...), nil},
			"a gzip member behind it":          {append(append(bytes.Clone(good), make([]byte, 8)...), append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, evil...)...), nil},
			"more than a buffer behind it":     {append(bytes.Clone(good), make([]byte, 2*inflateBuffer)...), nil},
			"a last block that comes too soon": {append(deflate(t, string(data[:size/2])), deflate(t, string(data[size/2:]))...), nil},
			"a wrong checksum":                 {good, func(h *zip.FileHeader) { h.CRC32 ^= 1 }},
			"a size too large":                 {good, func(h *zip.FileHeader) { h.UncompressedSize64++ }},
			"a size too small":                 {good, func(h *zip.FileHeader) { h.UncompressedSize64-- }},
			"a stream that is cut":             {cut, nil},
			"a packed size too small":          {good, func(h *zip.FileHeader) { h.CompressedSize64-- }},
			"other bytes":                      {deflate(t, string(halfRandom(size + 1)[1:])), nil},
			"no stream":                        {data[:size/2], nil},
		} {
			t.Run(fmt.Sprint(size, " ", name), func(t *testing.T) {
				wheel := packedWheel(t, data, tc.packed, tc.edit)
				for _, c := range []layer.Compression{layer.Gzip, layer.Zstd, layer.None} {
					st, d, err := buildWheel(t, wheel, c)
					if err == nil {
						t.Errorf("%s: it became the layer %s", c, d.Digest)
					}
					if left, _ := filepath.Glob(filepath.Join(st.Dir(), "records-v1", "*")); len(left) > 0 {
						t.Errorf("%s: left behind: %v", c, left)
					}
				}
			})
		}
		// The same with nothing wrong, so that the wheels above are refused for what the test says.
		st, d, err := buildWheel(t, packedWheel(t, data, good, nil), layer.Gzip)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(blobOf(t, st, d), good) {
			t.Error("the stream is not in the layer")
		}
	}
}

// TestNoChecksum reads a wheel whose directory leaves the checksum out, which archive/zip lets pass: the layer needs its own.
func TestNoChecksum(t *testing.T) {
	data := halfRandom(100_000)
	st, d, err := buildWheel(t, packedWheel(t, data, deflate(t, string(data)), func(h *zip.FileHeader) { h.CRC32 = 0 }), layer.Gzip)
	if err != nil {
		t.Fatal(err)
	}
	if err := layer.Verify(t.Context(), st, d); err != nil {
		t.Error(err)
	}
}

func blobOf(t testing.TB, st *store.Store, d layer.Descriptor) []byte {
	t.Helper()
	p, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestLayersTakeWheelsOver makes layers of real wheels: gzip must read the same tar in them as zstd in theirs, every member
// that is large enough must be in them as it is in the wheel, and together they must not be much larger than the wheel.
func TestLayersTakeWheelsOver(t *testing.T) {
	names := []string{"pygments", "numpy"}
	if tooltest.Less(t) {
		names = names[:1]
	}
	for _, name := range names {
		path := wheelFor(t, name)
		st := storetest.New(t)
		g := Group{name, []Item{putWheel(t, st, path)}}
		made := map[layer.Compression]layer.Descriptor{}
		for _, c := range []layer.Compression{layer.Gzip, layer.Zstd} {
			d, _, err := BuildLayer(t.Context(), st, g, testTarget("3.11.2"), nil, LayerOptions{Options: layer.Options{Compression: c}})
			if err != nil {
				t.Fatal(err)
			}
			made[c] = d
		}
		d := made[layer.Gzip]
		if d.DiffID != made[layer.Zstd].DiffID {
			t.Errorf("%s: DiffID %s as gzip, %s as zstd", name, d.DiffID, made[layer.Zstd].DiffID)
		}
		blob := blobOf(t, st, d)
		cmd := exec.Command(tooltest.Path(t, "gzip"), "-dc")
		cmd.Stdin = bytes.NewReader(blob)
		out, err := cmd.Output()
		if err != nil || store.DigestOf(out) != d.DiffID {
			t.Errorf("%s: gzip reads %s, want %s (%v)", name, store.DigestOf(out), d.DiffID, err)
		}
		w := openWheelFile(t, path)
		taken := 0
		for _, m := range w.Members {
			if m.Packed < 8<<10 || strings.HasPrefix(m.Name, w.DistInfo+"/RECORD") || !m.deflated() {
				continue
			}
			r, err := m.openPacked()
			if err != nil {
				t.Fatal(err)
			}
			packed, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(blob, packed) {
				t.Errorf("%s: %s is compressed again", name, m.Name)
			}
			taken++
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if taken == 0 || d.Size > info.Size()*105/100 {
			t.Errorf("%s: %d streams taken over; %d bytes of a wheel of %d", name, taken, d.Size, info.Size())
		}
	}
}

// TestDecoderStopsAtTheEnd: what packed data is left after a stream decides whether it is taken over, so the decompressor must
// not take a byte behind it, however the stream ends.
func TestDecoderStopsAtTheEnd(t *testing.T) {
	data := halfRandom(3 * inflateBuffer)
	for level := flate.HuffmanOnly; level <= flate.BestCompression; level++ {
		for _, n := range []int{0, 1, 100, inflateBuffer, len(data)} {
			var b bytes.Buffer
			w, err := flate.NewWriter(&b, level)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(data[:n]); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			stream := b.Bytes()
			for behind, want := range []bool{true, false} {
				r := new(Wheel).inflateMember(bytes.NewReader(append(bytes.Clone(stream), make([]byte, behind)...)))
				got, err := io.ReadAll(r)
				if errors.Is(r.Close(), io.EOF) || !bytes.Equal(got, data[:n]) || (err == nil) != want {
					t.Errorf("level %d, %d bytes, %d behind: %d bytes, %v", level, n, behind, len(got), err)
				}
			}
		}
	}
}
