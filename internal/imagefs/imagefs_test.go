package imagefs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

func TestMain(m *testing.M) {
	sandbox.Init() // the sandbox starts this very binary again
	os.Exit(m.Run())
}

// entry is a file of a layer under test.
type entry struct {
	tar.Header
	data []byte
}

func dir(name string, mode int64) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, ModTime: time.Unix(1e9, 0)}}
}

func regular(name, data string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(1e9+7, 0)}, []byte(data)}
}

func link(kind byte, name, target string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: kind, Linkname: target, Mode: 0o777, ModTime: time.Unix(5, 0)}}
}

// with changes a header.
func (e entry) with(change func(*tar.Header)) entry {
	change(&e.Header)
	return e
}

// imageOf makes an image of busybox and layers on top of it.
func imageOf(t *testing.T, layers ...[]entry) (*store.Store, []layer.Descriptor) {
	t.Helper()
	if err := fuse.Check(); err != nil {
		tooltest.Missing(t, "%v", err)
	}
	busybox := tooltest.Path(t, "busybox")
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	base := []entry{dir("bin", 0o755), regular("bin/busybox", string(program)).with(func(h *tar.Header) { h.Mode = 0o755 })}
	for _, name := range []string{"sh", "cat", "ls", "find", "sort", "stat", "sha256sum", "sleep"} {
		base = append(base, link(tar.TypeSymlink, "bin/"+name, "busybox"))
	}
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		st.Close()
		_ = store.RemoveAll(st.Dir()) // what was unpacked may not be removable otherwise
	})
	var made []layer.Descriptor
	for i, entries := range append([][]entry{base}, layers...) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range entries {
			if err := w.WriteHeader(&e.Header); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(e.data); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		o := layer.Options{ModTime: layer.KeepTimes}
		if i%2 == 1 {
			o.Compression = layer.Zstd
		}
		d, err := layer.FromTar(t.Context(), st, &b, o)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, d)
	}
	return st, made
}

// options run a script in a sandbox.
func options(t *testing.T, script string) sandbox.Options {
	t.Helper()
	return sandbox.Options{Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin"}, ScratchDir: t.TempDir()}
}

// served is options with an image's files from its layers.
func served(t *testing.T, st *store.Store, layers []layer.Descriptor, script string) sandbox.Options {
	t.Helper()
	o := options(t, script)
	var err error
	if o.Tree, err = Open(st, layers, sandbox.Unpacked()); err != nil || o.Tree == nil {
		t.Fatalf("the layers cannot be read: %v", err)
	}
	return o
}

func run(t *testing.T, o sandbox.Options) string {
	t.Helper()
	var out, problems bytes.Buffer
	o.Stdout, o.Stderr = &out, &problems
	if code, err := sandbox.Run(t.Context(), o); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, problems.String())
	}
	return out.String()
}

// describe lists all that stat(1) says of the files of the image, and the sums of their contents. The numbers of directories' names
// are a file system's own affair, and so are their sizes.
const describe = `cd /; busybox find bin data deep fresh -type d -exec busybox stat -c "%n %f %u:%g %Y" {} + | sort
busybox find bin data deep fresh ! -type d -exec busybox stat -c "%n %f %u:%g %Y %h %s %t:%T %N" {} + | sort
busybox find bin data deep fresh -type f -exec sha256sum {} + | sort
for f in data/large data/other\ name; do stat -c %i $f; done | busybox uniq | busybox wc -l`

// Through the layers, everything is as it is when they are unpacked.
func TestSameAsUnpacked(t *testing.T) {
	large := strings.Repeat("all work and no play ", 300_000) // more than a chunk
	owned := func(h *tar.Header) { h.Uid, h.Gid, h.Mode = 33, 70000, 0o2750 }
	st, layers := imageOf(
		t, []entry{
			dir("data", 0o755), regular("data/gone", "x"), regular("data/kept", "kept"), regular("data/large", large),
			regular("data/setuid", "s").with(func(h *tar.Header) { h.Mode, h.Uid = 0o4511, 12 }), regular("data/empty", ""),
			regular("data/unreadable", "u").with(func(h *tar.Header) { h.Mode = 0 }),
			regular("data/color", "c").with(func(h *tar.Header) {
				h.PAXRecords = map[string]string{"SCHILY.xattr.user.color": "blue", "SCHILY.xattr.user.overlay.opaque": "y"}
			}),
			link(tar.TypeSymlink, "data/link", "../data/kept"), link(tar.TypeSymlink, "data/dangling", strings.Repeat("long/", 300)),
			link(tar.TypeFifo, "data/pipe", ""),
			{Header: tar.Header{Name: "data/null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3}},
			dir("fresh", 0o700), regular("fresh/old", "old"), dir("deep", 0o755), dir("deep/er", 0o701).with(owned), regular("deep/er/file with spaces", "deep"),
			dir("replaced", 0o755), regular("replaced/by a file", ""),
		}, []entry{
			regular("data/.wh.gone", ""), link(tar.TypeSymlink, "data/new", "large"),
			dir("fresh", 0o711), regular("fresh/.wh..wh..opq", ""), regular("fresh/new", "new"), regular("replaced", "a file"),
		}, []entry{
			dir("data", 0o775).with(owned), regular("data/again", "first name"), link(tar.TypeLink, "data/other name", "data/again"),
		})
	o := options(t, describe)
	var err error
	if o.Layers, err = sandbox.Layers(t.Context(), st, layers); err != nil {
		t.Fatal(err)
	}
	want := strings.Split(run(t, o), "\n")
	s := served(t, st, layers, describe)
	if got := strings.Split(run(t, s), "\n"); len(want) < 30 || len(got) != len(want) {
		t.Errorf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	} else {
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("line %d: %q, want %q", i, got[i], want[i])
			}
		}
	}
	wantXattrs(t, s.Tree)
}

