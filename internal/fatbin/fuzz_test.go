package fatbin

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
)

// FuzzScan makes sure that nothing panics, that what is listed lies in the file, and that sound files unpack.
func FuzzScan(f *testing.F) {
	names, err := filepath.Glob("testdata/*.*")
	if err != nil || len(names) == 0 {
		f.Fatal("no fixtures", err)
	}
	for _, name := range names {
		f.Add(fixture(f, filepath.Base(name)))
	}
	f.Add(append([]byte(archiveMagic), oneMember("kernel.ptx/", fixture(f, "kernel.ptx"))...))
	f.Add(append([]byte(archiveMagic), oneMember("#1/12", append([]byte("bsd.cubin\x00\x00\x00"), fixture(f, "kernel.cubin")...))...))
	f.Add(bundle("hipv4-amdgcn-amd-amdhsa--gfx942", "host-x86_64-unknown-linux--"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Scan(bytes.NewReader(b), int64(len(b)), Options{})
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("error %v of a file without read errors", err)
			}
			return
		}
		checkShape(t, file, int64(len(b)))
		file.Coverage()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // a small payload may unpack to gigabytes
		defer cancel()
		v, err := file.Verify(ctx)
		if err != nil && ctx.Err() == nil {
			t.Fatalf("verify: %v", err)
		}
		if err == nil && len(v.Problems) == 0 && v.Images+v.Opaque != len(list(file)) {
			t.Fatalf("%d of %d images were checked", v.Images+v.Opaque, len(list(file)))
		}
	})
}

// FuzzLZ4 compares the decoder with another: what that packs is unpacked, and what both accept means the same to both. They differ
// in the end conditions: the other takes blocks that end with a match, and not those whose last token names one.
func FuzzLZ4(f *testing.F) {
	for _, n := range []int{1, 100, 5000} {
		data := sample(n)
		f.Add(data)
		f.Add(packLZ4(f, data))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if packed := packLZ4(t, b); len(packed) > 0 {
			if got, err := unpackLZ4(packed, lz4FuzzRoom); err != nil || !bytes.Equal(got, b) {
				t.Fatalf("%x is packed to %x and unpacks to %x (%v)", b, packed, got, err)
			}
		}
		got, err := unpackLZ4(b, lz4FuzzRoom)
		if err != nil {
			return
		}
		want := make([]byte, lz4FuzzRoom)
		n, err := lz4.UncompressBlock(b, want)
		if err == nil && !bytes.Equal(got, want[:n]) {
			t.Fatalf("%x unpacks to %d bytes, by the other to %d", b, len(got), n)
		}
	})
}

const lz4FuzzRoom = 1 << 20 // bytes

func packLZ4(t testing.TB, b []byte) []byte {
	t.Helper()
	packed := make([]byte, lz4.CompressBlockBound(len(b)))
	n, err := lz4.CompressBlock(b, packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	return packed[:n]
}

func unpackLZ4(b []byte, room int64) ([]byte, error) {
	var got bytes.Buffer
	err := newLZ4Block().unpack(&bounded{w: &got, left: room}, bytes.NewReader(b))
	return got.Bytes(), err
}
