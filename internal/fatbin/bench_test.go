package fatbin

import (
	"bytes"
	"testing"
)

// BenchmarkScan lists a section of a thousand regions, as a large library has it.
func BenchmarkScan(b *testing.B) {
	file := bytes.Repeat(fixture(b, "zstd.fatbin"), 1000)
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if f := scan(b, file, Options{}); len(f.Regions) != 1000 {
			b.Fatal(len(f.Regions))
		}
	}
}

func BenchmarkLZ4(b *testing.B) {
	data := sample(4 << 20)
	packed := packLZ4(b, data)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := unpackLZ4(packed, int64(len(data))); err != nil {
			b.Fatal(err)
		}
	}
}
