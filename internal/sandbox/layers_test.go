package sandbox

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Layers as an image has them, unpacked through the store, show what the image means: whiteouts hide, opaque directories
// start afresh.
func TestLayersOfAnImage(t *testing.T) {
	ctx := t.Context()
	st, err := store.Open(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var layers []layer.Descriptor
	for _, files := range [][]string{
		{"data/kept", "data/gone", "fresh/old", "setuid"},
		{"data/.wh.gone", "fresh/.wh..wh..opq", "fresh/new"},
		{}, // as Docker makes for an ENV line, and twice
		{},
	} {
		d, err := layer.FromTar(ctx, st, tarOf(t, files), layer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, d)
	}
	dirs, err := Layers(ctx, st, layers)
	if err != nil {
		t.Fatal(err)
	}
	for i, dir := range dirs {
		want := "-o/root"
		if ownsFiles() {
			want = "-r/root"
		}
		if !strings.HasSuffix(dir, want) {
			t.Errorf("the layer is in %s, want a tree that ends in %s", dir, want)
		}
		// Where there are programs with the setuid bit nobody else may get at them. Root's trees are all closed.
		open := os.FileMode(0o755)
		if ownsFiles() || i == 0 {
			open = 0o700
		}
		if info, err := os.Stat(filepath.Dir(dir)); err != nil || info.Mode().Perm() != open {
			t.Errorf("tree %d has mode %v (%v), want %v", i, info.Mode().Perm(), err, open)
		}
	}
	wantOutput(t, shell(t, "cd /data && ls && cd /fresh && ls && stat -c %u:%g /data/kept", dirs...), "kept\nnew\n"+ownerInside()+"\n")

	again, err := Layers(ctx, st, layers)
	if err != nil || strings.Join(again, " ") != strings.Join(dirs, " ") {
		t.Errorf("the second time: %v, %v", again, err)
	}
}

// ownerInside is the owner of a file of user 33: only root can give it to that one.
func ownerInside() string {
	if ownsFiles() {
		return "33:33"
	}
	return "0:0"
}

// tarOf makes a tar of files that belong to user 33.
func tarOf(t *testing.T, files []string) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	dirs := map[string]bool{}
	for _, name := range files {
		if dir := filepath.Dir(name); dir != "." && !dirs[dir] {
			dirs[dir] = true
			header(t, w, &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, Uid: 33, Gid: 33})
		}
		mode := int64(0o644)
		if name == "setuid" {
			mode = 0o4755
		}
		header(t, w, &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Uid: 33, Gid: 33})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func header(t *testing.T, w *tar.Writer, h *tar.Header) {
	t.Helper()
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
}

// In a container parts of /proc are covered, and the kernel then refuses a new one: the sandbox does with the old.
func TestCoveredProc(t *testing.T) {
	o := shell(t, "test -r /proc/cpuinfo && test -d /proc/self/fd && test $(readlink /proc/self) -gt 20 && echo the host\\'s")
	cmd := helperCommand(t, "covered", o)
	inUserNamespace(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "the host's\n" {
		t.Errorf("%v: %s", err, out)
	}
}
