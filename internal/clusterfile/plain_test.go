package clusterfile

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// writePlain writes the tree of an image and nothing else.
func writePlain(t *testing.T, st *store.Store, in Input) written {
	t.Helper()
	in.Plain = true
	w := written{name: filepath.Join(t.TempDir(), "plain.sqsh")}
	f, err := os.Create(w.name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := WriteSquashfs(t.Context(), f, in, Options{Store: st, Squashfs: squashfs.DefaultOptions()}); err != nil {
		t.Fatal(err)
	}
	if w.data, err = os.ReadFile(w.name); err != nil {
		t.Fatal(err)
	}
	return w
}

// everything describes every entry, the root and files that runtimes look for too.
func (w written) everything(t *testing.T) map[string]string {
	t.Helper()
	tree, first := map[string]string{}, map[uint32]string{}
	err := w.reader(t).Walk(func(path string, f *squashfs.File) error {
		if name, ok := first[f.Number]; ok {
			tree[path] = "= " + name
			return nil
		}
		first[f.Number] = path
		text, err := describe(f)
		tree[path] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// A plain file has the tree of the layers to the last entry, also where runtimes look for files, and is the same whatever was
// compressed for other files before.
func TestPlainTree(t *testing.T) {
	st := newStore(t)
	layers := madeHere(t, st)
	var opened []string
	in := inputOf(st, &opened, layers...)
	want := maps.Clone(sampleTree())
	want["etc/environment"] = "file 644 0:0 x1 " + sumOf(noise(4, large)) // the image's own
	first := writePlain(t, st, in)
	got := first.everything(t)
	delete(got, ".") // no layer says anything of it
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the tree differs (-want +got):\n%s", diff)
	}
	writeTo(t, st, Options{}, layers...)
	if again := writePlain(t, st, in); !bytes.Equal(first.data, again.data) {
		t.Error("a plain file after another one of the image differs")
	}
}

// A tar is written as it is: every entry with its attributes, the root's too, and no other.
func TestPlainTar(t *testing.T) {
	st := newStore(t)
	objects := []object{
		with(dir("."), func(e *layer.Entry) { e.Mode, e.UID = 0o750, 7 }),
		dir("deep"), file("deep/data", noise(1, large)), file("deep/empty", nil), symlink("deep/link", "../no/where"),
		hardLink("twin", "deep/data"), special("pipe", layer.Fifo, 0, 0),
		with(file("own", prose(2, small)), func(e *layer.Entry) { e.GID, e.Xattrs = 9, map[string]string{"user.k": "v"} }),
	}
	name := filepath.Join(t.TempDir(), "tree.tar")
	if err := os.WriteFile(name, tarOf(t, objects...), 0o644); err != nil {
		t.Fatal(err)
	}
	o := source.Options{Store: st}
	if _, err := source.OpenTarRoot(t.Context(), source.Ref{Transport: source.Tar, Value: name}, o); err == nil || !strings.Contains(err.Error(), "architecture") {
		t.Errorf("without a platform: %v", err)
	}
	o.Otherwise.OS, o.Otherwise.Architecture = "linux", "amd64"
	root, err := source.OpenTarRoot(t.Context(), source.Ref{Transport: source.Tar, Value: name}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w := writePlain(t, st, FromTar(root, "tree.tar"))
	want := map[string]string{
		".": "dir 750 7:0", "deep": "dir 755 0:0", "deep/data": "file 644 0:0 x2 " + sumOf(noise(1, large)), "twin": "= deep/data",
		"deep/empty": "file 644 0:0 x1 " + sumOf(nil), "deep/link": "-> ../no/where", "pipe": "fifo 660 0:6",
		"own": "file 644 0:9 x1 " + sumOf(prose(2, small)) + ` map["user.k":"v"]`,
	}
	if diff := cmp.Diff(want, w.everything(t)); diff != "" {
		t.Errorf("the tree differs (-want +got):\n%s", diff)
	}
}
