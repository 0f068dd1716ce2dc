package xz

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"

	"sconce.dev/sconce/internal/tooltest"
)

const granted = 64 << 20

func decompress(data []byte) ([]byte, error) {
	r, err := NewReader(bytes.NewReader(data), granted)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// mixed is n bytes of all that a compressor tells apart: words that come again near and far, runs, numbers that grow, and noise.
func mixed(n int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		switch random.IntN(6) {
		case 0:
			fmt.Fprintf(&b, "entry %d of the list, ", i)
		case 1:
			b.Write(bytes.Repeat([]byte{byte(i)}, random.IntN(700)))
		case 2:
			for range random.IntN(300) {
				b.WriteByte(byte(random.Uint32()))
			}
		case 3:
			for k := range uint32(40) {
				b.Write([]byte{byte(k), byte(uint32(i) + k>>8), 0, 0x48, 0x8b})
			}
		default:
			if from := random.IntN(b.Len() + 1); from < b.Len() {
				b.Write(bytes.Clone(b.Bytes()[from:min(b.Len(), from+random.IntN(400))]))
			}
		}
	}
	return b.Bytes()[:n]
}

// compress lets xz itself, the judge, write a stream.
func compress(t *testing.T, data []byte, arguments ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tooltest.Path(t, "xz"), append([]string{"--stdout", "--quiet"}, arguments...)...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What xz writes, with every choice that it has, is read back: larger than a dictionary and than the buffer, of several blocks, with each
// check, with all ways of modelling literals and positions.
func TestWhatXZWrites(t *testing.T) {
	data := mixed(1 << 20)
	for _, arguments := range [][]string{
		{"-0"},
		{"-6"},
		{"--check=none"},
		{"--check=crc32"},
		{"--check=sha256"},
		{"--block-size=100000"},
		{"--block-list=5,1000,300000,0"},
		{"--threads=2", "--block-size=300000"}, // whose blocks say their sizes
		{"--lzma2=dict=4096"},
		{"--lzma2=dict=65536,lc=0,lp=4,pb=4"},
		{"--lzma2=dict=300000,lc=4,lp=0,pb=0,nice=273"},
		{"--lzma2=dict=200000,lc=2,lp=2,pb=1,mode=fast,mf=hc3"},
	} {
		t.Run(strings.Join(arguments, " "), func(t *testing.T) {
			got, err := decompress(compress(t, data, arguments...))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v; want the %d that were compressed", len(got), err, len(data))
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for _, n := range []int{0, 1, 2, 100, 1<<16 - 1, 1 << 16, 1<<16 + 1, 1<<21 + 5} {
		data := mixed(n)
		packed := compress(t, data, "-1")
		r, err := NewReader(iotest.OneByteReader(bytes.NewReader(packed)), granted)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(iotest.OneByteReader(r))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: %d, %v", n, len(got), err)
		}
		if n > 0 {
			zeros, err := decompress(compress(t, make([]byte, n)))
			if err != nil || !bytes.Equal(zeros, make([]byte, n)) {
				t.Errorf("%d zeros: %d, %v", n, len(zeros), err)
			}
		}
	}
}

// Streams may follow one another, with zeros between them and behind them, four at a time.
func TestStreams(t *testing.T) {
	one, other := compress(t, []byte("one ")), compress(t, []byte("other"), "--check=crc32")
	padding := make([]byte, 8)
	got, err := decompress(bytes.Join([][]byte{one, padding, other, one, padding}, nil))
	if want := "one otherone "; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for name, data := range map[string][]byte{
		"three zeros":      bytes.Join([][]byte{one, padding[:3]}, nil),
		"something behind": bytes.Join([][]byte{one, []byte("something else")}, nil),
	} {
		if got, err := decompress(data); err == nil {
			t.Errorf("%s: read as %q", name, got)
		}
	}
}

// Whatever byte is changed, and wherever a file is cut off, that is an error: everything but the padding that nobody writes is covered by a
// checksum, or by what must be zero.
func TestDamage(t *testing.T) {
	data := mixed(3000)
	packed := compress(t, data, "--block-size=1500")
	for i := range packed {
		bad := bytes.Clone(packed)
		bad[i] ^= 1 << (i % 8)
		if got, err := decompress(bad); err == nil {
			t.Errorf("byte %d of %d changed: read as %d bytes", i, len(packed), len(got))
		}
		got, err := decompress(packed[:i])
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut off at byte %d of %d: %v", i, len(packed), err)
		}
		if !bytes.HasPrefix(data, got) {
			t.Errorf("cut off at byte %d: other bytes than were compressed", i)
		}
	}
}

func TestUnsupported(t *testing.T) {
	var filter *FilterError
	_, err := decompress(compress(t, mixed(1000), "--x86", "--lzma2=preset=1"))
	if !errors.As(err, &filter) || !errors.Is(err, errors.ErrUnsupported) || err.Error() != "the filter x86 is unsupported operation" {
		t.Error(err)
	}
	_, err = NewReader(strings.NewReader("something else, long enough"), granted)
	if err == nil {
		t.Error("text is read as xz")
	}
}

// A dictionary is granted up to the limit, and takes no memory before there is something to keep in it.
func TestMemory(t *testing.T) {
	packed := compress(t, mixed(100_000), "--lzma2=dict=48MiB")
	r, err := NewReader(bytes.NewReader(packed), 48<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Error(err)
	}
	x, ok := r.(*reader)
	if !ok {
		t.Fatalf("%T", r)
	}
	if size := cap(x.block.buf); size > 1<<20 {
		t.Errorf("a buffer of %d bytes for 100000", size)
	}
	r, err = NewReader(bytes.NewReader(packed), 48<<20-1)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err == nil || !strings.Contains(err.Error(), "a dictionary of 50331648 bytes") {
		t.Error(err)
	}
}

// FuzzAsAnother: another reader of LZMA2 says the same of any chunks. It takes what we take; and of a chunk that we refuse, which random bytes
// decode to much of, it has decoded the same up to where we stopped. It is not as strict: chunks may be cut off. Checksums of files would let
// hardly anything through.
func FuzzAsAnother(f *testing.F) {
	for _, n := range []int{1, 50, 3000} {
		for _, properties := range []lzma.Properties{{LC: 3, LP: 0, PB: 2}, {LC: 0, LP: 4, PB: 0}, {LC: 1, LP: 2, PB: 4}} {
			var packed bytes.Buffer
			w, err := lzma.Writer2Config{Properties: &properties, DictCap: lzma.MinDictCap}.NewWriter2(&packed)
			if err != nil {
				f.Fatal(err)
			}
			_, err = w.Write(mixed(n))
			if err := errors.Join(err, w.Close()); err != nil {
				f.Fatal(err)
			}
			f.Add(packed.Bytes())
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours lzma2
		ours.reset(bytes.NewReader(data), lzma.MinDictCap)
		got, err := io.ReadAll(&ours)
		r, other := lzma.Reader2Config{DictCap: lzma.MinDictCap}.NewReader2(bytes.NewReader(data))
		if other != nil {
			t.Fatal(other)
		}
		want, other := io.ReadAll(r)
		if err == nil && (other != nil || !bytes.Equal(got, want)) {
			t.Errorf("%d bytes, and the other reads %d, %v", len(got), len(want), other)
		}
		if !bytes.HasPrefix(want, got) {
			t.Errorf("%d bytes, and not what the other begins with", len(got))
			return
		}
		want = want[len(got):]
		refused := ours.buf[len(ours.buf):cap(ours.buf)]
		for i, b := range refused[:min(len(refused), len(want))] {
			if b != want[i] {
				if left := bytes.Trim(refused[i:], "\x00"); len(left) > 0 {
					t.Errorf("byte %d of the chunk that was refused is %#x, and the other has %#x", i, b, want[i])
				}
				break
			}
		}
	})
}

// FuzzFile: any file is read or refused, and one that is read is what another reader makes of it.
func FuzzFile(f *testing.F) {
	for _, n := range []int{0, 50, 5000} {
		var packed bytes.Buffer
		w, err := xz.WriterConfig{DictCap: lzma.MinDictCap, BlockSize: 3000}.NewWriter(&packed)
		if err != nil {
			f.Fatal(err)
		}
		_, err = w.Write(mixed(n))
		if err := errors.Join(err, w.Close()); err != nil {
			f.Fatal(err)
		}
		f.Add(packed.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decompress(data)
		if err != nil {
			return
		}
		r, err := xz.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, and the other reads %d, %v", len(got), len(want), err)
		}
	})
}
