package squashfs

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
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

// perProcessor reports how much is done per second of one processor, which other work on the machine hardly changes.
func perProcessor(b *testing.B, total int64) func() {
	b.Helper()
	b.SetBytes(total)
	used := func() float64 {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	}
	before := used()
	return func() { b.ReportMetric(float64(total)/1e6*float64(b.N)/(used()-before), "MB/cpu-s") }
}

// BenchmarkWriter writes files that are in memory.
func BenchmarkWriter(b *testing.B) {
	files, total := benchFiles(b)
	var packs []*Pack
	for _, name := range []string{"fresh", "copied"} {
		b.Run(name, func(b *testing.B) {
			report := perProcessor(b, total)
			for b.Loop() {
				w := newBuild(b, 0, DefaultOptions())
				if name == "copied" {
					w.start(packs...)
				} else {
					w.start()
				}
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
			report()
		})
	}
}

// at is a part of a file.
type at struct {
	f    *os.File
	base int64
}

func (a *at) ReadAt(p []byte, off int64) (int, error) { return a.f.ReadAt(p, a.base+off) }

// BenchmarkEncoder compresses the same blocks and does nothing else: the writer cannot be faster.
func BenchmarkEncoder(b *testing.B) {
	files, total := benchFiles(b)
	o := DefaultOptions().complete()
	all := benchBlocks(files, o.BlockSize)
	report := perProcessor(b, total)
	for b.Loop() {
		blocks := make(chan []byte, 16)
		var done sync.WaitGroup
		for range o.Workers {
			e, err := o.encoder()
			if err != nil {
				b.Fatal(err)
			}
			done.Go(func() {
				out := make([]byte, 0, 2*o.BlockSize)
				for p := range blocks {
					_, _, _ = e.appendBlock(out, p)
				}
			})
		}
		for _, p := range all {
			blocks <- p
		}
		close(blocks)
		done.Wait()
	}
	report()
}

// benchBlocks cuts files into about those blocks that a writer compresses: without zeros and small files that come again.
func benchBlocks(files [][]byte, size int) (blocks [][]byte) {
	var group []byte
	seen := map[digest]bool{}
	for _, p := range files {
		large := len(p) >= size
		for ; len(p) >= size || large && len(p) > 0; p = p[min(len(p), size):] {
			if block := p[:min(len(p), size)]; !allZero(block) {
				blocks = append(blocks, block)
			}
		}
		sum := sha256.Sum256(p)
		if len(p) == 0 || seen[sum] {
			continue
		}
		seen[sum] = true
		if len(group)+len(p) > size {
			blocks, group = append(blocks, group), nil
		}
		group = append(group, p...)
	}
	return append(blocks, group)
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
