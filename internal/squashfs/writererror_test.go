package squashfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"sconce.dev/sconce/internal/tooltest"
)

// goroutines waits until no more goroutines run than before.
func goroutines(t *testing.T, before int) {
	t.Helper()
	for range 60_000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<20)
	t.Errorf("%d goroutines, before %d:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}

// writeUntilError adds files until one fails, and closes the writer.
func writeUntilError(t *testing.T, f *os.File) error {
	t.Helper()
	w, err := NewWriter(f, 0, Options{Compression: Zstd, Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.StartSegment(); err != nil {
		t.Fatal(err)
	}
	p := randomOf(500_000, 1)
	for i := range 1000 {
		p[0], p[1] = byte(i), byte(i>>8)
		if _, err := w.Add(context.Background(), Key{Nth: i}, int64(len(p)), opener(p)); err != nil {
			if _, again := w.EndSegment(); again == nil {
				t.Error("after an error the segment ends well")
			}
			if _, again := w.Finish(dirOf()); again == nil {
				t.Error("after an error the file system is finished")
			}
			return err
		}
	}
	_, err = w.EndSegment()
	return err
}

func TestFullDisk(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("device", func(t *testing.T) {
		f, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := writeUntilError(t, f); !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	})
	t.Run("tmpfs", func(t *testing.T) {
		dir := tooltest.SmallDisk(t, "size=4m")
		f, err := os.Create(filepath.Join(dir, "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := writeUntilError(t, f); !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	})
	t.Run("copies", func(t *testing.T) {
		layer := []sourceFile{{"a", Key{}, randomOf(5<<20, 1)}}
		_, file, s := imageOf(t, DefaultOptions(), [][]sourceFile{layer})
		p := keepPack(t, file, s[0]).load(t)
		f, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, err := NewWriter(f, 0, DefaultOptions())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if err := w.StartSegment(p); err != nil {
			t.Fatal(err)
		}
		_, err = w.Add(context.Background(), Key{}, 5<<20, opener(layer[0].data))
		if err == nil {
			_, err = w.EndSegment()
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	})
	goroutines(t, before)
}

func TestCancelledWriter(t *testing.T) {
	before := runtime.NumGoroutine()
	for name, r := range map[string]io.Reader{"zeros": zeroReader{}, "text": repeat(textOf(1<<20, 1))} {
		b := newBuild(t, 0, Options{Compression: Zstd, Workers: 2})
		b.start()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, err := b.w.Add(ctx, Key{}, 1<<50, func() (io.ReadCloser, error) { return io.NopCloser(r), nil })
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := b.w.Add(context.Background(), Key{}, 1, opener([]byte("x"))); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: a file after it: %v", name, err)
		}
		b.w.Close()
		b.w.Close()
	}
	goroutines(t, before)
}

// repeated yields the same bytes again and again.
type repeated struct {
	p  []byte
	at int
}

func repeat(p []byte) io.Reader { return &repeated{p: p} }

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.p[r.at:])
	r.at = (r.at + n) % len(r.p)
	return n, nil
}

// failingClose is a file that cannot be read well.
type failingClose struct{ io.Reader }

func (failingClose) Close() error { return errors.New("closing failed") }

func TestSourceErrors(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, c := range []struct {
		name string
		size int64
		open func() (io.ReadCloser, error)
		want string
	}{
		{"opening", 5, func() (io.ReadCloser, error) { return nil, errors.New("no such content") }, "no such content"},
		{"a short tail", 10, opener([]byte("short")), "shorter"},
		{"a short file", 400_000, opener(textOf(300_000, 1)), "shorter"},
		{"a short end", 300_010, opener(textOf(300_000, 1)), "shorter"},
		{"a short block of zeros", 400_000, opener(make([]byte, 300_000)), "shorter"},
		{"a negative size", -1, nil, "-1 bytes"},
		{"closing", 5, func() (io.ReadCloser, error) { return failingClose{strings.NewReader("hello")}, nil }, "closing failed"},
	} {
		b := newBuild(t, 0, DefaultOptions())
		b.start()
		if _, err := b.w.Add(context.Background(), Key{}, c.size, c.open); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		b.w.Close()
	}
	goroutines(t, before)
}

func TestCallsInWrongOrder(t *testing.T) {
	b := newBuild(t, 0, DefaultOptions())
	if _, err := b.w.Add(context.Background(), Key{}, 1, opener([]byte("x"))); err == nil {
		t.Error("a file outside of a segment")
	}
	if _, err := b.w.EndSegment(); err == nil {
		t.Error("the end of a segment that was not started")
	}
	b.start()
	if err := b.w.StartSegment(); err == nil {
		t.Error("a segment in a segment")
	}
	if _, err := b.w.Finish(dirOf()); err == nil {
		t.Error("the end inside a segment")
	}
	b.end()
	b.finish(dirOf())
	if _, err := b.w.Finish(dirOf()); err == nil {
		t.Error("a second end")
	}
	if err := b.w.StartSegment(); err == nil {
		t.Error("a segment after the end")
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{
		{Compression: Zstd, BlockSize: 5000},
		{Compression: Zstd, BlockSize: 2048},
		{Compression: Zstd, BlockSize: 2 << 20},
		{Compression: Zstd, Level: 23},
		{Compression: Gzip, Level: 10},
		{Compression: LZ4, Level: 10},
		{Compression: Zstd, Level: -1},
		{Compression: XZ},
		{Compression: 99},
	} {
		if w, err := NewWriter(nil, 0, o); err == nil {
			w.Close()
			t.Errorf("%+v: no error", o)
		}
	}
	if _, err := NewWriter(nil, -1, DefaultOptions()); err == nil {
		t.Error("a negative offset")
	}
}

func TestOptionsKey(t *testing.T) {
	if a, b := DefaultOptions().Key(), (Options{Compression: Zstd, Workers: 5, ModTime: aTime, Level: 5}).Key(); a != b {
		t.Errorf("%q is not %q", a, b)
	}
	seen := map[string]bool{}
	for _, o := range append(optionSets(t), Options{Compression: Zstd, Level: 9}, Options{Compression: Gzip}) {
		if seen[o.Key()] {
			t.Errorf("%q is the key of two", o.Key())
		}
		seen[o.Key()] = true
	}
}

// TestLargerFileIsTruncated writes where a longer file was.
func TestLargerFileIsTruncated(t *testing.T) {
	b := newBuild(t, 512, DefaultOptions())
	if err := b.file.Truncate(10 << 20); err != nil {
		t.Fatal(err)
	}
	n, err := b.w.Finish(dirOf())
	if err != nil {
		t.Fatal(err)
	}
	info, err := b.file.Stat()
	if err != nil || n%4096 != 0 || info.Size() != 512+n {
		t.Errorf("%d bytes, the file has %d, %v", n, info.Size(), err)
	}
	head := make([]byte, 512)
	if _, err := b.file.ReadAt(head, 0); err != nil || !bytes.Equal(head, make([]byte, 512)) {
		t.Errorf("what is before was changed: %v", err)
	}
}
