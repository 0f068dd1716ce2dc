package wheelbuild

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// makeRepository makes a repository of one commit that can be read over plain files, and returns the commit.
func makeRepository(t *testing.T, dir string) string {
	t.Helper()
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet")
	if err := os.WriteFile(filepath.Join(dir, "setup.py"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "--quiet", "-m", "x")
	git("update-server-info")
	return git("rev-parse", "HEAD")
}

// A server that takes the connection and says nothing is left, and asked again.
func TestRepositoryOnSilentServer(t *testing.T) {
	tooltest.Path(t, "git")
	t.Setenv("GIT_HTTP_LOW_SPEED_TIME", "1")
	dir := t.TempDir()
	src := python.Source{Kind: python.SourceGit, Commit: makeRepository(t, dir)}
	var asked atomic.Int64
	files := http.FileServer(http.Dir(filepath.Join(dir, ".git")))
	over := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			<-over
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(over) })
	src.URL = srv.URL
	st := storetest.New(t)
	s := Sources{Store: st, Fetch: fetch.New(st, fetch.Options{Backoff: time.Millisecond, Attempts: 3})}
	if _, err := s.Bring(t.Context(), "x", src); err != nil {
		t.Fatal(err)
	}
}
