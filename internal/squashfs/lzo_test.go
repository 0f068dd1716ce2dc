package squashfs

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestLZO decompresses every kind of instruction, each composed from the kernel's description of the format.
func TestLZO(t *testing.T) {
	text := func(n int) string { return string(sampleText(n)) }
	const end = "110000"
	hexOf := func(s string) string { return hex.EncodeToString([]byte(s)) }
	cases := []struct{ name, packed, want string }{
		{"nothing", end, ""},
		{"first byte, 1 literal", "12" + hexOf("a") + end, "a"},
		{"first byte, 3 literals", "14" + hexOf("abc") + end, "abc"},
		{"first byte, 4 literals", "15" + hexOf("abcd") + end, "abcd"},
		{"first byte, 238 literals", "ff" + hexOf(text(238)) + end, text(238)},
		{"run of 4 literals", "01" + hexOf("abcd") + end, "abcd"},
		{"run of 18 literals", "0f" + hexOf(text(18)) + end, text(18)},
		{"run of 19 literals", "0001" + hexOf(text(19)) + end, text(19)},
		{"run of 18 + 255 + 2 literals", "000002" + hexOf(text(275)) + end, text(275)},
		{"2 bytes from 1 back, after 1 literal", "12" + hexOf("a") + "0000" + end, "aaa"},
		{"2 bytes from 3 back, then 2 literals", "14" + hexOf("abc") + "0a00" + hexOf("xy") + end, "abcabxy"},
		{"3 bytes from 2049 back, after a run", "000000000000000000ee" + hexOf(text(18+8*255+238)) + "0000" + end, ""},
		{"3 bytes from 2 back", "15" + hexOf("abcd") + "4400" + end, "abcdcdc"},
		{"4 bytes from 4 back, 1 literal, 2 bytes from 1 back", "15" + hexOf("abcd") + "6d00" + hexOf("x") + "0000" + end, "abcdabcdxxx"},
		{"8 bytes from 1 back", "12" + hexOf("a") + "e000" + end, "aaaaaaaaa"},
		{"5 bytes from 9 back", "1a" + hexOf("123456789") + "8001" + end, "12345678912345"},
		{"3 bytes from 1 back, 16 bits of distance", "12" + hexOf("a") + "210000" + end, "aaaa"},
		{"33 bytes from 3 back", "14" + hexOf("abc") + "3f0800" + end, strings.Repeat("abc", 12)},
		{"34 bytes from 3 back", "14" + hexOf("abc") + "20010800" + end, strings.Repeat("abc", 12) + "a"},
		{"289 bytes from 1 back", "12" + hexOf("a") + "2000010000" + end, strings.Repeat("a", 290)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			packed, err := hex.DecodeString(c.packed)
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if want == "" && len(packed) > 3 { // the instruction that reaches between 2 and 3 KiB back
				data := text(18 + 8*255 + 238)
				want = data + data[len(data)-2049:][:3]
			}
			dst := make([]byte, len(want))
			n, err := expandLZO(dst, packed)
			if err != nil || string(dst[:n]) != want {
				t.Fatalf("%q, %v; want %q", dst[:n], err, want)
			}
			for i := range packed {
				if _, err := expandLZO(dst, packed[:i]); err == nil {
					t.Errorf("took the first %d bytes for all", i)
				}
			}
			if _, err := expandLZO(dst, append(packed, 0)); !errors.Is(err, errLZOEnd) {
				t.Error("a byte too many:", err)
			}
			if len(dst) > 0 {
				if _, err := expandLZO(dst[:len(dst)-1], packed); !errors.Is(err, errLZOOutput) {
					t.Error("a byte too little room:", err)
				}
			}
		})
	}
}

