package pipeline

import (
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/recipe"
)

// Images are promoted from one branch; a CI system's word goes before what is checked out.
func TestBranch(t *testing.T) {
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range branchVariables {
		t.Setenv(name, "")
	}
	top := t.TempDir()
	p := &Pipeline{Pipeline: &recipe.Pipeline{Branch: "main"}}
	p.Dir = filepath.Join(top, "images")
	put(filepath.Join(p.Dir, "x"), "")
	want := func(what string, only bool) {
		t.Helper()
		if got := p.onlyTell(t.Context(), "nothing is promoted"); got != only {
			t.Errorf("%s: only tells: %v", what, got)
		}
	}
	put(filepath.Join(top, ".git/HEAD"), "ref: refs/heads/main\n")
	want("on main", false)
	put(filepath.Join(top, ".git/HEAD"), "ref: refs/heads/feature/main\n")
	want("on another branch", true)
	put(filepath.Join(top, ".git/HEAD"), "0123456789abcdef0123456789abcdef01234567\n")
	want("at a commit", true)
	t.Setenv("CI_COMMIT_BRANCH", "main")
	want("at a commit of main, in CI", false)
	t.Setenv("CI_COMMIT_BRANCH", "")
	put(filepath.Join(top, "git/worktrees/w/HEAD"), "ref: refs/heads/main\n")
	put(filepath.Join(p.Dir, ".git"), "gitdir: ../git/worktrees/w\n")
	want("in a work tree", false)
	put(filepath.Join(p.Dir, ".git"), "nonsense")
	want("in a damaged one", true)
}
