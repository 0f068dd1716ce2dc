package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
)

// A recipe that a program has put together gives the image that the same one in a file does. Its lock is where it says, or
// nowhere: then nothing is written beside what it names.
func TestNewRecipe(t *testing.T) {
	locktest.UV(t)
	locktest.Isolate(t)
	x := locktest.NewIndex(t, locktest.Wheel{Name: "alpha", Version: "1.0"})
	t.Setenv("UV_DEFAULT_INDEX", x.URL)
	dir := locktest.Dir(t, locktest.Base{}, map[string]string{
		recipe.FileName: locktest.Head + "[python]\npackages = [\"alpha\"]\nbytecode = false\n",
	})
	s := newSession(t)
	fromFile, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	read, err := recipe.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sconce.lock", "pylock.toml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := filepath.Join(t.TempDir(), "mine.lock")
	for _, place := range []string{"", elsewhere} {
		made := recipe.Recipe{Path: "the command line", Dir: dir, Reach: reach.In("the test", dir).With(filepath.Dir(elsewhere)), Name: read.Name, Base: read.Base, Python: read.Python, LockFile: place}
		r, err := engine.NewRecipe(made)
		if err != nil {
			t.Fatal(err)
		}
		planned, err := s.Plan(t.Context(), r, engine.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer planned.Close()
		built, err := s.Build(t.Context(), planned, engine.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if built.Image.Digest != fromFile.Image.Digest {
			t.Errorf("with the lock at %q: %s, and from a file %s", place, built.Image.Digest, fromFile.Image.Digest)
		}
		_, err = s.Plan(t.Context(), r, engine.PlanOptions{Locked: true})
		if place == "" && (err == nil || !strings.Contains(err.Error(), "has no lock")) || place != "" && err != nil {
			t.Errorf("with the lock at %q, --locked: %v", place, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*lock*")); left != nil {
		t.Errorf("locks beside what the recipe names: %q", left)
	}
	for _, name := range []string{"mine.lock", "pylock.mine.toml"} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(elsewhere), name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := engine.NewRecipe(recipe.Recipe{Path: "the command line", Dir: dir, Name: "x"}); err == nil {
		t.Error("a recipe without a base is one")
	}
}
