package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/reach"
)

// A lock is written beside a recipe that the user has named, and beside those of its repository that it leads to; nowhere else.
func TestLocksOutside(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", filepath.Join(dir, "home"))
	t.Setenv(reach.Variable, dir) // being read is not being written to
	for name, text := range map[string]string{
		"home/.git/x": "", "home/repo/.git/x": "", "home/repo/a/b/sconce.toml": "", "home/repo/c/sconce.toml": "", "home/other/sconce.toml": "",
		"pipe/pipeline.toml": "", "pipe/apps/a/sconce.toml": "", "pipe/images/b/sconce.toml": "", "plain/a/sconce.toml": "", "plain/b/sconce.toml": "",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../other", filepath.Join(dir, "home/repo/link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, outside string }{
		{"home/repo/a/b", "home/repo/c", ""},
		{"home/repo/a/b", "home/repo", ""},
		{"home/repo/c", "home/other", "home/repo"},
		{"home/repo/c", "home/repo/link", "home/repo"},
		{"home/other", "home/repo/c", ""}, // neither is of a repository but that of the home
		{"pipe/apps/a", "pipe/images/b", ""},
		{"pipe/apps/a", "plain/b", "pipe"},
		{"plain/a", "plain/b", ""},
		{"plain/a", "pipe/images/b", "plain"},
	} {
		want := c.outside
		if want != "" {
			want = resolved(filepath.Join(dir, want))
		}
		if got := outsideOf(filepath.Join(dir, c.from), filepath.Join(dir, c.to)); got != want {
			t.Errorf("%s, to which %s leads, is outside of %q, want %q", c.to, c.from, got, want)
		}
	}

	for name, text := range map[string]string{
		"home/repo/c/sconce.toml": "name = \"a\"\nbase.recipe = \"../../other\"\n", "home/other/sconce.toml": "name = \"b\"\nbase.recipe = \"../../plain/b\"\n",
		"plain/b/sconce.toml": "name = \"c\"\nbase.image = \"debian:12\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := LoadRecipe(filepath.Join(dir, "home/repo/c"), Changes{})
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{}
	if err := r.checkWrites(); err != nil {
		t.Errorf("the recipe that is named: %v", err)
	}
	for _, below := range []*Recipe{r.Below, r.Below.Below} {
		if _, err := s.fittingLock(t.Context(), below, nil, false); err == nil || !strings.Contains(err.Error(), "nothing is written there") {
			t.Errorf("%s: %v", below.Path, err)
		}
	}
}
