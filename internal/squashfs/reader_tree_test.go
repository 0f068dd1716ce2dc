package squashfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/tooltest"
)

// object is what a test puts into an image and expects to find.
type object struct {
	Type         Type
	Mode         uint16
	UID, GID     uint32
	Time         int64 // seconds
	Data         []byte
	Target       string
	Major, Minor uint32
	Xattrs       map[string]string
	Same         string // hard link: the name that sorts first
}

// objects are the objects of a tree by path; a hard link has nothing but Same.
type objects map[string]object

// sampleText is text that compresses well, sampleNoise does not.
func sampleText(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d: the quick brown fox jumps over the lazy dog %d times\n", i, i*i%977)
	}
	return b.Bytes()[:n]
}

func sampleNoise(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// sampleObjects is a tree with everything that the format has, as far as a tar file can say it. Without odd, all names are such
// that other tools can list them.
func sampleObjects(odd bool) objects {
	file := func(data []byte) object { return object{Type: Regular, Mode: 0o644, Time: 1e9, Data: data} }
	holes := append(append(sampleText(200<<10), make([]byte, 1<<20)...), sampleNoise(100, 9)...)
	o := objects{
		".":            {Type: Dir, Mode: 0o755, Time: 12345},
		"empty":        {Type: Dir, Mode: 0o1777, Time: 0},
		"bin":          {Type: Dir, Mode: 0o750, UID: 1000, GID: 100, Time: 1<<32 - 1},
		"bin/su":       {Type: Regular, Mode: 0o4755, Time: 1 << 31, Data: sampleNoise(10, 1)},
		"bin/last":     file(nil),
		"bin/zz":       {Same: "bin/su"},
		"zz":           {Same: "bin/su"},
		"one":          file([]byte("1")),
		"page":         file(sampleText(4096)),
		"block":        file(sampleText(128 << 10)),
		"block+1":      file(sampleText(128<<10 + 1)),
		"large":        file(sampleText(1<<20 + 77)),
		"noise":        file(sampleNoise(300_000, 2)),
		"copy":         file(sampleNoise(300_000, 2)),
		"zeros":        file(make([]byte, 300_000)),
		"holes":        file(holes),
		"null":         {Type: Char, Mode: 0o666, Time: 1, Major: 1, Minor: 3},
		"disk":         {Type: Block, Mode: 0o660, GID: 6, Time: 1, Major: 259, Minor: 70_000},
		"pipe":         {Type: Fifo, Mode: 0o600, Time: 1},
		"nobody":       {Type: Regular, Mode: 0, UID: 1<<32 - 2, GID: 1<<31 + 5, Time: 1, Data: []byte("?")},
		"link":         {Type: Symlink, Mode: 0o777, Time: 1, Target: "bin/su"},
		"absolute":     {Type: Symlink, Mode: 0o777, Time: 1, Target: "/bin"},
		"dangling":     {Type: Symlink, Mode: 0o777, Time: 1, Target: strings.Repeat("none/../", 400) + "x"},
		"big":          {Type: Dir, Mode: 0o755, Time: 1},
		"attr":         {Type: Dir, Mode: 0o755, Time: 1, Xattrs: map[string]string{"user.dir": "of a directory"}},
		"attr/small":   {Type: Regular, Mode: 0o644, Time: 1, Data: []byte("x"), Xattrs: map[string]string{"user.a": "b", "user.c": ""}},
		"attr/cap":     {Type: Regular, Mode: 0o755, Time: 1, Xattrs: map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}},
		"attr/large":   {Type: Regular, Mode: 0o644, Time: 1, Xattrs: map[string]string{"user.large": string(sampleText(30_000)), "user.z": "z"}},
		"attr/shared":  {Type: Regular, Mode: 0o644, Time: 1, Xattrs: map[string]string{"user.large": string(sampleText(30_000))}},
		"attr/trusted": {Type: Regular, Mode: 0o644, Time: 1, Xattrs: map[string]string{"trusted.overlay.opaque": "y"}},
		"attr/link":    {Type: Symlink, Mode: 0o777, Time: 1, Target: "small", Xattrs: map[string]string{"security.selinux": "system_u:object_r:bin_t:s0"}},
		"attr/null":    {Type: Char, Mode: 0o666, Time: 1, Major: 1, Minor: 3, Xattrs: map[string]string{"user.dev": "1"}},
		"attr/pipe":    {Type: Fifo, Mode: 0o600, Time: 1, Xattrs: map[string]string{"user.pipe": "1"}},
	}
	for i := range 1500 {
		o[fmt.Sprintf("big/a-name-that-is-not-short-%05d", i*7)] = file([]byte(fmt.Sprint(i % 40)))
	}
	deep := "deep"
	for range 60 {
		o[deep] = object{Type: Dir, Mode: 0o700, Time: 5}
		deep += "/d"
	}
	if odd {
		o["new\nline and spaces"] = file([]byte("n"))
		o["not-utf8-\xff\xfe"] = file([]byte("u"))
		o[strings.Repeat("n", 255)] = file([]byte("long"))
		o["ünï"] = file([]byte("ü"))
	}
	return o
}

