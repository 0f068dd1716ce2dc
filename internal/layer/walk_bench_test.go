package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/inflate"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// benchTar is the tar of 300 MB of files from 1 KB to 8 MB: text, code and what does not compress.
func benchTar(b *testing.B) []byte {
	b.Helper()
	r := rand.New(rand.NewPCG(3, 3))
	words := make([]string, 5000)
	for i := range words {
		words[i] = fmt.Sprintf("%c%x", 'a'+i%26, r.IntN(1<<(4*(1+i%5))))
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; out.Len() < 300_000_000; i++ {
		data := benchFile(r, i%3, 1<<(10+r.IntN(14))+r.IntN(1000), words)
		err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("usr/lib/d%d/f%d", i%50, i), Mode: 0o644, Size: int64(len(data))})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}

func benchFile(r *rand.Rand, kind, size int, words []string) []byte {
	data := make([]byte, 0, size+64)
	for len(data) < size {
		switch kind {
		case 0: // text: frequent words
			n := min(r.IntN(len(words)), r.IntN(len(words)), r.IntN(len(words)))
			data = append(append(data, words[n]...), ' ')
		case 1: // code: short patterns with other numbers in them
			data = append(data, 0x48, 0x8b, byte(r.IntN(8)), byte(r.IntN(256)), 0x0f, byte(r.IntN(4)), 0, 0)
		default:
			data = append(data, byte(r.IntN(256)))
		}
	}
	return data[:size]
}

// BenchmarkWalk reads all contents of a layer of 300 MB in the order of its tar. What it can be at best is how fast its bytes
// are inflated.
func BenchmarkWalk(b *testing.B) {
	raw := benchTar(b)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(raw)
	if err := errors.Join(err, z.Close()); err != nil {
		b.Fatal(err)
	}
	run := func(name string, step func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			before := processTime(b)
			for b.Loop() {
				if err := step(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((processTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
	run("inflate", func() error {
		r, err := inflate.NewGzipReader(bytes.NewReader(packed.Bytes()))
		if err == nil {
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, aheadSize))
		}
		return err
	})
	st := storetest.Alone(b)
	foreign := benchBlob(b, st, packed.Bytes())
	fresh := func() { _ = st.DeleteRecord(store.KindLayerIndex, foreign.Digest.Hex()) }
	run("foreign", func() error { fresh(); return readAll(b, Stored(st, foreign)) })
	run("foreign, nothing opened", func() error { fresh(); return Stored(st, foreign).Walk(b.Context(), ignore) })
	run("foreign, known", func() error { return readAll(b, Stored(st, foreign)) })
	for _, c := range []Compression{Zstd, Gzip, None} {
		d, err := FromTar(b.Context(), st, bytes.NewReader(raw), Options{Compression: c})
		if err != nil {
			b.Fatal(err)
		}
		run("ours, "+string(c), func() error { return readAll(b, Stored(st, d)) })
	}
	for name, data := range map[string][]byte{"plain": raw, "gzip": packed.Bytes()} {
		p := filepath.Join(b.TempDir(), "tar")
		if err := os.WriteFile(p, data, 0o600); err != nil {
			b.Fatal(err)
		}
		f, err := os.Open(p)
		if err != nil {
			b.Fatal(err)
		}
		run("file, "+name, func() error { return readAll(b, TarFile(st, f)) })
		f.Close()
	}
}

// processTime is how long all threads have run, which unlike MB/s does not depend on what else the machine does.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchBlob(b *testing.B, st *store.Store, data []byte) Descriptor {
	b.Helper()
	digest, err := st.PutBlob(data)
	if err != nil {
		b.Fatal(err)
	}
	return Descriptor{Digest: digest, Size: int64(len(data))}
}

// readAll reads every content as who compresses it would: into a buffer.
func readAll(b *testing.B, s Source) error {
	b.Helper()
	buf := make([]byte, 128<<10)
	return s.Walk(b.Context(), func(e IndexEntry, open func() (io.ReadCloser, error)) error {
		if e.Type != Regular {
			return nil
		}
		r, err := open()
		if err != nil {
			return err
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf)
		if err == nil && n != e.Size {
			err = io.ErrUnexpectedEOF
		}
		return errors.Join(err, r.Close())
	})
}
