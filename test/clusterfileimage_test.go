package test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/tooltest"
)

// tarLayer is a layer as anybody may write one.
type tarLayer struct {
	t   testing.TB
	buf bytes.Buffer
	w   *tar.Writer
}

func newTarLayer(t testing.TB) *tarLayer {
	l := &tarLayer{t: t}
	l.w = tar.NewWriter(&l.buf)
	return l
}

// add writes an entry. What h leaves out is usual.
func (l *tarLayer) add(h tar.Header, content string) {
	l.t.Helper()
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	if h.Mode == 0 {
		h.Mode = map[byte]int64{tar.TypeDir: 0o755, tar.TypeSymlink: 0o777}[h.Typeflag]
		if h.Mode == 0 {
			h.Mode = 0o644
		}
	}
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(1_500_000_000, 0)
	}
	h.Format = tar.FormatPAX
	h.Size = int64(len(content))
	if err := l.w.WriteHeader(&h); err != nil {
		l.t.Fatal(err)
	}
	if _, err := io.WriteString(l.w, content); err != nil {
		l.t.Fatal(err)
	}
}

func (l *tarLayer) dir(names ...string) {
	for _, n := range names {
		l.add(tar.Header{Name: n, Typeflag: tar.TypeDir}, "")
	}
}

func (l *tarLayer) file(name, content string) { l.add(tar.Header{Name: name}, content) }

func (l *tarLayer) link(name, to string) {
	l.add(tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}, "")
}

func (l *tarLayer) symlink(name, to string) {
	l.add(tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}, "")
}

func (l *tarLayer) hide(name string) {
	l.file(filepath.Join(filepath.Dir(name), ".wh."+filepath.Base(name)), "")
}

// bytes ends the layer.
func (l *tarLayer) bytes() []byte {
	l.t.Helper()
	if err := l.w.Close(); err != nil {
		l.t.Fatal(err)
	}
	return l.buf.Bytes()
}

// gzipped is the layer as most are.
func (l *tarLayer) gzipped() v1.Layer {
	l.t.Helper()
	data := l.bytes()
	out, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// plain is the layer without compression.
func (l *tarLayer) plain() v1.Layer { return static.NewLayer(l.bytes(), types.OCIUncompressedLayer) }

// noise is text that no compressor makes smaller than a third.
func noise(seed uint64, n int) string {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 3})
	p := make([]byte, n)
	_, _ = r.Read(p) // never fails
	return string(p)
}

// words is text that compresses as programs do.
func words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%x of %d; ", r.Uint64(), r.IntN(9))
	}
	return b.String()[:n]
}

