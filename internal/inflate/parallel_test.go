package inflate

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"sconce.dev/sconce/internal/tooltest"
)

// small cuts test files into many chunks.
var small = cutting{chunk: 4 << 10, overlap: 8 << 10, workers: 3}

// parallel decompresses on several cores.
func parallel(src io.Reader, c cutting) ([]byte, error) {
	z, err := newParallel(src, c)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	var b bytes.Buffer
	_, err = z.WriteTo(&b)
	return b.Bytes(), err
}

// judgeParallel compares with what one core makes of a file, errors and their texts included.
func judgeParallel(t *testing.T, src []byte, c cutting) {
	t.Helper()
	want, wantErr := unzip(src)
	got, err := parallel(bytes.NewReader(src), c)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Errorf("error %v; one core has %v", err, wantErr)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes that begin to differ at %d; one core has %d", len(got), common(got, want), len(want))
	}
}

// common is how many bytes two slices have in common.
func common(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// kinds are contents that compress in different ways: what refers far back for long, what does so for a short while, what is
// stored, what is nothing but runs, and these one after the other.
func kinds(size int) map[string][]byte {
	r := rand.New(rand.NewPCG(7, 7))
	noise := make([]byte, size)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	hex := fmt.Appendf(nil, "%x", noise[:size/2])
	words := make([]byte, 0, size)
	for len(words) < size {
		words = fmt.Appendf(words, "%s %d\n", []string{"alpha", "beta", "gamma", "delta", "omega"}[r.IntN(5)], r.IntN(900))
	}
	return map[string][]byte{
		"mixed": content(size, 3), "noise": noise, "hex": hex, "words": words, "zeros": make([]byte, size),
		"changing": bytes.Join([][]byte{hex, noise[:size/3], words, make([]byte, size/2), content(size/2, 5)}, nil),
	}
}

// TestParallel compares with one core for streams of every level, whole and damaged.
func TestParallel(t *testing.T) {
	all := kinds(60 << 10)
	if tooltest.Less(t) {
		all = map[string][]byte{"changing": all["changing"]} // which has something of each
	}
	for name, plain := range all {
		for _, level := range []int{gzip.HuffmanOnly, gzip.NoCompression, 1, 6} {
			t.Run(fmt.Sprint(name, level), func(t *testing.T) {
				t.Parallel()
				var b bytes.Buffer
				w, _ := gzip.NewWriterLevel(&b, level)
				_, _ = w.Write(plain)
				w.Close()
				judgeParallel(t, b.Bytes(), small)
				judgeDamaged(t, b.Bytes(), judgeParallel)
			})
		}
	}
}

// judgeDamaged has a file judged that is cut off anywhere, and one with a bit that has flipped.
func judgeDamaged(t *testing.T, src []byte, judge func(*testing.T, []byte, cutting)) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(len(src))))
	for range 4 {
		judge(t, src[:r.IntN(len(src))], small)
		bad := bytes.Clone(src)
		bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
		judge(t, bad, small)
	}
}

// TestParallelOfOthers has files by the compressors that images are made with, as far as they are here.
func TestParallelOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("many streams, whose goroutines are those of TestParallel")
	}
	python := "import sys,zlib;c=zlib.compressobj(%d,8,31,9,%s);d=sys.stdin.buffer.read();sys.stdout.buffer.write(c.compress(d)+c.flush())"
	programs := map[string][]string{
		"gzip 1": {"gzip", "-1"}, "gzip 9": {"gzip", "-9"},
		"pigz": {"pigz", "-p", "4", "-b", "128"}, "pigz -i": {"pigz", "-i"},
		"libdeflate 1": {"libdeflate-gzip", "-1"}, "libdeflate 12": {"libdeflate-gzip", "-12"},
		"igzip 0": {"igzip", "-0", "-c", "-"}, "igzip 3": {"igzip", "-3", "-c", "-"},
		"7-zip":   {"7zz", "a", "-tgzip", "-mx7", "-si", "-so", "x"},
		"zlib":    {"python3", "-c", fmt.Sprintf(python, 6, "zlib.Z_DEFAULT_STRATEGY")},
		"fixed":   {"python3", "-c", fmt.Sprintf(python, 6, "zlib.Z_FIXED")},
		"huffman": {"python3", "-c", fmt.Sprintf(python, 6, "zlib.Z_HUFFMAN_ONLY")},
	}
	all := kinds(100 << 10)
	for _, name := range []string{"changing", "noise"} {
		plain := all[name]
		for program, command := range programs {
			t.Run(program+" of "+name, func(t *testing.T) {
				t.Parallel()
				tooltest.Path(t, command[0])
				src := run(t, plain, command...)
				judgeParallel(t, src, small)
				judgeDamaged(t, src, judgeParallel)
			})
		}
	}
	t.Run("zopfli", func(t *testing.T) {
		tooltest.Path(t, "zopfli")
		name := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(name, kinds(100 << 10)["changing"], 0o600); err != nil {
			t.Fatal(err)
		}
		judgeParallel(t, run(t, nil, "zopfli", "-c", "--i1", name), small)
	})
}

