package export

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs/squashfstest"
	"sconce.dev/sconce/internal/store/storetest"
)

// filesOf describes what is below a directory.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String() + " " + info.ModTime().UTC().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(data)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " " + target
		}
		found[strings.TrimPrefix(path, dir+"/")] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The kernel shows in a plain file what an image has as a directory.
func TestPlainMounted(t *testing.T) {
	st := storetest.New(t)
	im := sample(t, st)
	dir := t.TempDir()
	file, tree := filepath.Join(dir, "x.sqsh"), filepath.Join(dir, "tree")
	for _, dest := range []string{"plain:" + file, "dir:" + tree} {
		if err := writeTo(t.Context(), im, dest, clusterOptions(st)); err != nil {
			t.Fatal(err)
		}
	}
	mount := squashfstest.Kernel.MountOrSkip(t, file)
	if diff := cmp.Diff(filesOf(t, tree), filesOf(t, mount)); diff != "" {
		t.Errorf("the trees differ (-directory +mounted):\n%s", diff)
	}
}

// A plain file is left alone when it holds the image, replaced when it holds an earlier one of the name, and else kept.
func TestPlainAgain(t *testing.T) {
	st := storetest.New(t)
	im, other := sample(t, st), assemble(t, st, makeLayer(t, st, layer.Zstd, regular("only", "this")))
	path := filepath.Join(t.TempDir(), "x.sqsh")
	o := clusterOptions(st)
	o.Name = "data:1"
	write := func() error { return writeTo(t.Context(), im, "plain:"+path, o) }
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if dirStamp(path) == "" {
		t.Skip("the file system has no extended attributes")
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same is written again: %v", err)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, o.Name = other, "data:2"
	if err := write(); err != nil {
		t.Errorf("a new image of the name: %v", err)
	}
	if got := contentOf(t, path, "only"); got != "this" {
		t.Errorf("it holds %q", got)
	}
	im, o.Name = sample(t, st), "different:1"
	if err := write(); err == nil || !strings.Contains(fault.HintOf(err), "--force") {
		t.Errorf("an image of another name: %v", err)
	}
	o.Name, o.Force = "data:3", true
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(first, again) {
		t.Errorf("the same tree gives other bytes: %v", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("more")
	f.Close()
	if o.Force = false; write() == nil {
		t.Error("a file that another program has changed is replaced")
	}
}
