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

// FuzzLZ4 compares the decoder with another.
func FuzzLZ4(f *testing.F) {
	for _, n := range []int{0, 100, 5000} {
		packed := make([]byte, lz4.CompressBlockBound(n))
		size, err := lz4.CompressBlock(sample(n), packed, nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed[:size])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const room = 1 << 20
		var got bytes.Buffer
		out := &bounded{w: &got, left: room}
		err := newLZ4Block().unpack(out, bytes.NewReader(b))
		want := make([]byte, room)
		n, wantErr := lz4.UncompressBlock(b, want)
		if len(b) > 0 && wantErr == nil && (err != nil || !bytes.Equal(got.Bytes(), want[:n])) {
			t.Fatalf("%x unpacks to %d bytes (%v), want %d", b, got.Len(), err, n)
		}
	})
}