// wantXattrs looks at the attributes of two files.
func wantXattrs(t *testing.T, root fuse.Node) {
	t.Helper()
	data, err := root.Lookup("data")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"color": "map[user.color:blue]", "kept": "map[]"} {
		f, err := data.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.Xattrs(); err != nil || fmt.Sprint(got) != want {
			t.Errorf("attributes of %s: %v, %v; want %s", name, got, err, want)
		}
	}
}

// Two sandboxes at once read through one tree, and what one writes the other does not see.
func TestTwoAtOnce(t *testing.T) {
	st, layers := imageOf(t, []entry{dir("data", 0o755), regular("data/large", strings.Repeat("0123456789abcdef", 1<<19))})
	o := served(t, st, layers, `test ! -e /data/mine && echo $$ >/data/mine && sha256sum /data/large`)
	var all sync.WaitGroup
	answers := make([]string, 2)
	for i := range answers {
		own := o
		own.ScratchDir = t.TempDir()
		all.Go(func() {
			var out bytes.Buffer
			own.Stdout = &out
			if code, err := sandbox.Run(t.Context(), own); code != 0 || err != nil {
				t.Errorf("exit code %d, %v", code, err)
			}
			answers[i] = out.String()
		})
	}
	all.Wait()
	if answers[0] != answers[1] || !strings.HasSuffix(answers[0], "/data/large\n") {
		t.Errorf("%q", answers)
	}
}

// warnings are what a run warned of.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) Emit(e progress.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, fmt.Sprintf("%+v", e))
}

// A layer that has been damaged since it was made gives an error to who reads what is damaged, and a word of what to do.
func TestDamagedLayer(t *testing.T) {
	st, layers := imageOf(t, []entry{dir("data", 0o755), regular("data/file", strings.Repeat("0123456789abcdef", 1000))})
	name, err := st.BlobPath(layers[1].Digest)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 4
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	o := served(t, st, layers, `cat /data/file; ls /data`)
	var out, problems bytes.Buffer
	o.Stdout, o.Stderr = &out, &problems
	var told warnings
	if code, err := sandbox.Run(progress.With(t.Context(), &told), o); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	if out.String() != "file\n" || !strings.Contains(problems.String(), "Input/output error") {
		t.Errorf("output %q, errors %q", out.String(), problems.String())
	}
	all := strings.Join(told.text, "\n")
	if !strings.Contains(all, layers[1].Digest.Short()) || !strings.Contains(all, "sconce cache verify --remove") {
		t.Errorf("warnings: %s", all)
	}
}

// An image with a layer from elsewhere is not read from its layers.
func TestForeignLayer(t *testing.T) {
	st, layers := imageOf(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.Close()
	digest, err := st.PutBlob(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	tree, err := Open(st, append(layers, layer.Descriptor{Digest: digest, Size: int64(b.Len())}), sandbox.Unpacked())
	if tree != nil || err != nil {
		t.Errorf("%v, %v", tree, err)
	}
}

// Contents are read without a mount too, by kinds.
func TestContents(t *testing.T) {
	st, layers := imageOf(t, []entry{dir("data", 0o755), regular("data/file", "content"), link(tar.TypeSymlink, "data/link", "file")})
	root, err := Open(st, layers, sandbox.Unpacked())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Content(); err != unix.EISDIR { //nolint:errorlint // it is for the kernel
		t.Errorf("content of a directory: %v", err)
	}
	data, err := root.Lookup("data")
	if err != nil {
		t.Fatal(err)
	}
	l, err := data.Lookup("link")
	if err != nil {
		t.Fatal(err)
	}
	if target, err := l.Readlink(); target != "file" || err != nil {
		t.Errorf("link: %q, %v", target, err)
	}
	f, err := data.Lookup("file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Readlink(); err != unix.EINVAL { //nolint:errorlint // it is for the kernel
		t.Errorf("target of a file: %v", err)
	}
	c, err := f.Content()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.NewSectionReader(c, 0, 100)); string(got) != "content" || err != nil {
		t.Errorf("content %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(st.Dir(), "trees-v1")); err != nil {
		t.Error(err)
	}
}
