package inflate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/iotest"
)

// told is what a reader of members tells: points and members.
type told struct {
	what            string
	content, stream int64
	crc             uint32
	window          string
}

func toldPoint(p Point) told { return told{"point", p.Out, p.Bit, p.CRC, string(p.Window)} }

func toldMember(stream, content int64) told {
	return told{what: "member", content: content, stream: stream}
}

// wantTold compares what was told.
func wantTold(t *testing.T, got, want []told) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("told %d of %d: %.300q, not %.300q", i, len(want), fmt.Sprint(got[i]), fmt.Sprint(want[i]))
			return
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d things are told, not %d", len(got), len(want))
	}
}

// membersOf reads a file with several cores, or with none that makes trials, and notes what it is told.
func membersOf(src io.Reader, spacing int64, c cutting) ([]byte, []told, error) {
	var list []told
	z, err := openMembers(src, c, Members{
		Spacing: spacing,
		Point:   func(p Point) error { list = append(list, toldPoint(p)); return nil },
		Member: func(stream, content int64) error {
			list = append(list, toldMember(stream, content))
			return nil
		},
	})
	if err != nil {
		return nil, nil, err
	}
	defer z.Close()
	b, err := readAll(z)
	return b, list, err
}

// oneByOne is what membersOf returns, of members that are read one after the other by a Reader.
func oneByOne(src []byte, spacing int64) (data []byte, list []told, err error) {
	in := bufio.NewReader(bytes.NewReader(src))
	for first := true; ; first = false {
		if err = readPlainHeader(in); err != nil {
			if errors.Is(err, io.EOF) && first {
				err = io.ErrUnexpectedEOF
			}
			break
		}
		z := NewReader(in, Options{Points: spacing})
		content, wrong := readAll(z)
		data = append(data, content...)
		for _, p := range z.Points() {
			list = append(list, toldPoint(p))
		}
		stream := z.InputOffset()
		z.Close()
		if err = wrong; err != nil {
			break
		}
		var trailer [gzipTrailer]byte
		if _, err = io.ReadFull(in, trailer[:]); err != nil {
			err = noEOF(err)
			break
		}
		if binary.LittleEndian.Uint32(trailer[:]) != crc32.ChecksumIEEE(content) || binary.LittleEndian.Uint32(trailer[4:]) != uint32(len(content)) {
			err = ErrGzipChecksum
			break
		}
		list = append(list, toldMember(stream, int64(len(content))))
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data, list, err
}

// judgeMembers compares with members that are read one after the other: what comes out, what is told, and the error.
func judgeMembers(t *testing.T, src []byte, c cutting) {
	t.Helper()
	const spacing = 5000
	want, points, wantErr := oneByOne(src, spacing)
	for _, workers := range []int{0, c.workers} {
		c.workers = workers
		got, list, err := membersOf(bytes.NewReader(src), spacing, c)
		if kind(err) != kind(wantErr) || errors.Is(err, ErrNotPlain) != errors.Is(wantErr, ErrNotPlain) {
			t.Errorf("%d workers: error %v; one by one %v", workers, err, wantErr)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d workers: %d bytes that begin to differ at %d; one by one %d", workers, len(got), common(got, want), len(want))
		}
		wantTold(t, list, points)
	}
}

// TestMembers has files of members of all lengths and levels, with blocks that no trial finds and blocks of no bytes among them, whole and damaged.
func TestMembers(t *testing.T) {
	for name, plain := range kinds(90 << 10) {
		for _, level := range []int{gzip.HuffmanOnly, gzip.NoCompression, 1, 6} {
			t.Run(fmt.Sprint(name, level), func(t *testing.T) {
				t.Parallel()
				src := rowOf(t, plain, level)
				if _, list, err := oneByOne(src, 5000); err != nil || len(list) < 12 {
					t.Fatalf("%d things are told, %v", len(list), err)
				}
				judgeMembers(t, src, small)
				judgeMembers(t, src, cutting{chunk: 40 << 10, overlap: 20 << 10, workers: 2})
				judgeDamaged(t, src, judgeMembers)
			})
		}
	}
}

// rowOf is a file of members, short and long ones, that hold plain together.
func rowOf(t *testing.T, plain []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	r := rand.New(rand.NewPCG(uint64(len(plain)), 4))
	for n := 0; len(plain) > 0; n++ {
		size := min(len(plain), 1+r.IntN([]int{20, 700, 40 << 10}[n%3]))
		w, err := gzip.NewWriterLevel(&b, level)
		if err != nil {
			t.Fatal(err)
		}
		half := size / 2
		_, _ = w.Write(plain[:half])
		if n%2 == 0 {
			err = errors.Join(w.Flush(), w.Flush())
		}
		_, _ = w.Write(plain[half:size])
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		plain = plain[size:]
	}
	return b.Bytes()
}

// TestMembersNotPlain has members with other headers, and what is no member, in each place: reading ends there and not before.
func TestMembersNotPlain(t *testing.T) {
	plain := zipped(t, gzip.Header{}, content(30<<10, 5), content(50<<10, 6))
	named := zipped(t, gzip.Header{Name: "a"}, content(10<<10, 7))
	for name, tail := range map[string][]byte{
		"a name": named, "a flag that has nothing": append([]byte{0x1f, 0x8b, 8, 1}, plain[4:]...), "a text": []byte("no header at all"), "a byte": {0x1f}, "half a header": plain[:7],
	} {
		src := append(bytes.Clone(plain), tail...)
		if _, _, err := oneByOne(src, 1); !errors.Is(err, ErrNotPlain) {
			t.Fatalf("%s: %v", name, err)
		}
		judgeMembers(t, src, small)
		judgeMembers(t, append(src, plain...), small)
		judgeMembers(t, src, cutting{chunk: chunkSize, overlap: 1 << 10, workers: 2})
		if _, err := openMembers(bytes.NewReader(tail), small, Members{Spacing: 1}); !errors.Is(err, ErrNotPlain) {
			t.Errorf("a file that begins with %s: %v", name, err)
		}
	}
}

// What a function of Members returns ends reading, with a point, a member, and the last one.
func TestMembersStop(t *testing.T) {
	src := zipped(t, gzip.Header{}, content(50<<10, 8), content(50<<10, 9))
	enough := errors.New("enough")
	_, all, err := oneByOne(src, 5000)
	if err != nil {
		t.Fatal(err)
	}
	for after := range all {
		n := 0
		tell := func() error {
			if n++; n > after {
				return enough
			}
			return nil
		}
		z, err := openMembers(bytes.NewReader(src), small, Members{Spacing: 5000, Point: func(Point) error { return tell() }, Member: func(int64, int64) error { return tell() }})
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, iotest.OneByteReader(z))
		if _, again := z.Read(make([]byte, 1)); !errors.Is(err, enough) || !errors.Is(again, enough) || n != after+1 {
			t.Errorf("after %d: %v and %v, told %d", after, err, again, n)
		}
		z.Close()
	}
	if n := len(trialsAtOnce()); n != 0 {
		t.Errorf("%d trials still have memory", n)
	}
}