// names returns the paths in order, parents first.
func (o objects) names() []string {
	names := make([]string, 0, len(o))
	for name := range o {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// tarOf writes the tree as a tar file, which needs no privilege for any of it.
func (o objects) tarOf(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	kinds := map[Type]byte{Dir: tar.TypeDir, Regular: tar.TypeReg, Symlink: tar.TypeSymlink, Block: tar.TypeBlock, Char: tar.TypeChar, Fifo: tar.TypeFifo}
	for _, name := range o.names() {
		x := o[name]
		h := &tar.Header{
			Name: "./" + name, Mode: int64(x.Mode), Uid: int(x.UID), Gid: int(x.GID), ModTime: time.Unix(x.Time, 0),
			Linkname: x.Target, Devmajor: int64(x.Major), Devminor: int64(x.Minor), Size: int64(len(x.Data)), Format: tar.FormatPAX,
			PAXRecords: map[string]string{}, Typeflag: kinds[x.Type],
		}
		for key, value := range x.Xattrs {
			h.PAXRecords["SCHILY.xattr."+key] = value
		}
		if !utf8.ValidString(name) {
			h.Format = tar.FormatGNU
		}
		switch {
		case name == ".":
			h.Name = "./"
		case x.Same != "":
			h.Typeflag, h.Linkname = tar.TypeLink, "./"+x.Same
		case x.Type == Dir:
			h.Name += "/"
		}
		if h.Format == tar.FormatGNU {
			h.PAXRecords = nil
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(name, err)
		}
		if _, err := w.Write(x.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// takeRoot gives the root what mksquashfs does not take from a tar file.
func (o objects) takeRoot(from objects) {
	root, w := o["."], from["."]
	root.Time, root.UID, root.GID = w.Time, w.UID, w.GID
	o["."] = root
}

// packTar has a tool make an image of a tar file.
func packTar(t testing.TB, archive []byte, tool string, options ...string) string {
	t.Helper()
	tooltest.Path(t, tool)
	image := filepath.Join(t.TempDir(), "image.sqfs")
	args := append([]string{image, "--no-skip", "--quiet"}, options...)
	if tool == "mksquashfs" {
		args = append([]string{"-", image, "-tar", "-noappend", "-quiet", "-no-progress", "-root-mode", "755"}, options...)
	}
	cmd := exec.Command(tool, args...)
	cmd.Stdin = bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return image
}

// openImage opens an image until the test ends.
func openImage(t testing.TB, image string) *Reader {
	t.Helper()
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// readObjects reads a whole image, contents through WriteTo.
func readObjects(t testing.TB, r *Reader) objects {
	t.Helper()
	got := objects{}
	first := map[uint32]string{} // names by inode number
	links := map[uint32]uint32{}
	err := r.Walk(func(name string, f *File) error {
		if f.Type != Dir {
			if at, ok := first[f.Number]; ok {
				got[name] = object{Same: at}
				links[f.Number]--
				return nil
			}
			first[f.Number], links[f.Number] = name, f.Links-1
		}
		o := object{
			Type: f.Type, Mode: f.Mode, UID: f.UID, GID: f.GID, Time: f.ModTime.Unix(), Target: f.Target,
			Major: f.Major, Minor: f.Minor,
		}
		if f.Type == Regular {
			var b bytes.Buffer
			if n, err := f.Content().WriteTo(&b); err != nil || n != f.Size {
				return fmt.Errorf("%s: %d bytes: %w", name, n, err)
			}
			o.Data = b.Bytes()
		}
		var err error
		o.Xattrs, err = f.Xattrs()
		got[name] = o
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for number, n := range links {
		if n != 0 {
			t.Errorf("%s: %d names more than were found", first[number], n)
		}
	}
	return got
}

// sameObjects compares trees and says what differs without printing contents.
func sameObjects(t testing.TB, want, got objects) {
	t.Helper()
	for _, name := range got.names() {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is in the image only", name)
		}
	}
	for _, name := range want.names() {
		w, g := want[name], got[name]
		if !bytes.Equal(w.Data, g.Data) {
			t.Errorf("%q: other contents, %d bytes instead of %d", name, len(g.Data), len(w.Data))
		}
		w.Data, g.Data = nil, nil
		if diff := cmp.Diff(w, g); diff != "" {
			t.Errorf("%q: %s", name, diff)
		}
	}
}

// readAllWays reads what a test has found by other ways, and checks the whole.
func readAllWays(t *testing.T, r *Reader, want objects) {
	t.Helper()
	if err := r.Check(context.Background()); err != nil {
		t.Error("Check:", err)
	}
	if err := r.CheckData(context.Background()); err != nil {
		t.Error("CheckData:", err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range want.names() {
		o := want[name]
		for o.Same != "" {
			o = want[o.Same]
		}
		f, err := r.Lookup("/"+name, false)
		if err != nil {
			t.Fatal(err)
		}
		if f.Type != o.Type {
			t.Errorf("%s: looked up a %v, want %v", name, f.Type, o.Type)
		}
		if len(o.Data) < 1000 {
			continue
		}
		c := f.Content()
		for range 20 {
			from := random.IntN(len(o.Data))
			to := from + random.IntN(len(o.Data)-from)
			p := make([]byte, to-from)
			if n, err := c.ReadAt(p, int64(from)); n != len(p) || err != nil || !bytes.Equal(p, o.Data[from:to]) {
				t.Fatalf("%s: bytes %d to %d: %d, %v", name, from, to, n, err)
			}
		}
		from, _ := c.Seek(int64(random.IntN(len(o.Data))), io.SeekStart)
		if all, err := io.ReadAll(struct{ io.Reader }{c}); err != nil || !bytes.Equal(all, o.Data[from:]) {
			t.Fatalf("%s: read from %d: %d bytes, %v", name, from, len(all), err)
		}
		_, _ = c.Seek(from, io.SeekStart)
		var b bytes.Buffer
		if n, err := io.Copy(&b, c); err != nil || n != int64(b.Len()) || !bytes.Equal(b.Bytes(), o.Data[from:]) {
			t.Fatalf("%s: copied from %d: %d bytes, %v", name, from, n, err)
		}
	}
	for _, name := range []string{"none", "big/a", "big/zzz", "big/a-name-that-is-not-short-00001", "bin/none"} {
		if _, err := r.Lookup(name, true); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// unpackedDir unpacks a tree as far as an ordinary user can.
func unpackedDir(t *testing.T, o objects) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range o.names() {
		x, at := o[name], filepath.Join(dir, name)
		var err error
		switch {
		case x.Same != "":
			err = os.Link(filepath.Join(dir, x.Same), at)
		case x.Type == Dir:
			err = os.MkdirAll(at, 0o755)
		case x.Type == Regular:
			err = os.WriteFile(at, x.Data, 0o644)
		case x.Type == Symlink:
			err = os.Symlink(x.Target, at)
		}
		if err != nil {
			t.Fatal(path.Base(name), err)
		}
	}
	return dir
}
