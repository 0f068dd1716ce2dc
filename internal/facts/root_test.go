package facts

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// kernelRoot is a directory of this machine as a process sees it that has it for its root. The kernel itself resolves the names.
type kernelRoot struct{ dir string }

func (k kernelRoot) open(name string) (int, error) {
	dir, err := unix.Open(k.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	for {
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
		if err != unix.EAGAIN && err != unix.EINTR { // EAGAIN: something was renamed or mounted meanwhile, anywhere
			return fd, err
		}
	}
}

func (k kernelRoot) Resolve(name string) (string, error) {
	fd, err := k.open(name)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return absolute(strings.TrimPrefix(strings.TrimPrefix(real, k.dir), "/")), err
}

func (k kernelRoot) Open(name string) (elfx.Handle, error) {
	real, err := k.Resolve(name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(k.dir + real)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := os.Open(k.dir + real)
	return sizedHandle{f, info.Size()}, err
}

func (k kernelRoot) ReadDir(name string) ([]string, error) {
	real, err := k.Resolve(name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(k.dir + real)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// smallSystem makes a root file system with links of all kinds, a program of this machine and its libraries.
func smallSystem(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"usr/bin", "usr/lib/x", "usr/lib64", "opt/app/lib", "etc", "srv/deep/er"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string]string{
		"etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n/opt/app/../app/lib\n", "etc/empty": "", "opt/app/lib/plain": "text",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	copyProgram(t, dir)
	for name, target := range map[string]string{
		"bin": "usr/bin", "lib": "usr/lib", "lib64": "/usr/lib64", "srv/up": "../opt/app", "srv/deep/out": "../../../../../opt",
		"srv/abs": "/srv/deep/er/", "loop": "loop", "loop1": "loop2", "loop2": "srv/../loop1", "dangling": "nowhere/at/all",
		"opt/app/lib/through": "plain/..", "opt/to-file": "app/lib/plain", "root": "/", "opt/dot": ".", "opt/dots": "app/lib/../../..",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "usr/bin/sh"), filepath.Join(dir, "opt/app/sh2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "usr/bin/sh"), fs.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// copyProgram puts this machine's sh into a root, and what the dynamic loader says that it needs. Nothing may be written through
// a link that leads out of the root, to this machine's own libraries: os.Root sees to that.
func copyProgram(t *testing.T, dir string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	put := func(from, to string) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(root.MkdirAll(filepath.Dir(to), 0o755), root.WriteFile(to, data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	put("/bin/sh", "usr/bin/sh")
	out, err := exec.Command("ldd", "/bin/sh").Output()
	if err != nil {
		tooltest.Missing(t, "ldd /bin/sh: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		for _, field := range strings.Fields(line) {
			switch {
			case !strings.HasPrefix(field, "/"):
			case strings.Contains(field, "ld-"):
				put(field, "usr/"+strings.TrimPrefix(strings.TrimPrefix(field, "/"), "usr/"))
			default:
				put(field, "opt/app/lib/"+filepath.Base(field))
			}
		}
	}
}

// imageOf makes an image of layers.
func imageOf(t *testing.T, st *store.Store, layers ...layer.Descriptor) *image.Image {
	t.Helper()
	spec := image.Spec{}
	spec.Platform.OS, spec.Platform.Architecture = "linux", "amd64"
	for i, d := range layers {
		ix, err := layer.OpenIndex(t.Context(), st, d)
		if err != nil {
			t.Fatal(err)
		}
		layers[i].DiffID = ix.DiffID
		spec.Additions = append(spec.Additions, image.Addition{Layer: layers[i]})
	}
	im, err := image.Assemble(t.Context(), st, spec)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// asForeign compresses a layer again, as one gzip stream.
func asForeign(t *testing.T, st *store.Store, d layer.Descriptor) layer.Descriptor {
	t.Helper()
	f, err := st.OpenBlob(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := layer.Decompress(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.Copy(w, r); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return foreign(t, st, b.Bytes(), "application/vnd.oci.image.layer.v1.tar+gzip")
}

// writeSquashfs writes a cluster file of an image and opens it.
func writeSquashfs(t *testing.T, st *store.Store, im *image.Image) *source.ClusterFile {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "x.sqsh"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := clusterfile.Input{Config: im.Config, Digest: im.Digest}
	for _, d := range im.Layers {
		in.Layers = append(in.Layers, clusterfile.Layer{Name: d.Digest.Short(), Digest: d.Digest, Source: layer.Stored(st, d)})
	}
	o := clusterfile.Options{Store: st, Squashfs: squashfs.DefaultOptions(), NoReuse: true}
	if err := clusterfile.WriteSquashfs(t.Context(), f, in, o); err != nil {
		t.Fatal(err)
	}
	c, err := source.OpenClusterFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// inAllForms gathers the facts of one directory in all forms that an image can have.
func inAllForms(t *testing.T, dir string) map[string]*Facts {
	t.Helper()
	st := storetest.Alone(t)
	all := map[string]*Facts{}
	keep := func(name string, f *Facts, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		all[name] = f
	}
	for _, c := range []layer.Compression{layer.Gzip, layer.None} {
		d, err := layer.FromDir(t.Context(), st, dir, layer.Options{Compression: c})
		if err != nil {
			t.Fatal(err)
		}
		im := imageOf(t, st, d)
		f, err := OfImage(t.Context(), st, im, string(c))
		keep(string(c), f, err)
		if c == layer.None {
			continue
		}
		f, err = OfImage(t.Context(), st, imageOf(t, st, asForeign(t, st, d)), "foreign")
		keep("foreign", f, err)
		f, err = OfClusterFile(t.Context(), st, writeSquashfs(t, st, im), "squashfs")
		keep("squashfs", f, err)
		if f.Digest != string(im.Digest) {
			t.Errorf("squashfs of the image %s, not %s", f.Digest, im.Digest)
		}
	}
	return all
}

// What names mean is what they mean to the kernel.
func TestRootsResolve(t *testing.T) {
	dir := smallSystem(t)
	kernel := kernelRoot{dir}
	if _, err := kernel.Resolve("/"); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skipf("the kernel has no openat2: %v", err)
	}
	names := []string{"/", "//", "/..", "/../..//etc", "/usr/bin/sh", "/usr/bin/sh/", "/usr/bin/sh/.", "/usr/bin/sh/..", "/loop", "/loop1/x", "/dangling"}
	parts := []string{
		"usr", "bin", "lib", "lib64", "srv", "up", "deep", "out", "er", "abs", "opt", "app", "dot", "dots", "root", "..", "..", ".",
		"etc", "sh", "plain", "through", "to-file", "loop1", "nothing", "",
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var name strings.Builder
		for range 1 + r.IntN(7) {
			name.WriteString("/" + parts[r.IntN(len(parts))])
		}
		names = append(names, name.String())
	}
	for form, f := range inAllForms(t, dir) {
		found := 0
		for _, name := range names {
			want, wantErr := kernel.Resolve(name)
			got, err := f.Root.Resolve(name)
			if got != want || (err == nil) != (wantErr == nil) {
				t.Errorf("%s: %s leads to %q, %v; for the kernel to %q, %v", form, name, got, err, want, wantErr)
			}
			if errors.Is(err, fs.ErrNotExist) != errors.Is(wantErr, fs.ErrNotExist) {
				t.Errorf("%s: %s: %v; the kernel says %v", form, name, err, wantErr)
			}
			if err == nil {
				found++
			}
			info, statErr := f.Root.Stat(name)
			if (statErr == nil) != (err == nil) || err == nil && absolute(info.Path) != got {
				t.Errorf("%s: Stat of %s: %+v, %v", form, name, info, statErr)
			}
		}
		if found < 200 {
			t.Errorf("%s: only %d names lead anywhere", form, found)
		}
	}
}

// The loader finds in each form of an image what it finds in the directory.
func TestRootsLoad(t *testing.T) {
	dir := smallSystem(t)
	load := func(root elfx.FS) []string {
		c, err := (&elfx.Loader{FS: root, LibraryPath: "/srv/up/lib"}).Closure("/bin/sh")
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, o := range c.Objects {
			list = append(list, o.Path+" "+o.Real+" "+o.Rule.String())
			n := 0
			for _, err := range o.File.Symbols() {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n == 0 {
				t.Errorf("%s has no symbols", o.Real)
			}
		}
		for _, l := range c.Missing() {
			list = append(list, "missing "+l.Name)
		}
		return list
	}
	want := load(kernelRoot{dir})
	if len(want) < 2 {
		t.Fatalf("sh needs nothing: %q", want)
	}
	for form, f := range inAllForms(t, dir) {
		if d := cmp.Diff(want, load(f.Root)); d != "" {
			t.Errorf("%s (-directory +image):\n%s", form, d)
		}
	}
}

func TestRootsRead(t *testing.T) {
	dir := smallSystem(t)
	var first []Info
	for form, f := range inAllForms(t, dir) {
		for name, want := range map[string]error{"/etc": fs.ErrInvalid, "/nothing": fs.ErrNotExist, "/etc/ld.so.conf/x": unix.ENOTDIR} {
			if h, err := f.Root.Open(name); !errors.Is(err, want) {
				t.Errorf("%s: Open of %s: %v, %v", form, name, h, err)
			}
		}
		if _, err := f.Root.ReadDir("/etc/empty"); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: ReadDir of a file: %v", form, err)
		}
		names, err := f.Root.ReadDir("/srv/up")
		if d := cmp.Diff([]string{"lib", "sh2"}, names); err != nil || d != "" {
			t.Errorf("%s: ReadDir: %v, %s", form, err, d)
		}
		for _, name := range []string{"/bin/sh", "/opt/app/sh2", "/opt/to-file", "/etc/empty"} {
			checkContent(t, f.Root, dir, name)
		}
		var paths []Info
		for _, i := range f.Paths {
			i.ModTime = i.ModTime.UTC()
			if i.Type != layer.Regular && i.Type != layer.Dir {
				i.Mode = 0 // of a symlink means nothing
			}
			if form != "squashfs" { // which has the files of the runtimes besides
				paths = append(paths, i)
			}
		}
		switch {
		case form == "squashfs":
		case first == nil:
			first = paths
		default:
			if d := cmp.Diff(first, paths); d != "" {
				t.Errorf("%s has other files:\n%s", form, d)
			}
		}
		sh := slices.IndexFunc(f.Paths, func(i Info) bool { return i.Path == "usr/bin/sh" })
		if sh < 0 || f.Paths[sh].Mode != 0o4755 {
			t.Errorf("%s: no setuid sh", form)
		}
		if !slices.ContainsFunc(f.Objects, func(o Object) bool { return o.Soname == "libc.so.6" && o.Kind == "shared" && o.Arch != "" }) {
			t.Errorf("%s: objects %+v", form, f.Objects)
		}
	}
}

func checkContent(t *testing.T, root Root, dir, name string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join(dir, strings.TrimPrefix(strings.Replace(name, "/bin", "/usr/bin", 1), "/")))
	if err != nil {
		t.Fatal(err)
	}
	h, err := root.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	got, err := io.ReadAll(io.NewSectionReader(h, 0, 1<<30))
	if err != nil || !bytes.Equal(got, want) || h.Size() != int64(len(want)) {
		t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
	}
}

// copySource counts how often contents are read.
type copySource struct {
	mu    sync.Mutex
	reads map[int64]int
}

func (s *copySource) open(c *copies, at, size int64) (elfx.Handle, error) {
	return c.open(context.Background(), contentID{0, place{at, 0}}, size, func() (io.ReadCloser, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reads[at]++
		return io.NopCloser(bytes.NewReader(bytes.Repeat([]byte{byte(at)}, int(size)))), nil
	})
}

// Copies are made once while there is room, and the disk that they take is bounded.
func TestCopies(t *testing.T) {
	st := storetest.Alone(t)
	c := newCopies(st, 1000)
	s := &copySource{reads: map[int64]int{}}
	check := func(h elfx.Handle, at, size int64) {
		t.Helper()
		b := make([]byte, size)
		if _, err := h.ReadAt(b, 0); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(at)}, int(size))) {
			t.Errorf("copy %d: error %v, or other bytes", at, err)
		}
	}
	held, err := s.open(c, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			h, err := s.open(c, int64(i%4), 100)
			if err != nil {
				t.Error(err)
				return
			}
			defer h.Close()
			check(h, int64(i%4), 100)
		})
	}
	group.Wait()
	if d := cmp.Diff(map[int64]int{0: 1, 1: 1, 2: 1, 3: 1}, s.reads); d != "" {
		t.Errorf("reads (-want +got):\n%s", d)
	}
	for i := int64(10); i < 30; i++ {
		h, err := s.open(c, i, 100)
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
		if c.current.size > 500 || c.previous != nil && c.previous.size > 500 || len(c.kept) > 10 {
			t.Fatalf("%d copies in %d bytes and more", len(c.kept), c.current.size)
		}
	}
	check(held, 0, 100) // although its copy was given up
	held.Close()
	held.Close()
	if _, err := s.open(c, 0, 100); err != nil || s.reads[0] != 2 {
		t.Errorf("given up and read again: %v, %d times", err, s.reads[0])
	}
	broken := errors.New("broken")
	if _, err := c.open(t.Context(), contentID{7, place{}}, 1, func() (io.ReadCloser, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := c.open(t.Context(), contentID{7, place{}}, 5, func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("four")), nil
	}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	c.Close()
	if _, err := s.open(c, 50, 10); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	left, err := os.ReadDir(filepath.Join(st.Dir(), "tmp-v1"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files remain: %v, %v", left, err)
	}
}
