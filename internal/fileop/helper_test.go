package fileop

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// file is one entry of a tar or a directory of a test, in a line: "d 755 0:0 etc", "f 644 0:0 etc/passwd = content",
// "l etc/link -> target", "h etc/other => etc/passwd", "p 644 0:0 fifo", "c 600 0:0 null".
type file struct {
	typ      byte
	mode     int64
	uid, gid int
	name     string
	value    string // content or target
}

func parseFile(t testing.TB, line string) file {
	t.Helper()
	var f file
	for _, sep := range []string{" => ", " -> ", " = "} {
		if head, value, ok := strings.Cut(line, sep); ok {
			line, f.value = head, value
			break
		}
	}
	parts := strings.Fields(line)
	f.typ, f.name = parts[0][0], parts[len(parts)-1]
	f.mode = 0o755
	if f.typ == 'f' {
		f.mode = 0o644
	}
	if len(parts) == 4 {
		if _, err := fmt.Sscanf(parts[1]+" "+parts[2], "%o %d:%d", &f.mode, &f.uid, &f.gid); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return f
}

// makeTar makes a tar of lines.
func makeTar(t testing.TB, lines ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, line := range lines {
		f := parseFile(t, line)
		h := &tar.Header{
			Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.gid, Format: tar.FormatPAX,
			Typeflag: map[byte]byte{'d': tar.TypeDir, 'f': tar.TypeReg, 'l': tar.TypeSymlink, 'h': tar.TypeLink, 'p': tar.TypeFifo, 'c': tar.TypeChar}[f.typ],
		}
		switch f.typ {
		case 'f':
			h.Size = int64(len(f.value))
		case 'l', 'h':
			h.Linkname = f.value
		case 'c':
			h.Devmajor, h.Devminor = 1, 3
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if f.typ == 'f' {
			io.WriteString(w, f.value)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// makeDir puts lines into a new directory. Owners do not count.
func makeDir(t testing.TB, lines ...string) string {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir) // nothing is written through a symlink
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, line := range lines {
		f := parseFile(t, line)
		if err := root.MkdirAll(filepath.Dir(f.name), 0o755); err != nil {
			t.Fatal(err)
		}
		switch f.typ {
		case 'd':
			err = root.MkdirAll(f.name, 0o755)
		case 'f':
			err = root.WriteFile(f.name, []byte(f.value), 0o644)
		case 'l':
			err = root.Symlink(f.value, f.name)
		case 'h':
			err = root.Link(f.value, f.name)
		case 'p':
			var out []byte
			out, err = exec.Command("mkfifo", filepath.Join(dir, f.name)).CombinedOutput()
			if err != nil {
				t.Fatalf("%s", out)
			}
		}
		if err == nil && f.typ != 'l' && f.typ != 'h' {
			err = root.Chmod(f.name, os.FileMode(f.mode&0o777)|specialBits(f.mode))
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return dir
}

func specialBits(mode int64) os.FileMode {
	var m os.FileMode
	for bit, flag := range map[int64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

func makeLayer(t testing.TB, st *store.Store, lines ...string) layer.Descriptor {
	t.Helper()
	d, err := layer.FromTar(t.Context(), st, bytes.NewReader(makeTar(t, lines...)), layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func makeTree(t testing.TB, st *store.Store, layers ...layer.Descriptor) *image.Tree {
	t.Helper()
	tree, err := image.NewTree(t.Context(), st, layers)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// list describes a tree, a line for each file like those that make it.
func list(t testing.TB, tree *image.Tree) []string {
	t.Helper()
	var lines []string
	first := map[int]string{}
	err := tree.Walk(func(n *image.Node) error {
		mode := n.Mode
		if n.Type == layer.Symlink {
			mode = 0o777
		}
		line := fmt.Sprintf("%c %o %d:%d %s", "fdlhcbp"[n.Type], mode, n.UID, n.GID, n.Path)
		switch n.Type {
		case layer.Symlink:
			line += " -> " + n.Link
		case layer.Regular:
			if of, ok := first[n.Inode]; ok {
				line += " => " + of
				break
			}
			first[n.Inode] = n.Path
			r, err := tree.Open(n)
			if err != nil {
				return err
			}
			defer r.Close()
			data, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			line += " = " + string(data)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// changes returns the lines of after that before lacks, and with a minus those that are gone.
func changes(before, after []string) []string {
	was, is := map[string]bool{}, map[string]bool{}
	for _, l := range before {
		was[l] = true
	}
	var diff []string
	for _, l := range after {
		is[l] = true
		if !was[l] {
			diff = append(diff, l)
		}
	}
	for _, l := range before {
		if !is[l] {
			diff = append(diff, "- "+l)
		}
	}
	return diff
}

func openContext(t testing.TB, dir string) *Context {
	t.Helper()
	c, err := OpenContext(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// memory is a source with files in its root.
type memory map[string][]byte

func (m memory) top(context.Context) (*node, error) {
	root := &node{Entry: layer.Entry{Path: ".", Type: layer.Dir, Mode: 0o755}, loaded: true}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		data := m[name]
		root.below = append(root.below, &node{
			Entry: layer.Entry{Path: name, Mode: 0o644, Size: int64(len(data))}, name: name,
			open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		})
	}
	return root, nil
}

func (m memory) missing(_ string, err error) error { return err }

// checkBelow makes sure that nothing but a directory and what is in it has changed.
func (s *stage) checkBelow(t *testing.T, dir string) {
	t.Helper()
	if s.root.changed {
		t.Error("the root has changed")
	}
	for name, p := range s.root.names {
		gone := p == nil && s.inImage(name) != nil
		if name != dir && (gone || p != nil && p.touched) {
			t.Errorf("%s has changed", name)
		}
	}
}
