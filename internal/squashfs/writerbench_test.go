package squashfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// benchBytes is how much the benchmarks write, in bytes.
const benchBytes = 512 << 20

// benchFiles returns files to write: those below SCONCE_BENCH_DIR, or made-up ones.
func benchFiles(b *testing.B) (files [][]byte, total int64) {
	b.Helper()
	add := func(p []byte) bool {
		files = append(files, p)
		total += int64(len(p))
		return total < benchBytes
	}
	root := os.Getenv("SCONCE_BENCH_DIR")
	if root == "" {
		for i := uint64(0); add(textOf(int(i*i*7919%300_000), i)) && total < benchBytes/8; i++ {
			continue
		}
		return files, total
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		p, err := os.ReadFile(path)
		if err == nil && !add(p) {
			err = fs.SkipAll
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return files, total
}

// BenchmarkWriter writes files that are in memory.
func BenchmarkWriter(b *testing.B) {
	files, total := benchFiles(b)
	var packs []*Pack
	for _, name := range []string{"fresh", "copied"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(total)
			for b.Loop() {
				w := newBuild(b, 0, DefaultOptions())
				w.start(packs...)
				var entries []DirEntry
				for i, p := range files {
					entries = append(entries, DirEntry{fmt.Sprint(i), fileOf(w.add(p))})
				}
				s := w.end()
				n, err := w.w.Finish(dirOf(entries...))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(n)/float64(total), "ratio")
				if len(packs) == 0 {
					b.StopTimer()
					index := s.Pack.Encode()
					f, err := os.Open(w.file.Name())
					if err != nil {
						b.Fatal(err)
					}
					p, err := unpackIndex(index, &at{f, s.Start}, s.End-s.Start)
					if err != nil {
						b.Fatal(err)
					}
					p.from, p.base = f, s.Start
					packs = []*Pack{p}
					b.StartTimer()
				}
			}
		})
	}
}

// at is a part of a file.
type at struct {
	f    *os.File
	base int64
}

func (a *at) ReadAt(p []byte, off int64) (int, error) { return a.f.ReadAt(p, a.base+off) }

// BenchmarkEncoder compresses the same files and does nothing else: the writer cannot be faster.
func BenchmarkEncoder(b *testing.B) {
	files, total := benchFiles(b)
	o := DefaultOptions().complete()
	b.SetBytes(total)
	for b.Loop() {
		blocks := make(chan []byte, 16)
		var done sync.WaitGroup
		for range o.Workers {
			e, err := o.encoder()
			if err != nil {
				b.Fatal(err)
			}
			done.Go(func() {
				var out []byte
				for p := range blocks {
					out, _, _ = e.appendBlock(out[:0], p)
				}
			})
		}
		group := make([]byte, 0, o.BlockSize)
		for _, p := range files {
			for len(p) >= o.BlockSize {
				blocks <- p[:o.BlockSize]
				p = p[o.BlockSize:]
			}
			if len(group)+len(p) > o.BlockSize {
				blocks <- group
				group = make([]byte, 0, o.BlockSize)
			}
			group = append(group, p...)
		}
		blocks <- group
		close(blocks)
		done.Wait()
	}
}

// BenchmarkCompressors compresses blocks on one processor.
func BenchmarkCompressors(b *testing.B) {
	files, _ := benchFiles(b)
	for _, o := range []Options{
		{Compression: Zstd, Level: 1},
		{Compression: Zstd},
		{Compression: Zstd, Level: 7},
		{Compression: Zstd, Level: 15},
		{Compression: Gzip, Level: 1},
		{Compression: Gzip, Level: 6},
		{Compression: Gzip, Level: 9},
		{Compression: LZ4},
		{Compression: LZ4, Level: 1},
		{Compression: LZ4, Level: 9},
	} {
		b.Run(fmt.Sprintf("%s-%d", o.Compression, o.Level), func(b *testing.B) {
			o := o.complete()
			e, err := o.encoder()
			if err != nil {
				b.Fatal(err)
			}
			var out []byte
			var in, packed int64
			for b.Loop() {
				in, packed = 0, 0
				for i := 0; i < len(files) && in < 32<<20; i++ {
					for p := files[i]; len(p) > 0; p = p[min(len(p), o.BlockSize):] {
						block := p[:min(len(p), o.BlockSize)]
						out, _, _ = e.appendBlock(out[:0], block)
						in += int64(len(block))
						packed += int64(min(len(out), len(block)))
					}
				}
			}
			b.SetBytes(in)
			b.ReportMetric(float64(packed)/float64(in), "ratio")
		})
	}
}
