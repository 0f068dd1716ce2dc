package inflate

import (
	"bufio"
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	kflate "github.com/klauspost/compress/flate"
)

// kind tells errors apart that callers can.
func kind(err error) string {
	var c *CorruptError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return "none"
	case errors.As(err, &c) || errors.Is(err, errCorrupt):
		return "corrupt"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "truncated"
	}
	return err.Error()
}

// judge decodes src in every way there is, and compares each with the reference, and that with compress/flate.
func judge(t *testing.T, src []byte) {
	t.Helper()
	want, consumed, wantErr := refer(src)
	if errors.Is(wantErr, errLong) {
		return
	}
	judgeReference(t, src, want, consumed, wantErr)

	for _, room := range []int{0, 1, 2000} {
		dst := make([]byte, len(want)+room)
		n, c, err := Decode(dst, src)
		compare(t, fmt.Sprintf("Decode with %d bytes too many", room), want, dst[:n], wantErr, err)
		if wantErr == nil && c != consumed {
			t.Errorf("Decode consumed %d bytes of %d", c, consumed)
		}
	}
	if len(want) > 0 {
		dst := make([]byte, len(want), len(want)+500)
		n, _, err := Decode(dst[:len(want)-1], src)
		if !errors.Is(err, io.ErrShortBuffer) || !bytes.Equal(dst[:n], want[:n]) || dst[len(want)-1] != 0 {
			t.Errorf("Decode into a byte too little: %d of %d bytes, %v", n, len(want)-1, err)
		}
	}

	for name, open := range sources {
		if len(src) > 1<<16 && !strings.HasPrefix(name, "whole") {
			continue
		}
		r, o := open(src)
		z := NewReader(r, o)
		got, err := readAll(z)
		compare(t, name, want, got, wantErr, err)
		if wantErr == nil {
			judgeEnd(t, name, z, r, o, src[consumed:], consumed)
		}
		z.Close()
	}
}

// sources are ways to give a Reader its input.
var sources = map[string]func([]byte) (io.Reader, Options){
	"whole":    func(b []byte) (io.Reader, Options) { return bytes.NewReader(b), Options{ReadAhead: true} },
	"wholeBuf": func(b []byte) (io.Reader, Options) { return bufio.NewReaderSize(bytes.NewReader(b), 300), Options{} },
	"one byte": func(b []byte) (io.Reader, Options) {
		return iotest.OneByteReader(bytes.NewReader(b)), Options{ReadAhead: true}
	},
	"data, err": func(b []byte) (io.Reader, Options) {
		return iotest.DataErrReader(bytes.NewReader(b)), Options{ReadAhead: true}
	},
	"exact": func(b []byte) (io.Reader, Options) { return bytes.NewReader(b), Options{} },
	"small buf": func(b []byte) (io.Reader, Options) {
		return bufio.NewReaderSize(iotest.HalfReader(bytes.NewReader(b)), 16), Options{}
	},
}

// judgeEnd checks where a Reader believes that the stream ended, and that it left the rest alone if it had to.
func judgeEnd(t *testing.T, name string, z *Reader, r io.Reader, o Options, rest []byte, consumed int) {
	t.Helper()
	if z.InputOffset() != int64(consumed) {
		t.Errorf("%s: the stream has %d bytes, not %d", name, consumed, z.InputOffset())
	}
	if n, err := z.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%s: after the end: %d, %v", name, n, err)
	}
	if o.ReadAhead {
		return
	}
	if left, _ := io.ReadAll(r); !bytes.Equal(left, rest) {
		t.Errorf("%s: %d bytes are left of the %d that follow the stream", name, len(left), len(rest))
	}
}

func judgeReference(t *testing.T, src, want []byte, consumed int, wantErr error) {
	t.Helper()
	in := bytes.NewReader(src)
	got, err := io.ReadAll(flate.NewReader(in))
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("compress/flate says %v, the reference %v", err, wantErr)
	}
	if err == nil && (!bytes.Equal(got, want) || in.Len() != len(src)-consumed) {
		t.Fatal("compress/flate and the reference disagree")
	}
}

func compare(t *testing.T, name string, want, got []byte, wantErr, err error) {
	t.Helper()
	if kind(wantErr) != kind(err) {
		t.Errorf("%s: the error is %v, but should be %v", name, err, wantErr)
	}
	if !bytes.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Errorf("%s: %d bytes, not %d; they differ from byte %d on", name, len(got), len(want), i)
	}
}