// OpenMembers tells the same on a machine with many cores and with few, of streams that are cut as they are there.
func TestOpenMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("20 MB take long, with the race detector above all")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(leastWorkers))
	src := zipped(t, gzip.Header{}, content(100<<10, 12), kinds(6 << 20)["changing"])
	if len(src) < 8*chunkSize {
		t.Fatalf("%d bytes are too few chunks", len(src))
	}
	open := func() (list []told) {
		z, err := OpenMembers(bytes.NewReader(src), Members{
			Spacing: 100 << 10,
			Point:   func(p Point) error { list = append(list, toldPoint(p)); return nil },
			Member: func(stream, content int64) error {
				list = append(list, toldMember(stream, content))
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		if _, err := io.Copy(io.Discard, z); err != nil {
			t.Fatal(err)
		}
		return list
	}
	many := open()
	runtime.GOMAXPROCS(1)
	wantTold(t, many, open())
	if len(many) < 50 {
		t.Errorf("%d things are told", len(many))
	}
}

// FuzzMembers compares what is told of any input, cut into chunks of any size.
func FuzzMembers(f *testing.F) {
	for _, plain := range kinds(8 << 10) {
		f.Add(zipped(f, gzip.Header{}, plain, plain[:1000]), uint16(300))
	}
	f.Fuzz(func(t *testing.T, src []byte, chunk uint16) {
		judgeMembers(t, src, cutting{chunk: int(chunk) + 100, overlap: int(chunk) * 2, workers: 2})
	})
}
