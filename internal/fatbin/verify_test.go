package fatbin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"
)

func verify(t testing.TB, f *File) Verification {
	t.Helper()
	v, err := f.Verify(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVerify(t *testing.T) {
	for name, want := range map[string]struct{ images, opaque int }{
		"stored.fatbin": {2, 0}, "lz4.fatbin": {4, 0}, "zstd.fatbin": {4, 0}, "concatenated.fatbin": {4, 0}, "debug.fatbin": {2, 0},
		"lto.fatbin": {0, 1}, "kernel.cubin": {1, 0}, "kernel.ptx": {1, 0}, "host.so": {13, 0}, "host.o": {13, 0},
	} {
		v := verify(t, scan(t, fixture(t, name), Options{}))
		if v.Images != want.images || v.Opaque != want.opaque || len(v.Problems) > 0 {
			t.Errorf("%s: %+v, want %+v and no problem", name, v, want)
		}
	}
}

// TestVerifyFinds changes a sound region in one place.
func TestVerifyFinds(t *testing.T) {
	const entry = regionHeaderSize
	concatenated := scan(t, fixture(t, "concatenated.fatbin"), Options{}).Regions[0].Entries
	parts := int(concatenated[len(concatenated)-1].Offset) + entryHeaderSize + partListHead
	tests := []struct {
		fixture string
		at      int
		to      []byte
		problem string
	}{
		{"zstd.fatbin", entry + 28, []byte{86}, "is for sm_80"},
		{"zstd.fatbin", entry + 24, []byte{7}, "ABI 8"},
		{"zstd.fatbin", entry + 56, []byte{1}, "unpacks to more"},
		{"zstd.fatbin", entry + 57, []byte{0x7f}, "header says"},
		{"zstd.fatbin", entry + 64 + 100, []byte{0xAA, 0xAA, 0xAA}, "cannot be unpacked"},
		{"zstd.fatbin", entry, []byte{1}, "no PTX"},
		{"zstd.fatbin", entry, []byte{8}, "LTO-IR"},
		{"lz4.fatbin", entry + 28, []byte{75}, "is for sm_80"},
		{"lz4.fatbin", entry + 56, []byte{1}, "unpacks to more"},
		{"lz4.fatbin", entry + 57, []byte{0x7f}, "header says"},
		{"lz4.fatbin", entry + 64, []byte{0x00, 0xff, 0xff}, "cannot be unpacked"},
		{"stored.fatbin", entry + 28, []byte{80}, "is for sm_75"},
		{"stored.fatbin", entry + 64, []byte{0}, "no cubin"},
		{"concatenated.fatbin", parts + 28, []byte{90}, "is for sm_80"},
		{"concatenated.fatbin", parts + 4, []byte{8}, "no cubin"},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.fixture, " ", test.problem), func(t *testing.T) {
			b := fixture(t, test.fixture)
			copy(b[test.at:], test.to)
			f := scan(t, b, Options{})
			if len(f.Problems) > 0 {
				t.Fatalf("the scan has problems: %v", f.Problems)
			}
			v := verify(t, f)
			if len(v.Problems) != 1 || !strings.Contains(v.Problems[0].Text, test.problem) {
				t.Errorf("problems %v, want one with %q", v.Problems, test.problem)
			}
		})
	}
}