// readAll reads in pieces of all sizes.
func readAll(r io.Reader) ([]byte, error) {
	var all []byte
	buf := make([]byte, 70_000)
	for i := 1; ; i = i*3%99_991 + 1 {
		n, err := r.Read(buf[:min(i, len(buf))])
		all = append(all, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// content returns n bytes that compress in an interesting way: text, runs, noise and far repetitions.
func content(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 0, n+300)
	for len(b) < n {
		switch k := r.IntN(40); {
		case k == 0:
			b = append(b, bytes.Repeat([]byte{byte(r.IntN(256))}, r.IntN(600))...)
		case k < 3:
			for range r.IntN(200) {
				b = append(b, byte(r.Uint32()))
			}
		case k < 20 && len(b) > 0:
			from := len(b) - 1 - r.IntN(min(len(b), 1<<r.IntN(16)))
			for range 3 + r.IntN(1<<(1+r.IntN(9))) {
				b = append(b, b[from])
				from++
			}
		default:
			for range r.IntN(30) {
				b = append(b, byte('a'+min(r.IntN(26), r.IntN(26))))
			}
		}
	}
	return b[:n]
}

// pack compresses b, by compress/flate or by klauspost's, with a flush after every so many bytes unless that is 0.
func pack(t testing.TB, b []byte, level, flush int, other bool) []byte {
	t.Helper()
	var buf bytes.Buffer
	var w interface {
		io.WriteCloser
		Flush() error
	}
	w, err := flate.NewWriter(&buf, level)
	if other {
		w, err = kflate.NewWriter(&buf, level)
	}
	for err == nil && flush > 0 && len(b) > flush {
		_, err = w.Write(b[:flush])
		err = errors.Join(err, w.Flush())
		b = b[flush:]
	}
	if err == nil {
		_, err = w.Write(b)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestRoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("many streams, one goroutine")
	}
	sizes := []int{0, 1, 2, 257, 258, 259, 1000, 32767, 32768, 32769, 65535, 65536, 100_000}
	for _, margin := range []int{-1, 0, 1, outputMargin, maxMatch} {
		sizes = append(sizes, outputSize-margin, outputSize-outputMargin-margin, 2*outputSize-windowSize-margin)
	}
	sizes = append(sizes, 3<<20)
	for i, size := range sizes {
		b := content(size, uint64(i))
		for level := flate.HuffmanOnly; level <= flate.BestCompression; level++ {
			for _, other := range []bool{false, true} {
				if size > 1<<20 && level%4 != 1 {
					continue
				}
				src := pack(t, b, level, 0, other)
				if got, _, err := refer(src); err != nil || !bytes.Equal(got, b) {
					t.Fatal("the reference is wrong", err)
				}
				judge(t, append(src, "what follows"...))
			}
		}
	}
}

// TestBlocks has blocks of all types and sizes in one stream.
func TestBlocks(t *testing.T) {
	if testing.Short() {
		t.Skip("many streams, one goroutine")
	}
	for seed := range uint64(150) {
		judge(t, craft(seed))
	}
}

// craft makes a stream of blocks no compressor would think of: with codes of any lengths, for whatever comes.
func craft(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &bitWriter{}
	blocks := 1 + r.IntN(8)
	written := 0
	for i := range blocks {
		final := 0
		if i == blocks-1 {
			final = 1
		}
		w.number(final, 1)
		switch r.IntN(5) {
		case 0:
			n := []int{0, 1, 7, 300, 65535}[r.IntN(5)]
			w.number(0, 2)
			w.stored(content(n, seed))
			written += n
		case 1:
			w.number(1, 2)
			written = w.symbols(r, fixedLengths(), written)
		default:
			w.number(2, 2)
			l := randomLengths(r)
			w.lengths(l)
			written = w.symbols(r, l, written)
		}
	}
	return w.out
}

type bitWriter struct {
	out []byte
	n   int
}

func (w *bitWriter) number(v, n int) {
	for i := range n {
		if w.n%8 == 0 {
			w.out = append(w.out, 0)
		}
		w.out[w.n/8] |= byte(v>>i&1) << (w.n % 8)
		w.n++
	}
}

func (w *bitWriter) stored(b []byte) {
	w.n = (w.n + 7) &^ 7
	w.number(len(b), 16)
	w.number(^len(b), 16)
	w.out = append(w.out, b...)
	w.n = 8 * len(w.out)
}

// blockLengths are the lengths of the codes of a block.
type blockLengths struct{ literals, distances []int }

func fixedLengths() blockLengths {
	l := blockLengths{make([]int, 288), make([]int, 32)}
	for i := range l.literals {
		l.literals[i] = 8
		if i >= 144 && i < 256 {
			l.literals[i] = 9
		} else if i >= 256 && i < 280 {
			l.literals[i] = 7
		}
	}
	for i := range l.distances {
		l.distances[i] = 5
	}
	return l
}

// randomLengths makes complete codes by splitting leaves of a tree; sometimes the distance code has one symbol or none.
func randomLengths(r *rand.Rand) blockLengths {
	l := blockLengths{make([]int, 286), make([]int, 30)}
	grow := func(all []int, always int) {
		leaves := []int{1, 1}
		for n := r.IntN(len(all) - 1); n > 0; n-- {
			i := r.IntN(len(leaves))
			if r.IntN(3) > 0 {
				i = len(leaves) - 1 // deep
			}
			if leaves[i] < 15 {
				leaves[i]++
				leaves = append(leaves, leaves[i])
			}
		}
		order := r.Perm(len(all))
		for i, s := range order {
			if s == always {
				order[0], order[i] = order[i], order[0]
			}
		}
		for i, n := range leaves[:min(len(leaves), len(all))] {
			all[order[i]] = n
		}
	}
	grow(l.literals, 256)
	switch r.IntN(5) {
	case 0:
	case 1:
		l.distances[r.IntN(30)] = 1
	default:
		grow(l.distances, 0)
	}
	return l
}

// lengths writes a dynamic block's header.
func (w *bitWriter) lengths(l blockLengths) {
	w.number(29, 5)
	w.number(29, 5)
	w.number(15, 4)
	code := make([]int, 19)
	for i := range code {
		code[i] = 5
		if i < 13 {
			code[i] = 4
		}
	}
	for _, s := range codeLengthOrder {
		w.number(code[s], 3)
	}
	put := putter(code)
	for _, n := range append(append([]int(nil), l.literals...), l.distances...) {
		put(w, n)
	}
}

// putter returns how to write symbols of the code of the lengths.
func putter(lengths []int) func(*bitWriter, int) {
	c, _ := makeCode(lengths, true)
	bySymbol := make([]int, len(lengths))
	for k, s := range c {
		if s > 0 {
			bySymbol[s-1] = k
		}
	}
	return func(w *bitWriter, s int) {
		k := bySymbol[s]
		for i := bits.Len(uint(k)) - 2; i >= 0; i-- {
			w.number(k>>i&1, 1)
		}
	}
}

// symbols writes a block's symbols, each that has a code at random, and returns how many bytes the output then has.
func (w *bitWriter) symbols(r *rand.Rand, l blockLengths, written int) int {
	put, putDistance := putter(l.literals), putter(l.distances)
	var some []int
	for s, n := range l.literals[:286] {
		if n > 0 && s != 256 {
			some = append(some, s)
		}
	}
	for n := r.IntN(3000); n > 0 && len(some) > 0; n-- {
		s := some[r.IntN(len(some))]
		if s < 256 {
			put(w, s)
			written++
			continue
		}
		d := r.IntN(30)
		if l.distances[d] == 0 || distBase[d]+1<<distMore[d] > written {
			continue
		}
		put(w, s)
		more := r.IntN(1 << lengthMore[s-257])
		w.number(more, lengthMore[s-257])
		written += lengthBase[s-257] + more
		putDistance(w, d)
		w.number(r.IntN(1<<distMore[d]), distMore[d])
	}
	put(w, 256)
	return written
}

// TestTruncated cuts streams at every byte.
func TestTruncated(t *testing.T) {
	if testing.Short() {
		t.Skip("many streams, one goroutine")
	}
	for seed := range uint64(6) {
		src := craft(seed + 1000)
		step := max(1, len(src)/700)
		for n := 0; n < len(src); n++ {
			if n > 100 && n < len(src)-100 && n%step != 0 {
				continue
			}
			judge(t, src[:n])
			if _, _, err := Decode(make([]byte, 1<<20), src[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("cut to %d of %d bytes: %v", n, len(src), err)
			}
		}
	}
	src := pack(t, content(3000, 5), 6, 0, false)
	for n := range src {
		judge(t, src[:n])
	}
}

// TestDamaged changes bits at random.
func TestDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("many streams, one goroutine")
	}
	r := rand.New(rand.NewPCG(3, 4))
	for seed := range uint64(20) {
		src := craft(seed + 2000)
		if seed%2 == 0 {
			src = pack(t, content(3000+int(seed)*100, seed), int(seed)%10, 700, false)
		}
		for range 60 {
			bad := bytes.Clone(src)
			for range 1 + r.IntN(3) {
				bad[min(r.IntN(len(bad)), r.IntN(len(bad)))] ^= 1 << r.IntN(8)
			}
			judge(t, bad)
		}
	}
}

// TestRefused has streams with a mistake each, and what is said of it, where.
func TestRefused(t *testing.T) {
	dynamic := func(edit func(literals, distances []int)) []byte {
		w := &bitWriter{}
		l := blockLengths{make([]int, 286), make([]int, 30)}
		l.literals[0], l.literals[256] = 1, 1
		l.distances[0], l.distances[1] = 1, 1
		edit(l.literals, l.distances)
		w.number(5, 3)
		w.lengths(l)
		w.number(0, 64)
		return w.out
	}
	packBits := func(pairs ...int) []byte {
		w := &bitWriter{}
		for i := 0; i < len(pairs); i += 2 {
			w.number(pairs[i], pairs[i+1])
		}
		return w.out
	}
	for name, c := range map[string]struct {
		src    []byte
		offset int64
		reason string
	}{
		"reserved type":          {packBits(7, 3), 1, "reserved type"},
		"stored length":          {packBits(1, 3, 0, 5, 5, 16, 5, 16), 5, "complement"},
		"287 literals":           {packBits(5, 3, 30, 5, 0, 5, 0, 4), 3, "more symbols"},
		"31 distances":           {packBits(5, 3, 0, 5, 30, 5, 0, 4), 3, "more symbols"},
		"no code length code":    {packBits(5, 3, 0, 5, 0, 5, 0, 4, 0, 12), 4, "code of the code lengths"},
		"one code length":        {packBits(5, 3, 0, 5, 0, 5, 0, 4, 1, 12), 4, "code of the code lengths"},
		"repeat of nothing":      {packBits(5, 3, 0, 5, 0, 5, 0, 4, 1+1<<3, 12, 0, 1), 4, "repeats another"},
		"too many code lengths":  {packBits(5, 3, 0, 5, 0, 5, 0, 4, 1<<3+1<<6, 12, 1, 1, 127, 7, 1, 1, 127, 7), 6, "more code lengths"},
		"no end":                 {dynamic(func(l, _ []int) { l[256], l[1] = 0, 1 }), 168, "its end"},
		"oversubscribed":         {dynamic(func(l, _ []int) { l[1] = 1 }), 168, "literals and lengths"},
		"incomplete":             {dynamic(func(l, _ []int) { l[1], l[0] = 3, 3 }), 168, "literals and lengths"},
		"lonely end of two bits": {dynamic(func(l, _ []int) { l[0], l[256] = 0, 2 }), 168, "literals and lengths"},
		"distances oversubscribed": {
			dynamic(func(_, d []int) { d[2] = 5 }), 168, "distances",
		},
		"distances incomplete":      {dynamic(func(_, d []int) { d[0] = 2 }), 168, "distances"},
		"one distance of two bits":  {dynamic(func(_, d []int) { d[0], d[1] = 0, 2 }), 168, "distances"},
		"distance before the start": {packBits(3, 3, 0x40, 7, 0, 5), 2, "before the first"},
	} {
		want, _, refErr := refer(c.src)
		if len(want) > 0 || !errors.Is(refErr, errCorrupt) {
			t.Errorf("%s: the reference says %v", name, refErr)
		}
		judge(t, c.src)
		_, _, err := Decode(make([]byte, 1000), c.src)
		var bad *CorruptError
		if !errors.As(err, &bad) || !strings.Contains(bad.Reason, c.reason) || bad.Offset != c.offset {
			t.Errorf("%s: %v, want byte %d, %s", name, err, c.offset, c.reason)
		}
	}
}

// TestFlushed reads what a writer flushed while the writer is still at work: it must not wait for more.
func TestFlushed(t *testing.T) {
	pr, pw := io.Pipe()
	w, err := flate.NewWriter(pw, 6)
	if err != nil {
		t.Fatal(err)
	}
	z := NewReader(pr, Options{ReadAhead: true})
	defer z.Close()
	const messages = 20
	arrived := make(chan bool, messages)
	message := func(i int) []byte { return content(100+i*5000, uint64(i)) }
	go func() {
		for i := range messages {
			_, _ = w.Write(message(i))
			_ = w.Flush()
			<-arrived
		}
	}()
	for i := range messages {
		got := make([]byte, len(message(i)))
		if _, err := io.ReadFull(z, got); err != nil || !bytes.Equal(got, message(i)) {
			t.Fatalf("message %d: %v", i, err)
		}
		arrived <- true
	}
	for _, flush := range []int{1, 100, 5000} {
		judge(t, pack(t, content(20*flush+7, 1), 6, flush, false))
	}
}

// TestSourceFails has the source's own error after everything that could be decoded.
func TestSourceFails(t *testing.T) {
	failure := errors.New("the disk is on fire")
	src := pack(t, content(500_000, 1), 6, 0, false)
	src = src[:len(src)/2]
	want, _, _ := refer(src)
	z := NewReader(io.MultiReader(bytes.NewReader(src), iotest.ErrReader(failure)), Options{ReadAhead: true})
	defer z.Close()
	for range 2 {
		got, err := readAll(z)
		if !errors.Is(err, failure) || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
		}
		want = nil
	}
	z.Reset(stuck{}, Options{ReadAhead: true})
	if _, err := z.Read(make([]byte, 1)); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a source that gives nothing: %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestWriteTo(t *testing.T) {
	want := content(700_000, 9)
	src := pack(t, want, 6, 0, true)
	z := NewReader(bytes.NewReader(src), Options{ReadAhead: true})
	defer z.Close()
	var got bytes.Buffer
	head := make([]byte, 1000)
	if _, err := io.ReadFull(z, head); err != nil {
		t.Fatal(err)
	}
	n, err := z.WriteTo(&got)
	if n != int64(got.Len()) || err != nil || !bytes.Equal(append(head, got.Bytes()...), want) {
		t.Errorf("%d bytes, %v", n, err)
	}
	z.Reset(bytes.NewReader(src[:1000]), Options{ReadAhead: true})
	if _, err := z.WriteTo(io.Discard); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	z.Reset(bytes.NewReader(src), Options{ReadAhead: true})
	pr, pw := io.Pipe()
	pr.Close()
	if _, err := z.WriteTo(pw); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("nowhere to write to: %v", err)
	}
}

