package squashfs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/tooltest"
)

// aTime is when the files of the tests were modified.
var aTime = time.Unix(1_700_000_000, 0)

// build collects what goes into a file system under test.
type build struct {
	t    testing.TB
	w    *Writer
	file *os.File
	next int64
}

func newBuild(t testing.TB, base int64, o Options) *build {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(f, base, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); f.Close() })
	return &build{t: t, w: w, file: f}
}

func opener(p []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
}

func (b *build) start(packs ...*Pack) {
	b.t.Helper()
	if err := b.w.StartSegment(packs...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *build) end() *Segment {
	b.t.Helper()
	s, err := b.w.EndSegment()
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// add places a file under the next key.
func (b *build) add(p []byte) *Data {
	b.t.Helper()
	b.next++
	d, err := b.w.Add(context.Background(), Key{Offset: b.next * 512}, int64(len(p)), opener(p))
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

func (b *build) finish(root *Inode) string {
	b.t.Helper()
	if _, err := b.w.Finish(root); err != nil {
		b.t.Fatal(err)
	}
	return b.file.Name()
}

func dirOf(entries ...DirEntry) *Inode {
	return &Inode{Type: Dir, Mode: 0o755, ModTime: aTime, Entries: entries}
}

func fileOf(d *Data) *Inode { return &Inode{Type: Regular, Mode: 0o644, ModTime: aTime, Data: d} }

// textOf is n bytes that compress about as well as program text does.
func textOf(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	words := make([]string, 500)
	for i := range words {
		words[i] = fmt.Sprintf("%x ", r.Uint64()>>r.IntN(48))
	}
	var b bytes.Buffer
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.Bytes()[:n]
}

func randomOf(n int, seed byte) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func runTool(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(tooltest.Path(t, name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestToolsReadCompressors(t *testing.T) {
	for _, c := range []Compressor{Zstd, Gzip, LZ4, Stored} {
		t.Run(c.String(), func(t *testing.T) {
			b := newBuild(t, 0, Options{Compression: c})
			b.start()
			contents := map[string][]byte{
				"empty": nil, "small": []byte("hello\n"), "text": textOf(300_000, 1), "random": randomOf(200_000, 1),
				"zeros": make([]byte, 1<<20+5), "same": textOf(300_000, 1), "exact": textOf(DefaultBlockSize, 3),
			}
			var entries []DirEntry
			for name, p := range contents {
				entries = append(entries, DirEntry{name, fileOf(b.add(p))})
			}
			b.end()
			image := b.finish(dirOf(entries...))
			out := filepath.Join(t.TempDir(), "out")
			runTool(t, "unsquashfs", "-no-progress", "-d", out, image)
			for name, want := range contents {
				if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: %v, %d bytes of %d", name, err, len(got), len(want))
				}
			}
			facts := map[Compressor]string{
				Zstd: "compression-level 3", Gzip: "compression-level 6", LZ4: "Compression lz4", Stored: "Data is uncompressed",
			}
			if s := runTool(t, "unsquashfs", "-s", image); !strings.Contains(s, facts[c]) {
				t.Errorf("%q is not among the facts:\n%s", facts[c], s)
			}
		})
	}
}