// TestLZOFar copies from more than 16 KiB back, which has an instruction of its own.
func TestLZOFar(t *testing.T) {
	data := sampleNoise(40_000, 3)
	packed := []byte{0}
	n := len(data) - 18
	for ; n > 255; n -= 255 {
		packed = append(packed, 0)
	}
	packed = append(append(packed, byte(n)), data...)
	want := bytes.Clone(data)
	for _, far := range []struct{ distance, length int }{{16385, 3}, {20_000, 9}, {32768, 4}, {32769, 5}, {40_000, 8}} {
		d := far.distance - 16384
		op := 16 | far.length - 2
		if d >= 16384 {
			op, d = op|8, d-16384
		}
		packed = append(packed, byte(op), byte(d<<2), byte(d>>6))
		want = append(want, want[len(want)-far.distance:][:far.length]...)
	}
	packed = append(packed, 17, 0, 0)
	got := make([]byte, len(want))
	if n, err := expandLZO(got, packed); err != nil || !bytes.Equal(got[:n], want) {
		t.Fatal(n, err)
	}
	if _, err := expandLZO(got, []byte{18, 'a', 17, 4, 0, 17, 0, 0}); !errors.Is(err, errLZOBack) {
		t.Error(err)
	}
}

// slowLZO is another decompressor, as simple as can be: byte by byte, with bounds that the language checks.
func slowLZO(room int, src []byte) (out []byte, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	at := 0
	next := func() int { at++; return int(src[at-1]) }
	put := func(b byte) {
		if len(out) == room {
			panic("full")
		}
		out = append(out, b)
	}
	literals := func(n int) {
		for range n {
			put(byte(next()))
		}
	}
	back := func(distance, length int) {
		for range length {
			put(out[len(out)-distance])
		}
	}
	long := func(n, most int) int {
		if n > 0 {
			return n
		}
		for n = most; src[at] == 0; at++ {
			n += 255
		}
		return n + next()
	}
	state := 0
	if src[0] > 17 {
		n := next() - 17
		literals(n)
		state = min(n, 4)
	}
	for {
		op := next()
		switch {
		case op < 16 && state == 0:
			literals(long(op, 15) + 3)
			state = 4
			continue
		case op < 16 && state == 4:
			back(next()*4+op>>2+2049, 3)
			state = op & 3
		case op < 16:
			back(next()*4+op>>2+1, 2)
			state = op & 3
		case op < 64:
			base, n := 1, 0
			if op < 32 {
				base, n = 16384+op>>3&1*16384, long(op&7, 7)
			} else {
				n = long(op&31, 31)
			}
			low, high := next(), next()
			distance := base + high<<6 + low>>2
			if op < 32 && distance == 16384 {
				return out, n == 1 && at == len(src)
			}
			back(distance, n+2)
			state = low & 3
		case op < 128:
			back(next()*8+op>>2&7+1, 3+op>>5&1)
			state = op & 3
		default:
			back(next()*8+op>>2&7+1, 5+op>>5&3)
			state = op & 3
		}
		literals(state)
	}
}

// FuzzLZO compares the decompressor with a simple one.
func FuzzLZO(f *testing.F) {
	f.Add([]byte("\x12a\xe0\x00\x11\x00\x00"))
	f.Add([]byte("\x14abc\x20\x01\x08\x00\x11\x00\x00"))
	f.Add(lzoZeros(5000))
	f.Add(slices.Concat([]byte("\x14abc\x10"), make([]byte, 40), []byte("\x01\x00\x00"))) // an end that would copy 10,000 bytes
	image := seeds(f)["lzo"]
	var s superblock
	if _, err := binary.Decode(image, le, &s); err != nil {
		f.Fatal(err)
	}
	for at := int(s.InodeTable); at+2 < len(image) && at < int(s.FragmentTable); { // its metadata blocks
		n := int(le.Uint16(image[at:]) & 0x7fff)
		f.Add(image[at+2 : min(at+2+n, len(image))])
		at += 2 + n
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		const room, guarded = 8192, 64
		dst := make([]byte, room+guarded)
		n, err := expandLZO(dst[:room], packed)
		want, ok := slowLZO(room, packed)
		if ok != (err == nil) {
			t.Fatalf("%v, but the simple one says %v", err, ok)
		}
		if ok && !bytes.Equal(dst[:n], want) {
			t.Fatal("other data")
		}
		if strings.Trim(string(dst[room:]), "\x00") != "" {
			t.Fatal("wrote behind its room")
		}
	})
}
