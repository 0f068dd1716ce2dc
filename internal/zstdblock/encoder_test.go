package zstdblock

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/tooltest"
)

// input is something to compress.
type input struct {
	name string
	data []byte
}

var sizes = []int{1, 2, 31, 32, 33, 127, 255, 256, 257, 1000, 4095, 65535, 65791, 65792, 131071, 131072, 131073, 131080, 300000, 1<<20 - 1, 1 << 20}

// makers make contents of every size that stress different parts of the format.
var makers = []struct {
	name string
	make func(r *rand.Rand, b []byte)
}{
	{"zeros", func(*rand.Rand, []byte) {}},
	{"random", fillRandom},
	{"period1000", func(r *rand.Rand, b []byte) {
		fillRandom(r, b[:min(1000, len(b))])
		for i := 1000; i < len(b); i++ {
			b[i] = b[i-1000]
		}
	}},
	{"period3", func(_ *rand.Rand, b []byte) {
		for i := range b {
			b[i] = "abc"[i%3]
		}
	}},
	{"randomThenZeros", func(r *rand.Rand, b []byte) { fillRandom(r, b[:len(b)/2]) }},
	{"zerosThenRandom", func(r *rand.Rand, b []byte) { fillRandom(r, b[len(b)/2:]) }},
	{"randomTwice", func(r *rand.Rand, b []byte) {
		fillRandom(r, b[:len(b)/2])
		copy(b[len(b)/2:], b[:len(b)/2])
	}},
	{"twoSymbols", func(r *rand.Rand, b []byte) {
		for i := range b {
			b[i] = byte(r.IntN(2))
		}
	}},
	{"skewed", func(r *rand.Rand, b []byte) {
		for i := range b {
			b[i] = byte(r.ExpFloat64() * 9)
		}
	}},
	{"copies", func(r *rand.Rand, b []byte) { fillCopies(r, b, 60, 30) }},
	{"shortCopies", func(r *rand.Rand, b []byte) { fillCopies(r, b, 6, 2) }},
	{"longCopies", func(r *rand.Rand, b []byte) { fillCopies(r, b, 1<<18, 70000) }},
	{"text", func(r *rand.Rand, b []byte) {
		words := strings.Fields("the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were when")
		for n := 0; n < len(b); {
			n += copy(b[n:], words[r.IntN(len(words))]+" ")
		}
	}},
	{"changing", func(r *rand.Rand, b []byte) { // each block wants other tables
		for n := 0; n < len(b); {
			end := min(len(b), n+1+r.IntN(200000))
			switch r.IntN(4) {
			case 0:
				fillRandom(r, b[n:end])
			case 1:
				fillCopies(r, b[n:end], 20, 10)
			case 2:
				fillCopies(r, b[n:end], 1000, 3)
			}
			n = end
		}
	}},
}