// programs puts busybox into a layer, with what scripts need of it.
func (l *tarLayer) programs() {
	l.t.Helper()
	data, err := os.ReadFile(tooltest.Path(l.t, "busybox"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.dir("bin")
	l.add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(data))
	for _, applet := range []string{"sh", "cat", "env", "id", "ls", "pwd", "printf", "true"} {
		l.symlink("bin/"+applet, "busybox")
	}
}

// capNetRaw is the extended attribute of a program with cap_net_raw+ep (capability.h, vfs_cap_data).
const capNetRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// bottom is a layer with everything that a file system can have.
func bottom(t testing.TB) *tarLayer {
	l := newTarLayer(t)
	l.add(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o751, Gid: 1, PAXRecords: map[string]string{"SCHILY.xattr.user.of-root": "yes"}}, "")
	l.dir("etc", "usr", "usr/lib", "opt", "gone", "opaque", "tree", "tree/deep", "dev", "links", "odd", "big")
	l.programs()
	l.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	l.file("etc/group", "root:x:0:\n")
	l.file("etc/environment", "LANG=wrong\n")
	l.file("etc/changed", words(1, 200_000))
	l.file("etc/deleted", words(2, 200_000))
	l.file("gone/file", noise(3, 150_000))
	l.file("opaque/old", words(4, 1000))
	l.file("tree/deep/file", words(5, 1000))
	l.file("becomes-dir", words(6, 1000))
	l.symlink("lib", "usr/lib")
	l.symlink("dangling", strings.Repeat("x/", 120)+"nowhere")

	l.file("links/a", words(7, 150_000))
	l.link("links/b", "links/a")
	l.link("links/c", "links/a")
	l.file("links/first", words(8, 90_000))
	l.link("links/second", "links/first")
	l.file("links/third", words(8, 90_000)) // the same content is no link

	l.add(tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3}, "")
	l.add(tar.Header{Name: "dev/disk", Typeflag: tar.TypeBlock, Mode: 0o660, Gid: 6, Devmajor: 259, Devminor: 70_000}, "")
	l.add(tar.Header{Name: "dev/pipe", Typeflag: tar.TypeFifo, Mode: 0o600}, "")
	l.add(tar.Header{Name: "bin/su", Mode: 0o4755}, words(9, 3000))
	l.add(tar.Header{Name: "bin/wall", Mode: 0o2755, Gid: 5}, words(10, 3000))
	l.add(tar.Header{Name: "bin/ping", Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": capNetRaw}}, words(11, 3000))
	l.add(tar.Header{Name: "odd/dir", Typeflag: tar.TypeDir, Mode: 0o3777, Uid: 70_000, Gid: 4_000_000_000, PAXRecords: map[string]string{"SCHILY.xattr.user.of-dir": "yes"}}, "")
	l.add(tar.Header{Name: "odd/attributes", PAXRecords: map[string]string{
		"SCHILY.xattr.user.empty": "", "SCHILY.xattr.user.long": words(12, 2000), "SCHILY.xattr.user.bytes": "a\x01\xff\x02b", "SCHILY.xattr.trusted.x": "y",
	}}, "x")
	l.add(tar.Header{Name: "odd/same-attributes", PAXRecords: map[string]string{"SCHILY.xattr.user.long": words(12, 2000)}}, "x")
	for i, name := range []string{"new\nline", "sp ace", `back\slash`, "-dash", "\xff\xfe not utf-8", "ünï ✓ 漢字", strings.Repeat("n", 255), "'quote\"", "*", "\x01"} {
		l.file("odd/"+name, fmt.Sprint(i))
	}
	l.dir("odd/" + strings.Repeat("d", 200))
	l.file("odd/"+strings.Repeat("d", 200)+"/"+strings.Repeat("e", 200), "long path")
	for i, at := range []int64{0, 1, 1_700_000_000, 2_147_483_648, 4_000_000_000} {
		l.add(tar.Header{Name: fmt.Sprint("odd/time", i), ModTime: time.Unix(at, 0)}, "t")
	}
	l.add(tar.Header{Name: "odd/time-with-nanoseconds", ModTime: time.Unix(1_234_567_890, 987_654_321)}, "t")
	l.add(tar.Header{Name: "odd/no-rights", Mode: 0o1000}, "0")
	l.file("empty", "")
	l.file("zeros", strings.Repeat("\x00", 1_000_000))
	l.file("holes", strings.Repeat("\x00", 400_000)+noise(13, 70_000)+strings.Repeat("\x00", 300_000))
	l.file("noise", noise(14, 700_000))
	for _, n := range []int{1, 131_071, 131_072, 131_073, 262_144} {
		l.file(fmt.Sprint("size", n), words(uint64(n), n))
	}
	for i := range 2500 { // more than a directory without an index has
		l.file(fmt.Sprintf("big/%04d-%s", i, strings.Repeat("n", i%40)), words(uint64(i), i%97))
	}
	return l
}

func middle(t testing.TB) *tarLayer {
	l := newTarLayer(t)
	l.dir("etc", "gone", "becomes-dir", "links")
	l.file("etc/changed", words(20, 100_000))
	l.hide("etc/deleted")
	l.hide("gone/file")
	l.file("becomes-dir/inner", words(21, 1000))
	l.hide("links/a") // the other two names stay
	l.hide("tree")
	l.add(tar.Header{Name: "odd/attributes", Mode: 0o600, PAXRecords: map[string]string{"SCHILY.xattr.user.new": "1"}}, "y")
	return l
}

func top(t testing.TB) *tarLayer {
	l := newTarLayer(t)
	l.dir("etc", "tree", "opaque", "opt", "links")
	l.file("opaque/.wh..wh..opq", "")
	l.file("opaque/new", words(22, 1000))
	l.file("etc/deleted", "back again\n")
	l.file("tree/other", words(23, 1000))
	l.file("opt/same", words(8, 90_000)) // as in the lowest layer
	l.link("opt/other-name", "opt/same")
	l.add(tar.Header{Name: "odd/attributes-on-top", PAXRecords: map[string]string{"SCHILY.xattr.trusted.of-root": "y", "SCHILY.xattr.user.x": "z"}}, "x")
	l.add(tar.Header{Name: "opt", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 3}, "")
	return l
}

// config is what the test images say about themselves.
var richConfig = v1.Config{
	Env:        []string{"PATH=/bin:/usr/bin", "GREETING=it's a \"test\" of $HOME", "EMPTY="},
	Entrypoint: []string{"/bin/sh", "-c", `printf '%s|' "$GREETING" "$@"; pwd`, "sh"},
	Cmd:        []string{"one", "two  words"},
	WorkingDir: "/opt/new dir",
	Labels:     map[string]string{"org.example.name": "rich"},
}

// writeLayout writes an image into an OCI layout under the tag "1", whatever there was before, and returns its reference.
func writeLayout(t testing.TB, dir string, config v1.Config, layers ...v1.Layer) string {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, func() *v1.ConfigFile {
		c, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c = c.DeepCopy()
		c.OS, c.Architecture, c.Config = "linux", goArch(), config
		c.Created = v1.Time{Time: time.Unix(1_600_000_000, 0)}
		return c
	}())
	if err != nil {
		t.Fatal(err)
	}
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "1"}))
	}
	if err == nil {
		// For every user; the package makes its files for their owner alone.
		err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, os.Chmod(path, 0o755)) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return "oci:" + dir + ":1"
}

