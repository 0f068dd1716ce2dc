package layer

import (
	"archive/zip"
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"sconce.dev/sconce/internal/store"
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
