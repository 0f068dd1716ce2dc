package inflate

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	kflate "github.com/klauspost/compress/flate"
)

// words is text that compresses, with matches of all distances, and blocks that do not.
func words(n int) []byte {
	r := rand.NewChaCha8([32]byte{7})
	random := make([]byte, 256<<10)
	_, _ = r.Read(random)
	var b bytes.Buffer
	for b.Len() < n {
		at := int(r.Uint64() % uint64(len(random)-1000))
		b.Write(random[at : at+int(r.Uint64()%900)+3])
		b.WriteString("some words that come again and again ")
	}
	return b.Bytes()[:n]
}

// Each part of a stream is decoded on its own.
func TestPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("large streams, one goroutine")
	}
	data := words(3 << 20)
	for _, level := range []int{kflate.NoCompression, kflate.HuffmanOnly, 1, 5, 9} {
		var packed bytes.Buffer
		w, err := kflate.NewWriter(&packed, level)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(data)
		w.Close()
		const spacing = 100 << 10
		z := NewReader(bytes.NewReader(packed.Bytes()), Options{ReadAhead: true, Points: spacing})
		if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("level %d: %d bytes, %v", level, len(got), err)
		}
		points := z.Points()
		z.Close()
		if len(points) < 5 || points[len(points)-1].Out != int64(len(data)) {
			t.Fatalf("level %d: %d points", level, len(points))
		}
		var last Point
		for i, p := range points {
			if p.Out-last.Out < spacing && i < len(points)-1 {
				t.Errorf("level %d: point %d is %d bytes behind the one before", level, i, p.Out-last.Out)
			}
			src, size := packed.Bytes()[last.Bit/8:(p.Bit+7)/8], int(p.Out-last.Out)
			got, err := DecodePart(last.Window, src, int(last.Bit%8), size, p.CRC)
			if err != nil || !bytes.Equal(got, data[last.Out:p.Out]) {
				t.Fatalf("level %d, part %d: %d of %d bytes, %v", level, i, len(got), size, err)
			}
			if size > 0 { // the last block may be empty
				judgeDamage(t, last, p, src, data[last.Out:p.Out])
			}
			last = p
		}
	}
}

// judgeDamage makes sure that a part is not believed that is not what it was.
func judgeDamage(t *testing.T, from, to Point, src, want []byte) {
	t.Helper()
	bit := int(from.Bit % 8)
	if _, err := DecodePart(from.Window, src, bit, len(want), to.CRC^1); !errors.Is(err, ErrChecksum) {
		t.Errorf("another checksum: %v", err)
	}
	if _, err := DecodePart(from.Window, src, bit, len(want)-1, to.CRC); err == nil {
		t.Error("no error for a part that is longer than it should be")
	}
	if _, err := DecodePart(from.Window, src[:len(src)/2], bit, len(want), to.CRC); err == nil {
		t.Error("no error for a part that was cut")
	}
	bad := bytes.Clone(src)
	for _, at := range []int{0, len(bad) / 3, len(bad) / 2, len(bad) - 1} {
		bad[at] ^= 0x10 // which may be padding
		if got, err := DecodePart(from.Window, bad, bit, len(want), to.CRC); err == nil && !bytes.Equal(got, want) {
			t.Error("wrong bytes of a part with a bit that fell over")
		}
		bad[at] ^= 0x10
	}
}