// run returns what a program makes of its input.
func run(t *testing.T, in []byte, command ...string) []byte {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(command, err)
	}
	return out
}

// TestParallelMembers has files of many members, as layers made here are, some of them damaged in between.
func TestParallelMembers(t *testing.T) {
	mixed, r := content(200<<10, 11), rand.New(rand.NewPCG(2, 2))
	sizes := []int{500, 3 << 10, 80 << 10}
	if tooltest.Less(t) {
		sizes = []int{3 << 10}
	}
	for _, size := range sizes {
		var parts [][]byte
		for rest := mixed; len(rest) > 0; {
			n := min(len(rest), r.IntN(size)+1)
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		src := zipped(t, gzip.Header{Name: "name", Comment: "what it is", Extra: []byte("extra")}, parts...)
		judgeParallel(t, src, small)
		judgeDamaged(t, src, judgeParallel)
		judgeParallel(t, append(bytes.Clone(src), "no member"...), small)
	}
}

// TestParallelBeforeTheStart has a member that refers to bytes before its first, of which a trial must not make any, however
// many bytes of the member are known.
func TestParallelBeforeTheStart(t *testing.T) {
	words := kinds(300 << 10)["words"]
	var b bytes.Buffer
	w, err := flate.NewWriterDict(&b, 6, words[:8<<10])
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(words)
	w.Close()
	g := try(b.Bytes(), 4<<10, func() bool { return false })
	if g == nil {
		t.Fatal("the trial found no block")
	}
	for known, want := range map[int]bool{0: false, 100: false, 8 << 10: true, windowSize: true} {
		if got := (&sequencer{z: &ParallelGzipReader{}, window: window{known: known}}).fits(g); got != want {
			t.Errorf("with %d bytes before it the trial fits: %t, not %t", known, got, want)
		}
	}
	g.drop()
	src := append(zipped(t, gzip.Header{}, words[:20<<10]), 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3)
	src = append(append(src, b.Bytes()...), make([]byte, gzipTrailer)...)
	if _, err := unzip(src); err == nil || !strings.Contains(err.Error(), tooFar) {
		t.Fatalf("one core has %v", err)
	}
	judgeParallel(t, src, cutting{chunk: 4 << 10, overlap: 128 << 10, workers: 3}) // room for a whole block
}

// TestParallelIsParallel makes sure that trials are of use: without it, every other test would pass if none ever was.
func TestParallelIsParallel(t *testing.T) {
	if testing.Short() {
		t.Skip("a large stream, whose goroutines are those of TestParallel")
	}
	src := zipped(t, gzip.Header{}, content(4<<20, 4))
	z, err := newParallel(bytes.NewReader(src), cutting{chunk: 64 << 10, overlap: 64 << 10, workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	guessed, total := 0, 0
	for {
		b, err := z.more()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if total += len(b); z.piece.guess != nil {
			guessed += len(b)
		}
		z.rest = nil
	}
	if guessed < total/2 {
		t.Errorf("trials have %d of %d bytes", guessed, total)
	}
}

// TestOpenGzip opens a file as the product does on a machine with many cores and with few, with chunks of the size they have there.
func TestOpenGzip(t *testing.T) {
	if testing.Short() {
		t.Skip("a large stream, whose goroutines are those of TestParallel")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(leastWorkers))
	plain := kinds(6 << 20)["changing"]
	whole := zipped(t, gzip.Header{}, plain)
	if len(whole) < 8*chunkSize {
		t.Fatalf("%d bytes are too few chunks", len(whole))
	}
	open := func(src []byte, wide bool) ([]byte, error) {
		z, err := OpenGzip(bytes.NewReader(src))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		if _, is := z.(*ParallelGzipReader); is != wide {
			t.Fatalf("on %d cores it is a %T", runtime.GOMAXPROCS(0), z)
		}
		return io.ReadAll(z)
	}
	torn := bytes.Clone(whole)
	torn[len(torn)/2] ^= 0x10
	for name, src := range map[string][]byte{"whole": whole, "cut": whole[:len(whole)*2/3], "damaged": torn} {
		runtime.GOMAXPROCS(leastWorkers)
		got, err := open(src, true)
		runtime.GOMAXPROCS(2)
		want, wantErr := open(src, false)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; on two cores %d, %v", name, len(got), err, len(want), wantErr)
		}
		if name == "whole" && !bytes.Equal(got, plain) {
			t.Errorf("it begins to differ at %d", common(got, plain))
		}
	}
}

// TestParallelBesideOthers has several streams that share the room for one trial, and none may wait for another that is not read.
func TestParallelBesideOthers(t *testing.T) {
	old := trialsAtOnce
	room := make(chan struct{}, 1)
	trialsAtOnce = func() chan struct{} { return room }
	defer func() { trialsAtOnce = old }()
	plain := content(500<<10, 9)
	src := zipped(t, gzip.Header{}, plain)
	idle, err := newParallel(bytes.NewReader(src), small)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	for range 3 {
		t.Run("", func(t *testing.T) {
			got, err := parallel(bytes.NewReader(src), small)
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes of %d, %v", len(got), len(plain), err)
			}
		})
	}
	if got, err := io.ReadAll(idle); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("the one that was not read: %d bytes of %d, %v", len(got), len(plain), err)
	}
}

