package squashfs

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// writeSeeds makes testdata/*.sqfs anew: go test -run TestSeeds -write-seeds. mksquashfs and tar2sqfs must be there.
var writeSeeds = flag.Bool("write-seeds", false, "make testdata/*.sqfs")

// seedObjects is the tree that is in all of testdata/*.sqfs.
func seedObjects() objects {
	repeated := bytes.Repeat([]byte("sconce "), 1300)
	return objects{
		".":        {Type: Dir, Mode: 0o755, Time: 12345},
		"dir":      {Type: Dir, Mode: 0o755, Time: 1},
		"dir/file": {Type: Regular, Mode: 0o644, Time: 2, Data: repeated, Xattrs: map[string]string{"user.x": "y"}},
		"dir/hard": {Same: "dir/file"},
		"dir/link": {Type: Symlink, Mode: 0o777, Time: 3, Target: "file"},
		"empty":    {Type: Regular, Mode: 0o600, UID: 1 << 31, Time: 4},
		"holes":    {Type: Regular, Mode: 0o600, GID: 7, Time: 5, Data: append(make([]byte, 8192), "end"...)},
		"null":     {Type: Char, Mode: 0o666, Time: 6, Major: 1, Minor: 3},
		"pipe":     {Type: Fifo, Mode: 0o666, Time: 6},
	}
}

// seedTools are the images in testdata: how each is made.
var seedTools = map[string]string{
	"gzip":        "mksquashfs -b 4K -nopad -comp gzip",
	"lzo":         "mksquashfs -b 4K -nopad -comp lzo",
	"xz":          "mksquashfs -b 4K -nopad -comp xz",
	"lz4":         "mksquashfs -b 4K -nopad -comp lz4 -no-fragments",
	"zstd":        "mksquashfs -b 4K -nopad -comp zstd -exports",
	"lzma":        "mksquashfs -b 4K -nopad -comp lzma",
	"stored":      "mksquashfs -b 4K -nopad -noI -noD -noF -noX",
	"tar2sqfs":    "tar2sqfs -b 4096 -B 1024 -c gzip --exportable",
	"tar2sqfs-xz": "tar2sqfs -b 8192 -B 1024 -c xz -X x86",
}

// TestSeeds reads the images of testdata, for which no other program is needed.
func TestSeeds(t *testing.T) {
	want := seedObjects()
	for name, tool := range seedTools {
		t.Run(name, func(t *testing.T) {
			at := filepath.Join("testdata", name+".sqfs")
			if *writeSeeds {
				words := strings.Fields(tool)
				image, err := os.ReadFile(packTar(t, want.tarOf(t), words[0], words[1:]...))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, image, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			r := openImage(t, at)
			got := readObjects(t, r)
			got.takeRoot(want)
			sameObjects(t, want, got)
			readAllWays(t, r, want)
		})
	}
}

// seeds returns the images of testdata.
func seeds(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for name := range seedTools {
		b, err := os.ReadFile(filepath.Join("testdata", name+".sqfs"))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = b
	}
	return all
}

// useImage does with an image what there is to do. All errors must say that the image is bad.
func useImage(t *testing.T, image []byte) {
	t.Helper()
	r, err := New(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		mustBlame(t, err)
		return
	}
	r.Info()
	left := &limitedWriter{4 << 20} // of all contents
	seen, total := 0, int64(0)
	mustBlame(t, r.Walk(func(name string, f *File) error {
		if seen++; seen > 5000 {
			return errEnough
		}
		_, err := f.Xattrs()
		mustBlame(t, err)
		if f.Type == Regular {
			total += f.Size
			_, err := f.Content().WriteTo(left)
			mustBlame(t, err)
			_, err = f.Content().ReadAt(make([]byte, 100), max(f.Size-50, 0))
			if !errors.Is(err, io.EOF) {
				mustBlame(t, err)
			}
		}
		found, err := r.Lookup(name, false)
		if err == nil && found.Type != f.Type {
			return fmt.Errorf("%q is a %v and a %v", name, found.Type, f.Type)
		}
		if !errors.Is(err, os.ErrNotExist) { // an index may hide what there is
			mustBlame(t, err)
		}
		return nil
	}))
	if total < 64<<20 {
		mustBlame(t, r.CheckData(t.Context()))
	}
}

var errEnough = errors.New("that is enough")

// limitedWriter takes so many bytes and no more.
type limitedWriter struct{ left int }

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errEnough
	}
	return len(p), nil
}

// TestDamagedSeeds changes the bytes of every image of testdata, one after the other, and cuts it off there.
func TestDamagedSeeds(t *testing.T) {
	places := 1000 // that are damaged in each
	if tooltest.Less(t) {
		places = 50
	}
	for name, image := range seeds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := 0; i < len(image); i += 1 + len(image)/places {
				useImage(t, image[:i])
				for _, with := range []byte{image[i] ^ 1, image[i] ^ 0x80, 0xff} {
					bad := bytes.Clone(image)
					bad[i] = with
					useImage(t, bad)
				}
			}
		})
	}
}

// FuzzReader walks and reads whatever is given.
func FuzzReader(f *testing.F) {
	for _, image := range seeds(f) {
		f.Add(image)
	}
	if _, err := exec.LookPath("mksquashfs"); err == nil {
		o := objects{".": {Type: Dir, Mode: 0o755}}
		for i := range 400 { // with an index
			o[fmt.Sprintf("a-file-with-some-name-%03d", i)] = object{Type: Regular, Data: []byte{byte(i % 3)}}
		}
		image, err := os.ReadFile(packTar(f, o.tarOf(f), "mksquashfs", "-nopad", "-noI", "-noX"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(image)
	}
	f.Fuzz(func(t *testing.T, image []byte) {
		if len(image) < 1<<20 {
			useImage(t, image)
		}
	})
}

// mustBlame fails the test for errors that do not say that the image is to blame.
func mustBlame(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, errEnough) {
		t.Fatalf("%v does not wrap ErrFormat", err)
	}
}