func TestVerifyPTX(t *testing.T) {
	e := Entry{Kind: PTX, Arch: Arch{90, "a"}, Major: 8, Minor: 4}
	for text, want := range map[string]string{
		"\n\n// made by hand\n/* and .version 1.0 */\n.version 8.4 // yes\n.target sm_90a, debug\n": "",
		".version 8.4\n.target sm_90\n":  "for sm_90",
		".version 8.3\n.target sm_90a\n": "PTX 8.3",
		".target sm_90a\n.version 8.4\n": "no PTX",
		"/* never ends\n.version 8.4":    "no PTX",
		"":                               "no PTX",
	} {
		err := e.checkPTX([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestCubinsOfABI7 has the flags of CUDA 12: sm_90 and sm_90a.
func TestCubinsOfABI7(t *testing.T) {
	head := fixture(t, "kernel.cubin")[:64]
	head[7], head[8] = abiCUDA7, 7
	for flags, want := range map[uint32]Arch{0x005a055a: {90, ""}, 0x005a0d5a: {90, "a"}} {
		le.PutUint32(head[48:], flags)
		if h, is := decodeCubin(head); !is || h.arch != want {
			t.Errorf("flags %#x: %v, want %v", flags, h.arch, want)
		}
		e := Entry{Kind: ELFImage, Arch: Arch{90, "a"}, Minor: 7, UncompressedSize: 1 << 20}
		if err := e.checkCubin(head); (err == nil) != (want.Variant == "a") {
			t.Errorf("flags %#x as sm_90a: %v", flags, err)
		}
	}
}

func TestUnpack(t *testing.T) {
	f := scan(t, fixture(t, "debug.fatbin"), Options{})
	for i, want := range []string{"kernel.cubin", "kernel.ptx"} {
		var out bytes.Buffer
		if err := f.Unpack(context.Background(), &out, &f.Regions[0].Entries[i]); err != nil {
			t.Fatal(err)
		}
		got, want := strings.TrimSpace(strings.Trim(out.String(), "\x00")), strings.TrimSpace(strings.Trim(string(fixture(t, want)), "\x00"))
		if i == 0 && got != want || i == 1 && !strings.Contains(got, "mul.f32") {
			t.Errorf("entry %d unpacks to %d bytes that are not its source's %d", i, len(got), len(want))
		}
	}
	lto := scan(t, fixture(t, "lto.fatbin"), Options{})
	if err := lto.Unpack(context.Background(), &bytes.Buffer{}, &lto.Regions[0].Entries[0]); err == nil {
		t.Error("scrambled LTO-IR was unpacked")
	}
}

// sample is data that LZ4 makes something of: words, long repeats and noise.
func sample(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	var b []byte
	for len(b) < n {
		switch r.IntN(4) {
		case 0:
			b = append(b, bytes.Repeat([]byte{byte(r.IntN(256))}, r.IntN(3000))...)
		case 1:
			for range r.IntN(500) {
				b = append(b, byte(r.IntN(256)))
			}
		case 2:
			if len(b) > 0 {
				from := r.IntN(len(b))
				b = append(b, b[from:min(len(b), from+r.IntN(70000))]...)
			}
		default:
			b = append(b, "some words of assembly "...)
		}
	}
	return b[:n]
}

func TestLZ4(t *testing.T) {
	u := newLZ4Block()
	for _, n := range []int{1, 12, 13, 100, 65535, 65536, 65537, lz4Room - 1, lz4Room, lz4Room + 1, 3 << 20} {
		want := sample(n)
		packed := make([]byte, lz4.CompressBlockBound(n))
		var c lz4.CompressorHC
		size, err := c.CompressBlock(want, packed)
		if err != nil {
			t.Fatal(err)
		}
		if size == 0 { // it gives up on what does not shrink
			continue
		}
		var got bytes.Buffer
		if err := u.unpack(&got, bytes.NewReader(packed[:size])); err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d bytes unpack to %d others: %v", n, got.Len(), err)
		}
		if err := u.unpack(&got, bytes.NewReader(packed[:size-1])); !errors.Is(err, errLZ4) {
			t.Errorf("%d bytes, cut: error %v", n, err)
		}
	}
}

func TestLZ4Frame(t *testing.T) {
	want := sample(300000)
	var packed, got bytes.Buffer
	w := lz4.NewWriter(&packed)
	if _, err := w.Write(want); err != nil {
		t.Fatal(err)
	}
	w.Close()
	u := newUnpacker()
	defer u.close()
	if err := u.copyLZ4(&got, &packed); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes of %d: %v", got.Len(), len(want), err)
	}
}