// TestParallelSourceFails has a source that fails after any number of bytes.
func TestParallelSourceFails(t *testing.T) {
	src := zipped(t, gzip.Header{}, content(100<<10, 6))
	failure := errors.New("the source has had enough")
	for _, n := range []int{11, 5000, 20_000, len(src) - 4, len(src)} {
		from := func() io.Reader {
			return iotest.HalfReader(io.MultiReader(bytes.NewReader(src[:n]), iotest.ErrReader(failure)))
		}
		z, err := NewGzipReader(from())
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := io.ReadAll(z)
		got, err := parallel(from(), small)
		if !errors.Is(err, failure) || !errors.Is(wantErr, failure) || !bytes.Equal(got, want) {
			t.Errorf("after %d bytes: %d bytes, %v; one core has %d bytes, %v", n, len(got), err, len(want), wantErr)
		}
	}
}

// TestParallelClosed closes readers that were read a little of, which must end all that goes on behind them.
func TestParallelClosed(t *testing.T) {
	src := zipped(t, gzip.Header{}, content(1<<20, 8))
	for n := range 12 {
		z, err := newParallel(bytes.NewReader(src), small)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, z, int64(n*3000)); err != nil {
			t.Fatal(err)
		}
		z.Close()
		if _, err := z.Read(make([]byte, 1)); !errors.Is(err, errClosed) {
			t.Errorf("a read after Close returns %v", err)
		}
	}
	if n := len(trialsAtOnce()); n != 0 {
		t.Errorf("%d trials still have memory", n)
	}
}

// FuzzParallel compares several cores with one on any input, cut into chunks of any size.
func FuzzParallel(f *testing.F) {
	for name, plain := range kinds(8 << 10) {
		f.Add(zipped(f, gzip.Header{Name: name}, plain, plain[:1000]), uint16(300))
	}
	f.Fuzz(func(t *testing.T, src []byte, chunk uint16) {
		judgeParallel(t, src, cutting{chunk: int(chunk) + 100, overlap: int(chunk) * 2, workers: 2})
	})
}

// BenchmarkParallel decompresses one stream on several cores.
func BenchmarkParallel(b *testing.B) {
	for _, level := range []int{1, 6} {
		var packed bytes.Buffer
		w, _ := gzip.NewWriterLevel(&packed, level)
		plain := benchContent(b)
		_, _ = w.Write(plain)
		w.Close()
		b.Run(fmt.Sprint("one core/level=", level), func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			for b.Loop() {
				z, err := NewGzipReader(bytes.NewReader(packed.Bytes()))
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, z); n != int64(len(plain)) || err != nil {
					b.Fatal(n, err)
				}
				z.Close()
			}
		})
		b.Run(fmt.Sprint("several/level=", level), func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			for b.Loop() {
				z, err := newParallel(bytes.NewReader(packed.Bytes()), cutting{chunkSize, chunkOverlap, max(2, leastWorkers)})
				if err != nil {
					b.Fatal(err)
				}
				if n, err := z.WriteTo(io.Discard); n != int64(len(plain)) || err != nil {
					b.Fatal(n, err)
				}
				z.Close()
			}
		})
	}
}

// benchContent is files of this machine: programs, libraries and texts.
func benchContent(b *testing.B) []byte {
	var all []byte
	for _, pattern := range []string{"/usr/lib/x86_64-linux-gnu/*.so*", "/usr/bin/*", "/usr/lib/python3*/*.py"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names[:min(len(names), 120)] {
			data, _ := os.ReadFile(name)
			all = append(all, data[:min(len(data), 4<<20)]...)
		}
	}
	if len(all) < 16<<20 {
		b.Skip("there is too little to read on this machine")
	}
	return all
}
