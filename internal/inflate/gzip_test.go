package inflate

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// zipped is a gzip file of a member for each of the contents.
func zipped(tb testing.TB, header gzip.Header, contents ...[]byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	for _, c := range contents {
		w := gzip.NewWriter(&b)
		w.Header = header
		_, err := w.Write(c)
		if err = errors.Join(err, w.Close()); err != nil {
			tb.Fatal(err)
		}
	}
	return b.Bytes()
}

func unzip(src []byte) ([]byte, error) {
	g, err := NewGzipReader(bytes.NewReader(src))
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return readAll(g)
}

// judgeGzip compares with compress/gzip, which lets reserved flags pass but no name of more than 511 bytes.
func judgeGzip(t *testing.T, src []byte) {
	if len(src) > 500 || hasReservedFlag(src) {
		return
	}
	var want []byte
	r, wantErr := gzip.NewReader(bytes.NewReader(src))
	if wantErr == nil {
		want, wantErr = io.ReadAll(r)
	}
	got, err := unzip(src)
	if (wantErr == nil) != (err == nil) || err == nil && !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; compress/gzip has %d bytes, %v", len(got), err, len(want), wantErr)
	}
}

func hasReservedFlag(src []byte) bool {
	for i := range max(len(src), 3) - 3 {
		if bytes.HasPrefix(src[i:], []byte{0x1f, 0x8b, 8}) && src[i+3]&gzipReserved != 0 {
			return true
		}
	}
	return false
}

func TestGzip(t *testing.T) {
	text, long := []byte("hello, hello, hello\n"), content(300_000, 1)
	full := gzip.Header{Name: "name", Comment: "comment", Extra: []byte("extra"), ModTime: time.Unix(1, 0)}
	for name, c := range map[string]struct {
		src  []byte
		want string
	}{
		"one":           {zipped(t, gzip.Header{}, text), string(text)},
		"empty":         {zipped(t, gzip.Header{}, nil), ""},
		"many":          {zipped(t, gzip.Header{}, text, nil, long, text, nil), string(text) + string(long) + string(text)},
		"all fields":    {zipped(t, full, text, text), strings.Repeat(string(text), 2)},
		"header CRC":    {withHeaderCRC(0), ""},
		"a name of any": {zipped(t, gzip.Header{Name: strings.Repeat("n", 10_000)}, text), string(text)},
	} {
		got, err := unzip(c.src)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(c.want), err)
		}
		if g, err := NewGzipReader(iotest.OneByteReader(bytes.NewReader(c.src))); err != nil {
			t.Error(name, err)
		} else if got, err := io.ReadAll(g); err != nil || string(got) != c.want {
			t.Errorf("%s, byte by byte: %d bytes of %d, %v", name, len(got), len(c.want), err)
		}
	}
}

// withHeaderCRC is an empty gzip file with a checksum of its header, off by what is given.
func withHeaderCRC(off byte) []byte {
	return []byte{0x1f, 0x8b, 8, 2, 0, 0, 0, 0, 0, 255, 0x90 ^ off, 0xc9, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}
}

// TestGzipRefused has files that are cut off, changed, or followed by something.
func TestGzipRefused(t *testing.T) {
	good := zipped(t, gzip.Header{Name: "name", Extra: []byte("extra")}, []byte("hello, hello, hello\n"))
	change := func(i int) []byte {
		b := bytes.Clone(good)
		b[(i+len(b))%len(b)] ^= 0x80
		return b
	}
	for n := range good {
		if _, err := unzip(good[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
		if two := append(bytes.Clone(good), good[:n]...); n > 0 {
			if _, err := unzip(two); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the second member cut to %d bytes: %v", n, err)
			}
		}
	}
	for name, c := range map[string]struct {
		src  []byte
		want error
	}{
		"magic":          {change(0), ErrGzipHeader},
		"method":         {change(2), ErrGzipHeader},
		"reserved flag":  {change(3), ErrGzipHeader},
		"header CRC":     {withHeaderCRC(1), ErrGzipHeader},
		"checksum":       {change(-8), ErrGzipChecksum},
		"size":           {change(-1), ErrGzipChecksum},
		"what follows":   {append(bytes.Clone(good), "and what is this?"...), ErrGzipHeader},
		"zeros follow":   {append(bytes.Clone(good), make([]byte, 512)...), ErrGzipHeader},
		"something else": {[]byte("PK\x03\x04 not a gzip file"), ErrGzipHeader},
	} {
		if _, err := unzip(c.src); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g, err := NewGzipReader(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	if _, err := g.Read(make([]byte, 1)); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// FuzzGzip compares with compress/gzip on any input.
func FuzzGzip(f *testing.F) {
	f.Add(zipped(f, gzip.Header{}, []byte("hello"), nil, content(300, 1)))
	f.Add(zipped(f, gzip.Header{Name: "n", Comment: "c", Extra: []byte("e")}, []byte("hello")))
	f.Add(withHeaderCRC(0))
	f.Fuzz(judgeGzip)
}
