package inflate

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/flate"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kflate "github.com/klauspost/compress/flate"
)

// benchWheels is where the benchmarks of the whole program put the wheels they build images of; see bench/README.md.
const benchWheels = "../../bench/out/wheels-default"

// sample is the packed data of members of wheels.
type sample struct {
	name     string
	members  []packed
	unpacked int64
}

type packed struct {
	data []byte
	size int
}

// corpora lists what is measured: a glob of wheels, the suffix of members, and the number of bytes that suffices.
var corpora = []struct {
	name, wheel, suffix string
	most                int64
}{
	{"numpy-so", "numpy-*", ".so", 64 << 20},
	{"scipy-so", "scipy-*", ".so", 64 << 20},
	{"pyarrow-so", "pyarrow-*", ".so.2600", 64 << 20},
	{"py", "[nsp]*", ".py", 32 << 20},
	{"small", "[nsp]*", "__init__.py", 8 << 20},
}

func readSamples(b *testing.B) []sample {
	var all []sample
	for _, c := range corpora {
		files, _ := filepath.Glob(filepath.Join(benchWheels, c.wheel+".whl"))
		s := sample{name: c.name}
		for _, f := range files {
			s.read(b, f, c.suffix, c.most)
		}
		if len(s.members) > 0 {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		b.Skip("there are no wheels in " + benchWheels)
	}
	return all
}

func (s *sample) read(b *testing.B, file, suffix string, most int64) {
	z, err := zip.OpenReader(file)
	if err != nil {
		b.Fatal(err)
	}
	defer z.Close()
	slices.SortFunc(z.File, func(a, b *zip.File) int { return int(b.UncompressedSize64) - int(a.UncompressedSize64) })
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, suffix) || f.Method != zip.Deflate || s.unpacked >= most {
			continue
		}
		r, err := f.OpenRaw()
		if err != nil {
			b.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			b.Fatal(err)
		}
		s.members = append(s.members, packed{data, int(f.UncompressedSize64)})
		s.unpacked += int64(f.UncompressedSize64)
	}
}

// BenchmarkInflate compares with others, on the members that building layers reads.
func BenchmarkInflate(b *testing.B) {
	buf := make([]byte, 64<<10)
	read := func(b *testing.B, r io.Reader, size int) {
		total := 0
		for {
			n, err := r.Read(buf)
			total += n
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		if total != size {
			b.Fatalf("%d bytes came out, not %d", total, size)
		}
	}
	in := bufio.NewReaderSize(nil, 64<<10)
	std, kp := flate.NewReader(in), kflate.NewReader(in)
	dst := make([]byte, 0)
	for _, s := range readSamples(b) {
		for _, how := range []struct {
			name string
			run  func(p packed)
		}{
			{"std", func(p packed) {
				in.Reset(bytes.NewReader(p.data))
				_ = std.(flate.Resetter).Reset(in, nil)
				read(b, std, p.size)
			}},
			{"klauspost", func(p packed) {
				in.Reset(bytes.NewReader(p.data))
				_ = kp.(kflate.Resetter).Reset(in, nil)
				read(b, kp, p.size)
			}},
			{"Reader", func(p packed) {
				r := NewReader(bytes.NewReader(p.data), Options{ReadAhead: true})
				read(b, r, p.size)
				r.Close()
			}},
			{"Decode", func(p packed) {
				if cap(dst) < p.size {
					dst = make([]byte, p.size)
				}
				if n, _, err := Decode(dst[:p.size], p.data); n != p.size || err != nil {
					b.Fatal(n, err)
				}
			}},
		} {
			b.Run(s.name+"/"+how.name, func(b *testing.B) {
				b.SetBytes(s.unpacked)
				for b.Loop() {
					for _, p := range s.members {
						how.run(p)
					}
				}
			})
		}
	}
}

// BenchmarkTinyBlocks has what costs most for its length: the tables of blocks without content.
func BenchmarkTinyBlocks(b *testing.B) {
	const blocks = 10_000
	w := &bitWriter{}
	for i := range blocks {
		w.number(i/(blocks-1), 1)
		w.number(2, 2)
		w.number(0, 5)  // 257 literals and lengths
		w.number(0, 5)  // 1 distance
		w.number(14, 4) // 18 code lengths, of which 1 and 18 have codes of a bit
		for _, s := range codeLengthOrder[:18] {
			w.number(map[uint8]int{1: 1, 18: 1}[s], 3)
		}
		w.number(1, 1) // 138 unused
		w.number(127, 7)
		w.number(1, 1) // 118 unused
		w.number(107, 7)
		w.number(0, 2) // the end of the block and a distance, of one bit each
		w.number(0, 1) // the end
	}
	if n, consumed, err := Decode(nil, w.out); n != 0 || consumed != len(w.out) || err != nil {
		b.Fatal(n, consumed, err)
	}
	b.Run("std", func(b *testing.B) {
		b.SetBytes(int64(len(w.out)))
		for b.Loop() {
			_, _ = io.Copy(io.Discard, flate.NewReader(bytes.NewReader(w.out)))
		}
	})
	b.Run("klauspost", func(b *testing.B) {
		b.SetBytes(int64(len(w.out)))
		for b.Loop() {
			_, _ = io.Copy(io.Discard, kflate.NewReader(bytes.NewReader(w.out)))
		}
	})
	b.Run("Decode", func(b *testing.B) {
		b.SetBytes(int64(len(w.out)))
		for b.Loop() {
			_, _, _ = Decode(nil, w.out)
		}
	})
}
