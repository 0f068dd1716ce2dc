package fileop

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/layer"
)

// at looks a path up as the kernel does.
func at(t *testing.T, n fuse.Node, p string) fuse.Node {
	t.Helper()
	for name := range strings.SplitSeq(p, "/") {
		next, err := n.Lookup(name)
		if err != nil {
			t.Fatalf("%s of %s: %v", name, p, err)
		}
		n = next
	}
	return n
}

// A context that is served shows what a copy would be: what the ignore file leaves, root's files, one time, no setuid bits.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "src/deep"), 0o755))
	must(os.WriteFile(filepath.Join(dir, ".dockerignore"), []byte("src/secret\n"), 0o644))
	must(os.WriteFile(filepath.Join(dir, "src/secret"), []byte("x"), 0o644))
	must(os.WriteFile(filepath.Join(dir, "src/file"), []byte("content"), 0o640))
	must(os.Chmod(filepath.Join(dir, "src/file"), 0o640|os.ModeSetuid))
	must(os.Link(filepath.Join(dir, "src/file"), filepath.Join(dir, "src/deep/same")))
	must(os.Symlink("file", filepath.Join(dir, "src/link")))
	must(os.Symlink("src", filepath.Join(dir, "way")))
	c, err := OpenContext(dir, "")
	must(err)
	defer c.Close()
	root, err := c.Serve("way", layer.DefaultModTime)
	must(err)
	list, err := root.ReadDir()
	must(err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	if want := []string{"deep", "file", "link"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	if _, err := root.Lookup("secret"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an ignored file: %v", err)
	}
	file, same := at(t, root, "file"), at(t, root, "deep/same")
	want := fuse.Attr{Ino: file.Attr().Ino, Mode: unix.S_IFREG | 0o640, Links: 2, Size: 7, ModTime: layer.DefaultModTime}
	if got := file.Attr(); got != want || same.Attr() != want {
		t.Errorf("%+v and %+v, want %+v", got, same.Attr(), want)
	}
	if to, err := at(t, root, "link").Readlink(); to != "file" || err != nil {
		t.Errorf("link to %q, %v", to, err)
	}
	content, err := file.Content()
	must(err)
	if b, err := io.ReadAll(io.NewSectionReader(content, 3, 100)); string(b) != "tent" || err != nil {
		t.Errorf("content %q, %v", b, err)
	}
	must(os.WriteFile(filepath.Join(dir, "src/file"), []byte("another"), 0o640))
	must(os.Chtimes(filepath.Join(dir, "src/file"), layer.DefaultModTime, layer.DefaultModTime))
	if _, err := content.ReadAt(make([]byte, 1), 0); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("a file that changed: %v", err)
	}
	if _, err := c.Serve("nothing", layer.DefaultModTime); err == nil {
		t.Error("no error for what is not there")
	}
}
