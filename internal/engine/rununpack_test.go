package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// unpackArguments are those that TestMain understands.
func unpackArguments(dir string, image store.Digest) []string { return []string{dir, string(image)} }

// packed imports an image of one layer into a new store, and returns its root file system, read from the layer.
func packed(t *testing.T, store string) (*Session, *image.Image, *Root) {
	t.Helper()
	s, err := New(t.Context(), Options{Dir: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	subject, err := s.Open("dir:"+dir, Wanted{Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH}})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	im, err := subject.Import(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	root, err := s.RootFromLayers(t.Context(), im)
	if err != nil || root == nil {
		t.Fatalf("root %v, %v", root, err)
	}
	return s, im, root
}

// The layers of an image are unpacked behind the command that runs on them, so that the next one has them.
func TestUnpackedBehind(t *testing.T) {
	s, im, root := packed(t, t.TempDir())
	stop := unpackBehind(s, root, unpackArguments, 0)
	defer stop()
	childtest.Eventually(t, "the unpacked layer", func() bool { return len(sandbox.Missing(s.Store, im.Layers)) == 0 })
	dirs, err := sandbox.Layers(t.Context(), s.Store, im.Layers)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dirs[0], "file")); string(got) != "content" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if again, err := s.RootFromLayers(t.Context(), im); again != nil || err != nil {
		t.Errorf("the next command reads from layers: %v, %v", again, err)
	}
}

// A command that ends soon has nothing unpacked.
func TestNothingUnpackedBehindAShortCommand(t *testing.T) {
	s, im, root := packed(t, t.TempDir())
	unpackBehind(s, root, unpackArguments, time.Hour)()
	if left := sandbox.Missing(s.Store, im.Layers); len(left) != 1 {
		t.Errorf("%d layers are packed, want 1", len(left))
	}
}

// Unpacking ends when its standard input does, wherever it is: this process may be killed. It is idle work.
func TestUnpackingEnds(t *testing.T) {
	s, im, _ := packed(t, t.TempDir())
	lock, err := s.Store.Lock(t.Context(), "tree "+treeOf(im.Layers[0]), "keeps a layer from being unpacked")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	cmd := unpacking(unpackArguments(s.Store.Dir(), im.Digest))
	stdin, err := startIdle(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if attr, err := unix.SchedGetAttr(cmd.Process.Pid, 0); err != nil || attr.Policy != unix.SCHED_IDLE {
		t.Errorf("policy %+v, %v", attr, err)
	}
	if err := stdin.Close(); err != nil {
		t.Error(err)
	}
	childtest.Eventually(t, "the end of unpacking", func() bool { return errors.Is(cmd.Process.Signal(unix.Signal(0)), os.ErrProcessDone) })
	if left := sandbox.Missing(s.Store, im.Layers); len(left) != 1 {
		t.Errorf("%d layers are packed, want 1", len(left))
	}
	if left, err := os.ReadDir(filepath.Join(s.Store.Dir(), "tmp-v1")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Nothing is unpacked behind a command on a disk that has no room to spare.
func TestNoRoomToUnpackBehind(t *testing.T) {
	s, im, root := packed(t, tooltest.SmallDisk(t, "size=64m"))
	if _, ok := s.ToUnpack(root); ok {
		t.Error("it would begin")
	}
	if err := s.Unpack(t.Context(), im.Digest); err == nil || !strings.Contains(err.Error(), "no room to spare") {
		t.Errorf("it began: %v", err)
	}
	if left := sandbox.Missing(s.Store, im.Layers); len(left) != 1 {
		t.Errorf("%d layers are packed, want 1", len(left))
	}
}

// treeOf is what the store calls an unpacked layer.
func treeOf(d layer.Descriptor) string {
	owners := "o"
	if sandbox.Unpacked().Owners {
		owners = "r"
	}
	return fmt.Sprintf("layer-%.32s-%s", d.DiffID.Hex(), owners)
}
