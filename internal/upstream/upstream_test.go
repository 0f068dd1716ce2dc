package upstream

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// world is a store, and a directory with sources.
type world struct {
	*testing.T
	Options
}

func newWorld(t *testing.T) world {
	t.Helper()
	st := storetest.New(t)
	return world{t, Options{Store: st, Fetch: fetch.New(st, fetch.Options{}), Dir: t.TempDir()}}
}

func (w world) write(name string, data []byte) store.Digest {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.Dir, name), data, 0o644); err != nil {
		w.Fatal(err)
	}
	return store.DigestOf(data)
}

// pin pins a source that there must be.
func (w world) pin(r Request) *Pinned {
	w.Helper()
	r.Name = "it"
	p, err := Pin(w.Context(), r, w.Options)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// files are those of a layer: their type, permissions, owner and content or target.
func (w world) files(p *Pinned, patches ...Patch) map[string]string {
	w.Helper()
	all, _, err := w.layer(p, patches...)
	if err != nil {
		w.Fatal(err)
	}
	return all
}

func (w world) layer(p *Pinned, patches ...Patch) (map[string]string, store.Digest, error) {
	w.Helper()
	d, err := p.Layer(w.Context(), "it", "/build/it", patches, w.Options, layer.Options{})
	if err != nil {
		return nil, "", err
	}
	tree, err := image.NewTree(w.Context(), w.Store, []layer.Descriptor{d})
	if err != nil {
		w.Fatal(err)
	}
	all := make(map[string]string)
	err = tree.Walk(func(n *image.Node) error {
		what := fmt.Sprintf("%v %o %d:%d", n.Type, n.Mode, n.UID, n.GID)
		switch n.Type {
		case layer.Regular:
			data, err := tree.ReadFile(n.Path, 1<<20)
			if err != nil {
				return err
			}
			what = fmt.Sprintf("%o %d:%d %s", n.Mode, n.UID, n.GID, data)
		case layer.Symlink:
			what = "-> " + n.Link
		case layer.Dir:
			return nil
		}
		if !n.ModTime.Equal(layer.DefaultModTime) {
			w.Errorf("%s has the time %v", n.Path, n.ModTime)
		}
		all[strings.TrimPrefix(n.Path, "build/it/")] = what
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return all, d.DiffID, nil
}

// tarOf packs entries; a name that ends in / is a directory, a text "-> x" a link, "=> x" a hard link.
func tarOf(t testing.TB, entries ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Name: e[0], Mode: 0o750, Uid: 77, Size: int64(len(e[1])), Typeflag: tar.TypeReg}
		if to, ok := strings.CutPrefix(e[1], "-> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, to, 0
		} else if to, ok := strings.CutPrefix(e[1], "=> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, to, 0
		} else if strings.HasSuffix(e[0], "/") {
			h.Typeflag = tar.TypeDir
		} else if e[1] == "fifo" {
			h.Typeflag, h.Size = tar.TypeFifo, 0
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte(e[1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tool runs a program on some input.
func tool(t testing.TB, input []byte, name string, args ...string) []byte {
	t.Helper()
	tooltest.Path(t, name)
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

func zipOf(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range [][2]string{{"it-1/", ""}, {"it-1/run.sh", "#!/bin/sh\n"}, {"it-1/dir/a.c", "a\n"}, {"it-1/link", "dir/a.c"}} {
		h := &zip.FileHeader{Name: e[0], Method: zip.Deflate}
		h.SetMode(0o755)
		if e[0] == "it-1/link" {
			h.SetMode(fs.ModeSymlink | 0o777)
		}
		f, err := w.CreateHeader(h)
		if err == nil {
			_, err = f.Write([]byte(e[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every form of archive comes to the same files, without the directory at its top.
func TestArchives(t *testing.T) {
	w := newWorld(t)
	plain := tarOf(t, [2]string{"it-1/", ""}, [2]string{"it-1/run.sh", "#!/bin/sh\n"}, [2]string{"./it-1/dir/a.c", "a\n"}, [2]string{"it-1/link", "-> dir/a.c"})
	want := map[string]string{"run.sh": "755 0:0 #!/bin/sh\n", "dir/a.c": "755 0:0 a\n", "link": "-> dir/a.c"}
	for name, data := range map[string][]byte{
		"it.tar": plain, "it.tar.gz": tool(t, plain, "gzip", "-c"), "it.tar.bz2": tool(t, plain, "bzip2", "-c"), "it.tar.xz": tool(t, plain, "xz", "-c"),
		"it.tar.zst": tool(t, plain, "zstd", "-c"), "it.zip": zipOf(t),
	} {
		p := w.pin(Request{URL: name, SHA256: w.write(name, data)})
		if diff := cmp.Diff(want, w.files(p)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if p.Files[0].URL != name || p.Files[0].Size != int64(len(data)) {
			t.Errorf("%s is pinned as %+v", name, p.Files[0])
		}
	}
	several := tarOf(t, [2]string{"a", "1"}, [2]string{"b/c", "2"}, [2]string{"b/d", "=> b/c"})
	w.write("flat.tar", several)
	if diff := cmp.Diff(map[string]string{"a": "755 0:0 1", "b/c": "755 0:0 2", "b/d": "755 0:0 2"}, w.files(w.pin(Request{URL: "flat.tar"}))); diff != "" {
		t.Errorf("without a top (-want +got):\n%s", diff)
	}
}

func TestHostileArchives(t *testing.T) {
	w := newWorld(t)
	good := tool(t, tarOf(t, [2]string{"a/b", strings.Repeat("text", 1000)}), "gzip", "-c")
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"out":             {tarOf(t, [2]string{"it/../../x", "1"}), "leads out"},
		"a link out":      {tarOf(t, [2]string{"it/a", "1"}, [2]string{"it/b", "=> ../../etc/passwd"}), "leads out"},
		"a pipe":          {tarOf(t, [2]string{"it/a", "fifo"}), "neither file"},
		"a whiteout":      {tarOf(t, [2]string{"it/.wh.etc", "x"}), ".wh."},
		"no archive":      {[]byte("<html>not found</html>"), "no archive"},
		"a cut one":       {good[:len(good)/2], "archive"},
		"through a link":  {tarOf(t, [2]string{"it/l", "-> /"}, [2]string{"it/l/x", "1"}), "it/l"},
		"a broken zip":    {[]byte("PK\x03\x04broken"), "archive"},
		"an empty source": {nil, "no archive"},
	} {
		t.Run(name, func(t *testing.T) {
			w := world{t, w.Options}
			p := w.pin(Request{URL: "it.tar", SHA256: w.write("it.tar", test.data)})
			files, _, err := w.layer(p)
			if name == "through a link" { // which is replaced by a directory, or refused, and never followed
				if _, ok := files["l/x"]; err == nil && !ok {
					t.Errorf("files %v", files)
				}
				return
			}
			if name == "an empty source" && err == nil && len(files) == 0 {
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q; files %v", err, test.want, files)
			}
		})
	}
}

func TestWrongHash(t *testing.T) {
	w := newWorld(t)
	w.write("it.tar", tarOf(t, [2]string{"a", "1"}))
	_, err := Pin(t.Context(), Request{Name: "it", URL: "it.tar", SHA256: store.DigestOf([]byte("other"))}, w.Options)
	var mismatch *store.MismatchError
	if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "source it") {
		t.Error(err)
	}
}

const fix = "--- a/it.c\n+++ b/it.c\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n"

// Patches are applied in their order; what they say besides changes nothing.
func TestPatches(t *testing.T) {
	w := newWorld(t)
	p := w.pin(Request{URL: "it.tar", SHA256: w.write("it.tar", tarOf(t, [2]string{"it/it.c", "one\ntwo\n"}))})
	second := strings.NewReplacer("-two", "-TWO", "+TWO", "+three").Replace(fix)
	files, first, err := w.layer(p, Patch{"1.patch", []byte(fix)}, Patch{"2.patch", []byte(second)})
	if err != nil || files["it.c"] != "755 0:0 one\nthree\n" {
		t.Errorf("%v, %v", files, err)
	}
	_, again, err := w.layer(p, Patch{"1.patch", []byte("A comment.\n\n" + fix)}, Patch{"2.patch", []byte(second)})
	if err != nil || again != first {
		t.Errorf("a comment makes another layer: %v, %v and %v", err, first, again)
	}
	_, _, err = w.layer(p, Patch{"1.patch", []byte(strings.Replace(fix, "-two", "-2", 1))})
	for _, want := range []string{"source it", "1.patch", "it.c", "hunk 1 of 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// A source package is laid down as dpkg-source does: its own debian, further tars, and its patches, at other lines than they say.
func TestSourcePackage(t *testing.T) {
	w := newWorld(t)
	file := func(name string, data []byte) File {
		return File{Name: name, URL: name, Size: int64(len(data)), SHA256: w.write(name, data)}
	}
	moved := strings.Replace(fix, "@@ -1,2 +1,2 @@", "@@ -7,2 +7,2 @@", 1)
	files := []File{
		file("it_1-2.dsc", []byte("Format: 3.0 (quilt)\n")),
		file("it_1.orig.tar.xz", tool(t, tarOf(t, [2]string{"it-1/it.c", "zero\none\ntwo\n"}, [2]string{"it-1/debian/old", "x"}, [2]string{"it-1/sub/old", "x"}), "xz", "-c")),
		file("it_1.orig-sub.tar.gz", tool(t, tarOf(t, [2]string{"other/in.c", "in\n"}), "gzip", "-c")),
		file("it_1-2.debian.tar.xz", tool(t, tarOf(t, [2]string{"debian/rules", "rules\n"}, [2]string{"debian/patches/series", "# order\nfix.patch -p1\n"}, [2]string{"debian/patches/fix.patch", moved}), "xz", "-c")),
	}
	w.Ask = func(context.Context, string) ([]File, string, error) { return files, "1:1-2", nil }
	p := w.pin(Request{Debian: "it"})
	if p.Debian != "it=1:1-2" {
		t.Errorf("pinned as %q", p.Debian)
	}
	got := w.files(p)
	delete(got, "debian/patches/series")
	delete(got, "debian/patches/fix.patch")
	want := map[string]string{"it.c": "755 0:0 zero\none\nTWO\n", "sub/in.c": "755 0:0 in\n", "debian/rules": "755 0:0 rules\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A commit of a lock that somebody has edited is a word of git's command line.
func TestCommitIsAHash(t *testing.T) {
	for _, commit := range []string{"", "abc", "--pathspec-from-file=/etc/passwd", "main", strings.Repeat("A", 40)} {
		p := Pinned{Git: "https://example.org/x", Commit: commit, Files: []File{{Name: "x.tar", SHA256: store.DigestOf(nil)}}}
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), "not the hash of a commit") {
			t.Errorf("%q: %v", commit, err)
		}
	}
}
