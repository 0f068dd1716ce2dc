package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

func sorted(objects []object) []object {
	slices.SortFunc(objects, func(a, b object) int {
		if layer.Less(a.Path, b.Path) {
			return -1
		}
		return 1
	})
	return objects
}

func makeTree(t *testing.T, st *store.Store, layers ...[]object) *Tree {
	t.Helper()
	var ds []layer.Descriptor
	for i, objects := range layers {
		c := []layer.Compression{layer.Zstd, layer.Gzip, layer.None}[i%3]
		ds = append(ds, makeLayer(t, st, c, sorted(objects)...))
	}
	tree, err := NewTree(t.Context(), st, ds)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// list describes a tree in one line for each node.
func list(t *testing.T, tree *Tree) []string {
	t.Helper()
	var lines []string
	err := tree.Walk(func(n *Node) error {
		line := n.Path
		switch n.Type {
		case layer.Dir:
			line += "/"
		case layer.Symlink:
			line += " -> " + n.Link
		case layer.Regular:
			r, err := tree.Open(n)
			if err != nil {
				return err
			}
			defer r.Close()
			data, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			line += " " + string(data)
			if n.Links > 1 {
				line += fmt.Sprint(" links ", n.Links)
			}
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestTreeMerges(t *testing.T) {
	base := []object{
		dir("bin"), file("bin/sh", "sh"), dir("etc"), file("etc/a", "a"), file("etc/b", "b"), dir("usr"), dir("usr/lib"),
		file("usr/lib/libc", "libc"), hardLink("usr/lib/libc2", "usr/lib/libc"), symlink("lib", "usr/lib"), file("f", "f"),
	}
	for name, c := range map[string]struct {
		layers [][]object
		want   []string
	}{
		"whiteouts": {
			[][]object{base, {file("etc/.wh.a", ""), file(".wh.f", ""), file(".wh.nothing", ""), file("usr/lib/.wh.libc", "")}},
			[]string{"bin/", "bin/sh sh", "etc/", "etc/b b", "lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/libc2 libc"},
		},
		"a whiteout spares its own layer": {
			[][]object{base, {file(".wh.f", ""), file("f", "new"), dir("etc"), file("etc/.wh..wh..opq", ""), file("etc/c", "c")}},
			[]string{
				"bin/", "bin/sh sh", "etc/", "etc/c c", "f new", "lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/libc libc links 2",
				"usr/lib/libc2 libc links 2",
			},
		},
		"directory to file and back": {
			[][]object{base, {file(".wh.usr", ""), file("bin", "file")}, {dir("bin"), file("bin/x", "x")}, {file("etc", "file")}},
			[]string{"bin/", "bin/x x", "etc file", "f f", "lib -> usr/lib"},
		},
		"a directory hides a symlink": {
			[][]object{base, {file(".wh.bin", ""), file(".wh.etc", ""), file("lib/x", "x")}},
			[]string{
				"f f", "lib/", "lib/x x", "usr/", "usr/lib/", "usr/lib/libc libc links 2", "usr/lib/libc2 libc links 2",
			},
		},
		"one name of a file replaced": {
			[][]object{base, {file(".wh.bin", ""), file(".wh.etc", ""), file("usr/lib/libc", "new")}},
			[]string{"f f", "lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/libc new", "usr/lib/libc2 libc"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := makeTree(t, storetest.Alone(t), c.layers...)
			if diff := cmp.Diff(c.want, list(t, tree)); diff != "" {
				t.Errorf("merged tree (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTreeLookup(t *testing.T) {
	tree := makeTree(t, storetest.Alone(t), []object{
		dir("a"), dir("a/b"), file("a/b/f", "found"), symlink("abs", "/a/b"), symlink("rel", "a/../a/b"), symlink("up", "../../../a"),
		symlink("loop", "loop"), symlink("ping", "pong"), symlink("pong", "ping"), symlink("gone", "nowhere"), symlink("chain", "abs/f"),
		symlink("slash", "a/b/"), symlink("tofile", "a/b/f"),
	})
	for p, want := range map[string]string{
		"a/b/f": "a/b/f", "/a//b/./f": "a/b/f", "abs/f": "a/b/f", "rel/f": "a/b/f", "up/b/f": "a/b/f", "chain": "a/b/f", "": ".", "/": ".", ".": ".",
		"../../a": "a", "a/b/..": "a", "abs/..": "a", "slash": "a/b", "slash/f": "a/b/f", "a/": "a", "abs/": "a/b",
	} {
		n, err := tree.Lookup(p)
		if err != nil || n.Path != want {
			t.Errorf("Lookup(%q) = %v, %v; want %s", p, n, err, want)
		}
	}
	for p, want := range map[string]error{
		"nope": fs.ErrNotExist, "a/b/nope/x": fs.ErrNotExist, "gone": fs.ErrNotExist, "loop": syscall.ELOOP, "ping": syscall.ELOOP,
		"a/b/f/x": syscall.ENOTDIR, "a/b/f/..": syscall.ENOTDIR, "tofile/x": syscall.ENOTDIR,
	} {
		if _, err := tree.Lookup(p); !errors.Is(err, want) {
			t.Errorf("Lookup(%q): %v, want %v", p, err, want)
		}
	}
	if n, err := tree.Lstat("chain"); err != nil || n.Type != layer.Symlink {
		t.Errorf("Lstat: %v, %v", n, err)
	}
	if data, err := tree.ReadFile("chain", 5); err != nil || string(data) != "found" {
		t.Errorf("ReadFile: %q, %v", data, err)
	}
	if _, err := tree.ReadFile("chain", 4); err == nil {
		t.Error("ReadFile gives more than its limit")
	}
	if _, err := tree.ReadFile("a", 4); err == nil {
		t.Error("ReadFile reads a directory")
	}
	nodes, err := tree.ReadDir("abs")
	if err != nil || len(nodes) != 1 || nodes[0].Name() != "f" {
		t.Errorf("ReadDir: %v, %v", nodes, err)
	}
}

func TestTreeRefusesLostLink(t *testing.T) {
	st := storetest.Alone(t)
	// The writer would not make such a layer, so this is the tar of another one with the link's target changed.
	d := makeLayer(t, st, layer.None, file("aaaa", "x"), hardLink("b", "aaaa"))
	p, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.LastIndex(string(data), "aaaa")
	copy(data[at:], "aabb")
	// The checksum field holds the sum of the header's bytes: two more letters, each one higher.
	header := data[at-157:][:512]
	copy(header[148:156], "        ")
	sum := 0
	for _, c := range header {
		sum += int(c)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
	blob, err := st.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewTree(t.Context(), st, []layer.Descriptor{{Digest: blob}}); err == nil || !strings.Contains(err.Error(), "aabb") {
		t.Errorf("error %v", err)
	}
}

// TestTreeIsOverlay compares merged trees with what the kernel's overlay shows of the same layers, unpacked.
func TestTreeIsOverlay(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount an overlay here")
	}
	st := storetest.Alone(t)
	withoutLinks := func(lines []string) []string { // overlay also counts names that are hidden
		for i, line := range lines {
			lines[i], _, _ = strings.Cut(line, " links ")
		}
		return lines
	}
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 5))
		var ds []layer.Descriptor
		for range 2 + r.IntN(4) {
			ds = append(ds, makeLayer(t, st, layer.Zstd, randomLayer(r)...))
		}
		tree, err := NewTree(t.Context(), st, ds)
		if err != nil {
			t.Fatal(err)
		}
		mounted := mountOverlay(t, st, ds)
		if diff := cmp.Diff(listDir(t, mounted), withoutLinks(list(t, tree))); diff != "" {
			t.Errorf("seed %d: overlay (-) and tree (+) differ:\n%s", seed, diff)
		}
		if err := unix.Unmount(mounted, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// randomLayer makes a layer over few names, so that layers collide in every way. Parents are listed, as those of real
// layers are.
func randomLayer(r *rand.Rand) []object {
	byPath := map[string]object{}
	names := []string{"a", "b", "c"}
	var files []string
	for range 3 + r.IntN(10) {
		parts := []string{}
		for range 1 + r.IntN(3) {
			parts = append(parts, names[r.IntN(len(names))])
		}
		p := path.Join(parts...)
		if clash(byPath, p) {
			continue
		}
		for _, d := range layer.Parents(p) {
			byPath[d] = dir(d)
		}
		switch r.IntN(8) {
		case 0, 1:
			byPath[p] = dir(p)
		case 2:
			byPath[p] = symlink(p, names[r.IntN(len(names))])
		case 3:
			w := path.Join(path.Dir(p), ".wh."+path.Base(p))
			byPath[w] = file(w, "")
		case 4:
			w := path.Join(p, ".wh..wh..opq")
			byPath[p], byPath[w] = dir(p), file(w, "")
		default:
			byPath[p] = file(p, fmt.Sprint(r.IntN(1000)))
			files = append(files, p)
		}
	}
	slices.Sort(files)
	for _, f := range files {
		if p := f + "link"; r.IntN(3) == 0 {
			byPath[p] = hardLink(p, f)
		}
	}
	var objects []object
	for _, o := range byPath {
		objects = append(objects, o)
	}
	return sorted(objects)
}

// clash reports whether p is there already or would need a directory where something else is.
func clash(byPath map[string]object, p string) bool {
	if _, ok := byPath[p]; ok {
		return true
	}
	for _, d := range layer.Parents(p) {
		if o, ok := byPath[d]; ok && o.Type != layer.Dir {
			return true
		}
	}
	return false
}

func mountOverlay(t *testing.T, st *store.Store, ds []layer.Descriptor) string {
	t.Helper()
	scratch := t.TempDir()
	lower := []string{filepath.Join(scratch, "empty")}
	for i, d := range slices.Backward(ds) {
		to := filepath.Join(scratch, fmt.Sprint(i))
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := layer.Unpack(t.Context(), st, d, to, layer.UnpackOptions{Owners: true}); err != nil {
			t.Fatal(err)
		}
		lower = append(lower, to)
	}
	mounted := filepath.Join(scratch, "mounted")
	for _, d := range []string{lower[0], mounted} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := unix.Mount("overlay", mounted, "overlay", unix.MS_RDONLY, "userxattr,lowerdir="+strings.Join(lower, ":"))
	if err != nil {
		tooltest.Missing(t, "mount overlay: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) }) // when the test has not come to it
	return mounted
}

// listDir describes a directory as list does a tree.
func listDir(t *testing.T, root string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			return nil // overlay lists a whiteout that hides nothing, though nobody can open it
		}
		line, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			line += "/"
		case fs.ModeSymlink:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " -> " + to
		default:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += " " + string(data)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestWalkSkips(t *testing.T) {
	tree := makeTree(t, storetest.Alone(t), []object{dir("a"), file("a/x", ""), dir("b"), file("b/x", "")})
	var seen []string
	err := tree.Walk(func(n *Node) error {
		seen = append(seen, n.Path)
		if n.Path == "a" {
			return fs.SkipDir
		}
		return nil
	})
	if diff := cmp.Diff([]string{"a", "b", "b/x"}, seen); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}
