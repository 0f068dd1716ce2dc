package layer

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// BenchmarkWriter writes a layer of the wheels in $SCONCE_BENCH_WHEELS, or of made-up files without it. MB/s counts
// uncompressed bytes; ratio is the blob's size over theirs.
func BenchmarkWriter(b *testing.B) {
	files := benchFiles(b)
	names := make([]string, 0, len(files))
	var total int64
	for n, data := range files {
		names = append(names, n)
		total += int64(len(data))
	}
	slices.SortFunc(names, func(x, y string) int {
		if Less(x, y) {
			return -1
		}
		return 1
	})
	for _, c := range []Compression{Zstd, Gzip, None} {
		for _, workers := range []int{1, 2, 8} {
			b.Run(string(c)+"/workers="+strconv.Itoa(workers), func(b *testing.B) {
				st, err := store.Open(b.Context(), b.TempDir())
				if err != nil {
					b.Fatal(err)
				}
				defer st.Close()
				b.SetBytes(total)
				b.ReportAllocs()
				var d Descriptor
				for b.Loop() {
					d = writeFiles(b, st, names, files, Options{Compression: c, Workers: workers})
				}
				b.ReportMetric(float64(d.Size)/float64(d.RawSize), "ratio")
			})
		}
	}
}

func writeFiles(tb testing.TB, st *store.Store, names []string, files map[string][]byte, o Options) Descriptor {
	tb.Helper()
	w, err := NewWriter(context.Background(), st, o)
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Abort()
	for _, n := range names {
		data := files[n]
		err := w.Add(Entry{Path: n, Mode: 0o644, Size: int64(len(data))}, func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	d, err := w.Close()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// benchFiles returns the contents of some wheels.
func benchFiles(tb testing.TB) map[string][]byte {
	tb.Helper()
	files := map[string][]byte{}
	wheels, _ := filepath.Glob(filepath.Join(os.Getenv("SCONCE_BENCH_WHEELS"), "*.whl"))
	for _, w := range wheels {
		z, err := zip.OpenReader(w)
		if err != nil {
			tb.Fatal(err)
		}
		defer z.Close()
		for _, f := range z.File {
			if f.FileInfo().IsDir() {
				continue
			}
			r, err := f.Open()
			if err != nil {
				tb.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				tb.Fatal(err)
			}
			files[filepath.Base(w)+"/"+f.Name] = data
		}
	}
	if len(files) > 0 {
		return files
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		data := make([]byte, rnd.IntN(40_000))
		for j := range data {
			data[j] = byte(rnd.IntN(1 + i%200))
		}
		files["pkg"+strconv.Itoa(i%20)+"/f"+strconv.Itoa(i)+".py"] = data
	}
	return files
}

// BenchmarkFindChunks reads a layer as one that was pulled: of programs and libraries of this machine, 4 MiB to a chunk, or each a member of its
// own as the files of wheels are. MB/s counts uncompressed bytes. Try it with -cpu 1,8,16.
func BenchmarkFindChunks(b *testing.B) {
	for name, packed := range map[string]func([]byte) Deflated{"chunks": nil, "files": func(data []byte) Deflated { return pointed(b, deflateBytes(b, data, 6)) }} {
		st := storetest.Alone(b)
		d := layerOfThisMachine(b, st, packed)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(d.RawSize)
			before := cpuSeconds(b)
			for b.Loop() {
				if ix, err := FindChunks(b.Context(), st, d); ix == nil || err != nil {
					b.Fatal("no index", err)
				}
			}
			b.ReportMetric((cpuSeconds(b)-before)/float64(b.N), "cpu-s/op")
		})
	}
}

// BenchmarkDecompress reads streams of other programs: gzip and zstd, the latter as one frame, and as many, which zstd:chunked and pzstd make.
func BenchmarkDecompress(b *testing.B) {
	st := storetest.Alone(b)
	raw := rawTar(b, st, layerOfThisMachine(b, st, nil))
	frames := func(size int) []byte {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			b.Fatal(err)
		}
		var packed []byte
		for part := range slices.Chunk(raw, size) {
			packed = w.EncodeAll(part, packed)
		}
		return packed
	}
	for name, packed := range map[string]func() []byte{
		"gzip": func() []byte { return gzipStream(b, raw, "") }, "zstd": func() []byte { return frames(len(raw)) },
		"zstd of 4 MiB": func() []byte { return frames(4 << 20) }, "zstd of 64 KiB": func() []byte { return frames(64 << 10) },
	} {
		b.Run(name, func(b *testing.B) {
			src := packed()
			b.SetBytes(int64(len(raw)))
			before := cpuSeconds(b)
			b.ResetTimer()
			for b.Loop() {
				z, err := Decompress(io.NopCloser(bytes.NewReader(src)))
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, z); n != int64(len(raw)) || err != nil {
					b.Fatal(n, err)
				}
				z.Close()
			}
			b.ReportMetric((cpuSeconds(b)-before)/float64(b.N), "cpu-s/op")
		})
	}
}

// cpuSeconds is what this process has used.
func cpuSeconds(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// layerOfThisMachine makes a layer of 200 MB or more, if there is so much. packed, unless nil, compresses a file.
func layerOfThisMachine(b *testing.B, st *store.Store, packed func([]byte) Deflated) Descriptor {
	w, err := NewWriter(b.Context(), st, Options{Compression: Gzip})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Abort()
	total, count := 0, 0
	for _, pattern := range []string{"/usr/bin/*", "/usr/lib/x86_64-linux-gnu/*.so*", "/usr/lib/python3*/*.py", "/usr/local/go/bin/*"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			info, err := os.Lstat(name)
			if err != nil || !info.Mode().IsRegular() || info.Size() > 200<<20 || total > 200<<20 {
				continue
			}
			data, err := os.ReadFile(name)
			if err != nil {
				continue
			}
			total, count = total+len(data), count+1
			var p Deflated
			if packed != nil {
				p = packed(data)
			}
			e := Entry{Path: fmt.Sprintf("%05d", count), Mode: 0o644, Size: int64(len(data))}
			if err := w.AddDeflated(e, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, p); err != nil {
				b.Fatal(err)
			}
		}
	}
	d, err := w.Close()
	if err != nil || d.RawSize < 64<<20 {
		b.Skip("there is too little to read on this machine", err)
	}
	return d
}
