package engine_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// What commands read of an image is recorded once, in its order, whether its layers were made here or come in a file from elsewhere.
func TestStartIsRecorded(t *testing.T) {
	if err := fuse.Check(); err != nil {
		tooltest.Missing(t, "a start is recorded by FUSE: %v", err)
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root.tar")
	if err := os.WriteFile(root, condatest.Root(t), 0o644); err != nil {
		t.Fatal(err)
	}
	s := newSession(t)
	how := engine.Writing{Start: []string{"cat /etc/passwd", "cat /bin/bash /etc/passwd > /dev/null && ls /etc"}}
	for name, image := range map[string]string{"own layers": "tar:" + root, "a file": "sqsh:" + filepath.Join(dir, "plain.sqsh")} {
		if name == "a file" {
			copyTo(t, s, "tar:"+root, strings.TrimPrefix(image, "sqsh:"), engine.Writing{})
		}
		for range 2 {
			copyTo(t, s, image, filepath.Join(dir, "ordered.sqsh"), how)
		}
		keys, err := s.Store.Keys(store.KindStart)
		if err != nil || len(keys) == 0 {
			t.Fatal(keys, err)
		}
		for _, k := range keys {
			var order []string
			if _, err := s.Store.GetRecord(store.KindStart, k, &order); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(order, []string{"bin/busybox", "etc/passwd", "bin/bash"}) {
				t.Errorf("%s: what was read is %q", name, order)
			}
		}
	}
}

func copyTo(t *testing.T, s *engine.Session, from, to string, how engine.Writing) {
	t.Helper()
	subject, err := s.Open(from, engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	how.Force = true
	if _, err := s.Copy(t.Context(), subject, to, how); err != nil {
		t.Fatal(err)
	}
}
