package wheelbuild

import (
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// TestDirectoryAsSource: what a build leaves beside a recipe, and what tools keep there, is no part of a project.
func TestDirectoryAsSource(t *testing.T) {
	st := storetest.New(t)
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bring := func() store.Digest {
		t.Helper()
		b, err := Sources{Store: st}.Bring(t.Context(), "mine", python.Source{Kind: python.SourceDirectory, Path: dir})
		if err != nil {
			t.Fatal(err)
		}
		return b.Digest
	}
	write("pyproject.toml")
	write("mine/__init__.py")
	before := bring()
	for _, name := range []string{
		"sconce.lock", "sconce.gpu.lock", "pylock.toml", "pylock.train.toml", "train.sqsh", "mine/train.sif", ".git/HEAD", "mine/__pycache__/a.pyc", "env/pyvenv.cfg",
	} {
		write(name)
		if bring() != before {
			t.Errorf("%s is part of the source", name)
		}
	}
	for _, name := range []string{"uv.lock", "mine/data.toml"} {
		write(name)
		if now := bring(); now == before {
			t.Errorf("%s is no part of the source", name)
		} else {
			before = now
		}
	}
}