// TestReused resets one Reader over streams that ended well and badly, and uses it after Close.
func TestReused(t *testing.T) {
	z := NewReader(strings.NewReader(""), Options{})
	for seed := range uint64(30) {
		src := craft(seed)
		cut := len(src)
		if seed%3 == 1 {
			cut /= 2
		}
		z.Reset(bytes.NewReader(src[:cut]), Options{ReadAhead: seed%2 == 0})
		if seed%3 == 2 {
			_, _ = z.Read(make([]byte, 10)) // and leave it
			continue
		}
		want, _, wantErr := refer(src[:cut])
		got, err := readAll(z)
		compare(t, "reused", want, got, wantErr, err)
		if seed%4 == 0 {
			z.Close()
			z.Close()
			if _, err := z.Read(make([]byte, 1)); !errors.Is(err, errClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
	}
}

// TestNothingAllocated has the cost of many small members.
func TestNothingAllocated(t *testing.T) {
	src := pack(t, content(1000, 1), 6, 0, false)
	dst := make([]byte, 1000)
	if n := testing.AllocsPerRun(100, func() { _, _, _ = Decode(dst, src) }); n > 0 {
		t.Errorf("Decode allocates %v times", n)
	}
	in := bytes.NewReader(src)
	z := NewReader(in, Options{ReadAhead: true})
	if n := testing.AllocsPerRun(100, func() {
		in.Reset(src)
		z.Reset(in, Options{ReadAhead: true})
		_, _ = io.ReadFull(z, dst)
	}); n > 0 {
		t.Errorf("a Reader used again allocates %v times", n)
	}
}

// FuzzDifferential compares with compress/flate and the reference on any input.
func FuzzDifferential(f *testing.F) {
	for seed := range uint64(12) {
		if src := craft(seed); len(src) < 4000 { // long ones keep the fuzzer from its work
			f.Add(src)
		}
		f.Add(pack(f, content(int(seed)*97, seed), int(seed)%10, 150*int(seed%3), seed%2 == 0))
	}
	f.Fuzz(func(t *testing.T, src []byte) { judge(t, src) })
}