func fillRandom(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// fillCopies alternates copies of earlier parts and new bytes, with lengths up to the given ones.
func fillCopies(r *rand.Rand, b []byte, most, fresh int) {
	for n := 0; n < len(b); {
		for end := min(len(b), n+1+r.IntN(fresh)); n < end; n++ {
			b[n] = byte(r.IntN(100))
		}
		distance := 1 + r.IntN(n)
		for end := min(len(b), n+r.IntN(most)); n < end; n++ {
			b[n] = b[n-distance]
		}
	}
}

func inputs() []input {
	var all []input
	for i, m := range makers {
		for _, n := range sizes {
			b := make([]byte, n)
			m.make(rand.New(rand.NewPCG(uint64(i), uint64(n))), b)
			all = append(all, input{fmt.Sprintf("%s-%d", m.name, n), b})
		}
	}
	return all
}

func newDecoder(t testing.TB) *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestEncode compresses all inputs one after the other, with one encoder, and in the reverse order with another.
func TestEncode(t *testing.T) {
	d, all := newDecoder(t), inputs()
	sums := make(map[string][32]byte)
	e := NewEncoder()
	for _, in := range all {
		out, ok := e.Encode([]byte("before"), in.data)
		if !ok {
			if string(out) != "before" {
				t.Errorf("%s: dst changed without a frame", in.name)
			}
			continue
		}
		frame := out[len("before"):]
		if string(out[:6]) != "before" || len(frame) >= len(in.data) {
			t.Errorf("%s: %d bytes of %d", in.name, len(frame), len(in.data))
		}
		checkFrame(t, d, in, frame)
		sums[in.name] = sha256.Sum256(frame)
	}
	e = NewEncoder()
	for i := len(all) - 1; i >= 0; i-- {
		out, ok := e.Encode(nil, all[i].data)
		want, had := sums[all[i].name]
		if ok != had || ok && sha256.Sum256(out) != want {
			t.Errorf("%s: other bytes after other inputs", all[i].name)
		}
	}
}

func checkFrame(t *testing.T, d *zstd.Decoder, in input, frame []byte) {
	t.Helper()
	var h zstd.Header
	if err := h.Decode(frame); err != nil {
		t.Fatalf("%s: %v", in.name, err)
	}
	if !h.SingleSegment || !h.HasFCS || h.HasCheckSum || h.FrameContentSize != uint64(len(in.data)) {
		t.Errorf("%s: header %+v", in.name, h)
	}
	got, err := d.DecodeAll(frame, nil)
	if err != nil {
		t.Fatalf("%s: %v", in.name, err)
	}
	if !bytes.Equal(got, in.data) {
		t.Fatalf("%s: decoded to something else", in.name)
	}
}

// TestSizes guards what must and must not become smaller.
func TestSizes(t *testing.T) {
	for _, in := range inputs() {
		kind, _, _ := strings.Cut(in.name, "-")
		out, ok := NewEncoder().Encode(nil, in.data)
		most := 0
		switch n := len(in.data); {
		case kind == "random" && ok:
			t.Errorf("%s: %d bytes", in.name, len(out))
		case n < 4000:
		case kind == "zeros":
			most = 9 + 4*8
		case kind == "period3":
			most = 9 + 30*8
		case kind == "period1000":
			most = 1060 + 30*8
		case kind == "twoSymbols":
			most = n * 22 / 100
		case kind == "text":
			most = n * 40 / 100
		case kind == "randomThenZeros", kind == "zerosThenRandom":
			most = n/2 + 1000
		case kind == "randomTwice" && n <= 300000: // the first half of 1 MiB does not fit in the tables
			most = n/2 + 1000
		}
		if most > 0 && (!ok || len(out) > most) {
			t.Errorf("%s: %d bytes, want at most %d", in.name, len(out), most)
		}
	}
}

func TestLimits(t *testing.T) {
	e := NewEncoder()
	for _, n := range []int{0, minInput - 1, MaxSize + 1} {
		if _, ok := e.Encode(nil, make([]byte, n)); ok {
			t.Errorf("a frame of %d bytes", n)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	e, data := NewEncoder(), make([]byte, 128<<10)
	fillCopies(rand.New(rand.NewPCG(1, 2)), data, 6, 2)
	dst := make([]byte, 0, len(data)+Overhead)
	encode := func() { e.Encode(dst, data) }
	encode()
	if n := testing.AllocsPerRun(10, encode); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCommand has the frames of all inputs decoded by the reference implementation.
func TestCommand(t *testing.T) {
	tooltest.Path(t, "zstd")
	var frames, want bytes.Buffer
	e := NewEncoder()
	for _, in := range inputs() {
		out, ok := e.Encode(nil, in.data)
		if ok {
			frames.Write(out)
			want.Write(in.data)
		}
	}
	file := filepath.Join(t.TempDir(), "frames.zst")
	if err := os.WriteFile(file, frames.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := exec.Command("zstd", "-dcq", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("decoded to something else")
	}
}

func FuzzEncode(f *testing.F) {
	for _, in := range inputs() {
		if len(in.data) <= 4095 {
			f.Add(in.data, uint8(0))
		}
	}
	f.Add([]byte("a longer input is made by repeating this with changes"), uint8(200))
	d, used, other := newDecoder(f), NewEncoder(), NewEncoder()
	f.Fuzz(func(t *testing.T, data []byte, repeat uint8) {
		for i := range int(repeat) {
			if part := data[i%(len(data)+1):]; len(data)+len(part) <= MaxSize {
				data = append(data, part...)
			}
		}
		out, ok := used.Encode(nil, data)
		other.Encode(nil, data[len(data)/2:]) // has seen something else than used
		again, same := other.Encode(nil, data)
		if ok != same || !bytes.Equal(out, again) {
			t.Fatal("other bytes after other inputs")
		}
		if ok {
			checkFrame(t, d, input{"fuzz", data}, out)
		}
	})
}

// TestNormalize guards that every table is complete: shares add up, and no symbol that occurs is without one.
func TestNormalize(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		hist := make([]uint32, 2+r.IntN(maxSymbols-1))
		total, used := 0, 0
		for s := range hist {
			if n := r.IntN(1 << r.IntN(12)); n > 0 && r.IntN(3) > 0 || s == len(hist)-1 {
				hist[s] = uint32(max(n, 1))
				total, used = total+int(hist[s]), used+1
			}
		}
		if used < 2 {
			continue
		}
		var table fseTable
		table.normalize(hist, total, tableLog(total, used, 8+r.IntN(2)))
		sum := 0
		for s, n := range table.norm[:table.count] {
			if sum += max(int(n), -int(n)); (n == 0) != (hist[s] == 0) || n < -1 {
				t.Fatalf("share %d of symbol %d that occurs %d times of %d", n, s, hist[s], total)
			}
		}
		if sum != 1<<table.log {
			t.Fatalf("%v: shares add up to %d of %d", hist, sum, 1<<table.log)
		}
	}
	for k := range predefined {
		sum := 0
		for _, n := range predefined[k].norm {
			sum += max(int(n), -int(n))
		}
		if sum != 1<<predefined[k].log {
			t.Errorf("predefined table %d adds up to %d", k, sum)
		}
	}
}

// BenchmarkEncode compares with the general encoder on blocks of this machine's libraries.
func BenchmarkEncode(b *testing.B) {
	blocks, size := systemBlocks(b)
	dst := make([]byte, 0, 128<<10+Overhead)
	e := NewEncoder()
	general, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		b.Fatal(err)
	}
	run := func(name string, encode func(src []byte) int) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			packed := 0
			for b.Loop() {
				packed = 0
				for _, src := range blocks {
					packed += min(encode(src), len(src))
				}
			}
			b.ReportMetric(100*float64(packed)/float64(size), "%size")
		})
	}
	run("zstdblock", func(src []byte) int {
		if out, ok := e.Encode(dst, src); ok {
			return len(out)
		}
		return len(src)
	})
	run("klauspost", func(src []byte) int { return len(general.EncodeAll(src, dst)) })
}

// systemBlocks reads up to 32 MiB of blocks of files in /usr/lib.
func systemBlocks(b *testing.B) (blocks [][]byte, size int64) {
	files, _ := filepath.Glob("/usr/lib/*/*.so*")
	for _, f := range files {
		data, err := os.ReadFile(f)
		for ; err == nil && len(data) >= 128<<10 && size < 32<<20; data = data[128<<10:] {
			blocks = append(blocks, data[:128<<10])
			size += 128 << 10
		}
	}
	if size == 0 {
		b.Skip("no libraries in /usr/lib")
	}
	return blocks, size
}
