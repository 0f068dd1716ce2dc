package ctxio

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
)

func TestReader(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := Reader(ctx, strings.NewReader("ab"))
	if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	why := errors.New("enough")
	cancel(why)
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, why) {
		t.Errorf("%d, %v", n, err)
	}
}

// The end of a reader and its being cut stay different, whatever pieces it comes in.
func TestFill(t *testing.T) {
	for _, test := range []struct {
		r    io.Reader
		want string
		err  error
	}{
		{strings.NewReader("abcdef"), "abcd", nil},
		{strings.NewReader("ab"), "ab", io.EOF},
		{strings.NewReader(""), "", io.EOF},
		{io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(io.ErrUnexpectedEOF)), "ab", io.ErrUnexpectedEOF},
	} {
		p := make([]byte, 4)
		n, err := Fill(iotest.OneByteReader(test.r), p)
		if string(p[:n]) != test.want || !errors.Is(err, test.err) || test.err == nil && err != nil {
			t.Errorf("%q, %v; want %q, %v", p[:n], err, test.want, test.err)
		}
	}
}

func TestReadAtMost(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("abcd"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{3: "it is larger than 3 bytes", 4: "", 5: ""} {
		for from, read := range map[string]func() ([]byte, error){
			"":                    func() ([]byte, error) { return ReadAtMost(strings.NewReader("abcd"), limit) },
			"read " + name + ": ": func() ([]byte, error) { return ReadFile(name, limit) },
		} {
			switch data, err := read(); {
			case want == "" && (err != nil || string(data) != "abcd"):
				t.Errorf("%d: %q, %v", limit, data, err)
			case want != "" && (err == nil || err.Error() != from+want):
				t.Errorf("%d: %v, want %s", limit, err, from+want)
			}
		}
	}
	for n, want := range map[int64]string{1000: "1000 bytes", 1 << 10: "1 KiB", 1536: "1536 bytes", 3 << 20: "3 MiB", 1<<20 + 1024: "1025 KiB"} {
		if got := tooLargeError(n).Error(); got != "it is larger than "+want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestReadRegular: neither a pipe that nobody writes to nor a device without an end is waited for.
func TestReadRegular(t *testing.T) {
	dir := t.TempDir()
	pipe, device, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "device"), filepath.Join(dir, "file")
	err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink("/dev/zero", device), os.WriteFile(file, []byte("12345"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, device, dir} {
		if _, err := ReadRegular(name, 10); err == nil || !strings.Contains(err.Error(), name+": it is not a regular file") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if data, err := ReadRegular(file, 5); string(data) != "12345" || err != nil {
		t.Errorf("got %q, %v", data, err)
	}
	if _, err := ReadRegular(file, 4); err == nil || !strings.Contains(err.Error(), file+": it is larger than 4 bytes") {
		t.Errorf("got %v", err)
	}
}
