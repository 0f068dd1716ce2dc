package source

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// ripen has files believed that have just been written.
func ripen(t *testing.T) {
	was := young
	t.Cleanup(func() { young = was })
	young = -time.Minute // a clock may be a little behind the file system's
}

// fileReader makes the same layer of any file, and counts.
type fileReader struct {
	st   *store.Store
	made int
}

func (r *fileReader) read(t *testing.T, name, what string, meanwhile func()) (layer.Descriptor, error) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return fileLayer(t.Context(), r.st, f, what, func(ctx context.Context) (layer.Descriptor, error) {
		r.made++
		meanwhile()
		w, err := layer.NewWriter(ctx, r.st, layer.Options{})
		if err != nil {
			return layer.Descriptor{}, err
		}
		defer w.Abort()
		return w.Close()
	})
}

// A layer of a file is made once, for as long as nobody has touched the file and the layer is there.
func TestFileLayer(t *testing.T) {
	ripen(t)
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	when := time.Unix(1e9, 0)
	r := &fileReader{st: storetest.New(t)}
	nothing := func() {}
	var last layer.Descriptor
	for _, step := range []struct {
		name string
		do   func()
		what string
		made int // in all
	}{
		{"first", nothing, "a", 1},
		{"again", nothing, "a", 1},
		{"something else of it", nothing, "b", 2},
		{"again both", nothing, "a", 2},
		{"other content, as long and as old", func() {
			write("two")
			if err := os.Chtimes(name, when, when); err != nil {
				t.Fatal(err)
			}
		}, "a", 3},
		{"another file in its place", func() {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			write("two")
		}, "a", 4},
		{"without the layer", func() {
			blob, err := r.st.BlobPath(last.Digest)
			if err == nil {
				err = os.Remove(blob)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, "a", 5},
		{"with it again", nothing, "a", 5},
	} {
		step.do()
		d, err := r.read(t, name, step.what, nothing)
		if err != nil || d.Digest == "" || r.made != step.made {
			t.Fatalf("%s: %v, %v; it was read %d times, not %d", step.name, d, err, r.made, step.made)
		}
		last = d
	}

	renamed := func() {
		if err := os.Link(name, name+"2"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.read(t, name, "c", renamed); err != nil {
		t.Errorf("of a file that gets another name meanwhile: %v", err)
	}
	if _, err := r.read(t, name, "c", func() { write("three") }); err == nil || !strings.Contains(err.Error(), "has changed while it was read") {
		t.Errorf("of a file that changes meanwhile: %v", err)
	}
	young = time.Hour
	for range 2 {
		if _, err := r.read(t, name, "d", nothing); err != nil {
			t.Fatal(err)
		}
	}
	if r.made != 9 {
		t.Errorf("a file that has just been written was believed: read %d times, not 9", r.made)
	}
}

// imports are the events with which imports end.
type imports struct{ done []progress.Event }

func (i *imports) Emit(e progress.Event) {
	if e.Verb == "import" && e.Kind == progress.Done {
		i.done = append(i.done, e)
	}
}

// Each kind of file that becomes one layer is read once, whatever its name.
func TestFilesAreReadOnce(t *testing.T) {
	tooltest.Path(t, "mksquashfs")
	ripen(t)
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "etc", "motd"), bytes.Repeat([]byte("hello\n"), 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	sqsh := makeSquashfs(t, tree, filepath.Join(dir, "image.sqsh"))
	packed := makeSIF(t, filepath.Join(dir, "image.sif"), sqsh, sif.Spec{Arch: "amd64"})
	tarball := filepath.Join(dir, "image.tar")
	registrytest.Run(t, "tar", "-C", tree, "-cf", tarball, ".")
	st := storetest.New(t)
	for n, ref := range []Ref{{Transport: Squashfs, Value: sqsh}, {Transport: SIF, Value: packed}, {Transport: Tar, Value: tarball}} {
		other := filepath.Join(dir, "renamed")
		if err := os.Link(ref.Value, other); err != nil {
			t.Fatal(err)
		}
		o := Options{Store: st}
		o.Otherwise.OS, o.Otherwise.Architecture = "linux", "amd64"
		var digests []string
		read := &imports{}
		for _, name := range []string{ref.Value, other} {
			img, err := Open(progress.With(t.Context(), read), Ref{Transport: ref.Transport, Value: name}, o)
			if err != nil {
				t.Fatal(err)
			}
			layers, err := img.Layers()
			if err != nil || len(layers) != 1 {
				t.Fatal(len(layers), err)
			}
			d, err := layers[0].Digest()
			if err != nil {
				t.Fatal(err)
			}
			digests = append(digests, d.String())
		}
		if digests[0] != digests[1] {
			t.Errorf("%s: %v", ref.Transport, digests)
		}
		if len(read.done) != 2 || read.done[0].Current == 0 || read.done[0].Total == 0 || read.done[1].Current >= read.done[0].Current {
			t.Errorf("%s: the first time and the second are told as %+v", ref.Transport, read.done)
		}
		keys, err := st.Keys(store.KindFileLayer)
		if err != nil || len(keys) != n+1 {
			t.Errorf("%s: %d records, %v", ref.Transport, len(keys), err)
		}
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
	}
}