var sharedRich once[string]

// rich returns an OCI image of three layers with everything that a file system can have, and a shell.
func rich(t *testing.T) string {
	t.Helper()
	return sharedRich.get(t, func(t *testing.T) string {
		return writeLayout(t, filepath.Join(workshop, "rich"), richConfig, bottom(t).gzipped(), middle(t).plain(), top(t).gzipped())
	})
}

var sharedRichTree once[map[string]thing]

// richTree is what umoci unpacks of that image.
func richTree(t *testing.T) map[string]thing {
	t.Helper()
	return maps.Clone(sharedRichTree.get(t, func(t *testing.T) map[string]thing { return unpackedByUmoci(t, rich(t)) }))
}

// thing is what a file system says about one of its objects.
type thing struct {
	text  string // all but its names
	first string // of the names of the same object, in order
}

// treeOf describes a root file system, path by path, without what runtimes need.
func treeOf(t *testing.T, root string) map[string]thing {
	t.Helper()
	tree := map[string]thing{}
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if forRuntimes(name) {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("lstat %q: %w", path, err)
		}
		text, err := describe(path, &st)
		what := thing{text: text}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			if what.first = first[st.Ino]; what.first == "" {
				what.first = name
				first[st.Ino] = name
			}
		}
		tree[name] = what
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(tree) < 100 {
		t.Fatalf("%s has only %d files", root, len(tree))
	}
	return tree
}

// forRuntimes reports whether a path belongs to the files that make an image start under the runtimes, or is a directory
// to mount on.
func forRuntimes(name string) bool {
	if name == ".singularity.d" || strings.HasPrefix(name, ".singularity.d/") || name == richConfig.WorkingDir[1:] {
		return true
	}
	switch name {
	case ".run", ".exec", ".test", ".shell", "singularity", "environment", "proc", "root", "sys", "home", "tmp", "var", "var/tmp":
		return true
	}
	return slices.Contains(runtimefiles.Paths(), "/"+name)
}

// describe says everything about an object that a squashfs keeps: times have whole seconds, and how many links a directory
// has is up to the file system.
func describe(path string, st *unix.Stat_t) (string, error) {
	text := fmt.Sprintf("%o %d:%d at %d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return "", fmt.Errorf("%q: %w", path, err)
		}
		text += fmt.Sprintf(" x%d %d bytes %.8x", st.Nlink, st.Size, h.Sum(nil))
	case unix.S_IFLNK:
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		text += " -> " + to
	case unix.S_IFCHR, unix.S_IFBLK:
		text += fmt.Sprintf(" %d,%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	xattrs, err := xattrsOf(path)
	return text + xattrs, err
}

func xattrsOf(path string) (string, error) {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, names)
	if errors.Is(err, unix.ENOTSUP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("list xattrs of %q: %w", path, err)
	}
	var all []string
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", fmt.Errorf("xattr %s of %q: %w", name, path, err)
		}
		all = append(all, fmt.Sprintf(" %s=%q", name, value[:n]))
	}
	slices.Sort(all)
	return strings.Join(all, ""), nil
}

// wantTree fails when two trees differ, and shows where.
func wantTree(t *testing.T, who string, got, want map[string]thing) {
	t.Helper()
	shown := 0
	for _, name := range sortedKeys(got, want) {
		g, inGot := got[name]
		w, inWant := want[name]
		if g == w && inGot == inWant {
			continue
		}
		if shown++; shown > 10 {
			t.Errorf("%s: and more", who)
			return
		}
		t.Errorf("%s: %q is\n%+v, want\n%+v", who, name, g, w)
	}
}

func sortedKeys(maps ...map[string]thing) []string {
	var keys []string
	for _, m := range maps {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// do runs a program, which has to succeed, and returns what it printed.
func do(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(tooltest.Path(t, name), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}
