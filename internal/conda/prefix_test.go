package conda_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf16"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/fault"
)

// patch replaces in pieces of n bytes.
func patch(mode, placeholder, prefix string, data []byte, n int) ([]byte, error) {
	var b bytes.Buffer
	p := conda.NewPatcher(&b, mode, placeholder, prefix)
	for len(data) > 0 {
		k := min(n, len(data))
		if _, err := p.Write(data[:k]); err != nil {
			return nil, err
		}
		data = data[k:]
	}
	err := p.Close()
	return b.Bytes(), err
}

func TestPrefixReplacement(t *testing.T) {
	const old = "/long/placeholder"
	for _, x := range []struct{ name, mode, in, want string }{
		{"a text", "text", "#!" + old + "/bin/sh\ncd " + old + "\n", "#!/p/bin/sh\ncd /p\n"},
		{"UTF-16", "text", utf16Text(binary.LittleEndian, old+"/x"), utf16Text(binary.LittleEndian, "/p/x")},
		{"UTF-16, the other way round", "text", utf16Text(binary.BigEndian, old+"/x"), utf16Text(binary.BigEndian, "/p/x")},
		{"UTF-32", "text", utf32Text(binary.LittleEndian, old+"/x"), utf32Text(binary.LittleEndian, "/p/x")},
		{"UTF-32, the other way round", "text", utf32Text(binary.BigEndian, old+"/x"), utf32Text(binary.BigEndian, "/p/x")},
		{"a beginning that goes on otherwise", "text", "/long/placeh/long/placeholder", "/long/placeh/p"},
		{"nothing", "text", "", ""},
		{"a string", "binary", "a\x00" + old + "/lib\x00b", "a\x00/p/lib\x00" + zeros(15) + "b"},
		{"a string with two", "binary", old + ":" + old + "/b\x00c\x00", "/p:/p/b\x00" + zeros(30) + "c\x00"},
		{"two strings", "binary", old + "\x00" + old + "\x00", "/p\x00" + zeros(15) + "/p\x00" + zeros(15)},
		{"a string that ends with the file", "binary", "x\x00" + old + "/b", "x\x00/p/b" + zeros(15)},
		{"UTF-16 in a binary", "binary", "x\x00" + utf16Text(binary.LittleEndian, old+"/ü\x00c"), "x\x00" + utf16Text(binary.LittleEndian, "/p/ü"+zeros(15)+"\x00c")},
		{"UTF-16 with zeros on odd places", "binary", utf16Text(binary.LittleEndian, old+"b\u0100:"+old+"\x00"), utf16Text(binary.LittleEndian, "/pb\u0100:/p"+zeros(30)+"\x00")},
		{"UTF-16 in a binary, the other way round", "binary", utf16Text(binary.BigEndian, old+"/x"), utf16Text(binary.BigEndian, "/p/x"+zeros(15))},
		{"UTF-32 in a binary", "binary", utf32Text(binary.LittleEndian, old+"\x00") + old, utf32Text(binary.LittleEndian, "/p"+zeros(15)+"\x00") + "/p" + zeros(15)},
		{"no string", "binary", "\x00\x01\x02", "\x00\x01\x02"},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, n := range []int{1, 2, 7, 1000} {
				got, err := patch(x.mode, old, "/p", []byte(x.in), n)
				if err != nil || string(got) != x.want {
					t.Errorf("in pieces of %d: got %q, %v; want %q", n, got, err, x.want)
				}
			}
		})
	}
}

func TestPrefixTooLongForBinary(t *testing.T) {
	_, err := patch("binary", "/short", "/much/longer", []byte("x\x00/short/lib\x00"), 100)
	if err == nil || fault.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
	if _, err := patch("text", "/short", "/much/longer", []byte("/short/lib\n"), 100); err != nil {
		t.Errorf("a text has room: %v", err)
	}
	if _, err := patch("binary", "/short", "/much/longer", []byte("nothing is there\x00"), 100); err != nil {
		t.Errorf("where nothing is replaced, nothing is too long: %v", err)
	}
}

func zeros(n int) string { return strings.Repeat("\x00", n) }

func utf16Text(order binary.AppendByteOrder, s string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, u)
	}
	return string(b)
}

func utf32Text(order binary.AppendByteOrder, s string) string {
	var b []byte
	for _, r := range s {
		b = order.AppendUint32(b, uint32(r))
	}
	return string(b)
}

// simplePatch does on the whole of a file what the patchers do in pieces, in the words of the rules.
func simplePatch(mode, placeholder, prefix string, data []byte) ([]byte, bool) {
	if mode == "text" {
		return bytes.ReplaceAll(data, []byte(placeholder), []byte(prefix)), true
	}
	fits := true
	out := eachString(data, func(s []byte) []byte {
		n := bytes.Count(s, []byte(placeholder)) * (len(placeholder) - len(prefix))
		if n < 0 {
			fits = false
			return s
		}
		return append(bytes.ReplaceAll(s, []byte(placeholder), []byte(prefix)), make([]byte, n)...)
	})
	return out, fits
}

// eachString replaces what stands between NULs.
func eachString(data []byte, f func([]byte) []byte) []byte {
	var out []byte
	for len(data) > 0 {
		end := bytes.IndexByte(data, 0)
		if end < 0 {
			return append(out, f(data)...)
		}
		out = append(append(out, f(data[:end])...), 0)
		data = data[end+1:]
	}
	return out
}

// isWide reports whether text is in data in UTF-16 or UTF-32.
func isWide(data []byte, text string) bool {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		if bytes.Contains(data, []byte(utf16Text(order, text))) || bytes.Contains(data, []byte(utf32Text(order, text))) {
			return true
		}
	}
	return false
}

// In pieces of any size, what comes out is what replacing in the whole file gives.
func FuzzPrefix(f *testing.F) {
	f.Add("/a/b", "/p", []byte("x/a/b/lib\x00/a/b:/a/b\x00rest/a/"), 3, true)
	f.Add("aab", "c", []byte("aaaab\x00aab"), 1, true)
	f.Add("abab", "xyzxyz", []byte("abababab"), 2, false)
	f.Fuzz(func(t *testing.T, placeholder, prefix string, data []byte, n int, inBinary bool) {
		if placeholder == "" || len(placeholder)+len(prefix) > 200 || len(data) > 4096 || strings.Contains(placeholder+prefix, "\x00") || n < 1 {
			return
		}
		if isWide(data, placeholder) {
			return // UTF-16 and UTF-32, which have a test
		}
		mode := "text"
		if inBinary {
			mode = "binary"
		}
		want, fits := simplePatch(mode, placeholder, prefix, data)
		got, err := patch(mode, placeholder, prefix, data, n)
		if (err == nil) != fits || fits && !bytes.Equal(got, want) {
			t.Errorf("%s %q by %q in %q: got %q, %v; want %q, %v", mode, placeholder, prefix, data, got, err, want, fits)
		}
	})
}
