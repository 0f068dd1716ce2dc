package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func noFiles(string) error { return nil }

func TestCacheDir(t *testing.T) {
	ctx := t.Context()
	s := openTemp(t)
	take := func(sharing CacheSharing) *CacheDir {
		t.Helper()
		c, err := s.CacheDir(ctx, "pip downloads: any name/../ at all", sharing, noFiles)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := take(CacheShared), take(CacheShared)
	if a.Dir != b.Dir {
		t.Errorf("shared: %s and %s", a.Dir, b.Dir)
	}
	if err := os.WriteFile(filepath.Join(a.Dir, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c, d := take(CachePrivate), take(CachePrivate)
	if c.Dir == a.Dir || d.Dir == a.Dir || c.Dir == d.Dir {
		t.Errorf("private: %s, %s, beside %s", c.Dir, d.Dir, a.Dir)
	}
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := s.CacheDir(soon, "pip downloads: any name/../ at all", CacheLocked, noFiles); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked beside others: %v", err)
	}
	for _, used := range []*CacheDir{a, b, c, d} {
		used.Release()
	}
	e := take(CacheLocked)
	if _, err := os.Stat(filepath.Join(e.Dir, "x")); err != nil {
		t.Error(err)
	}
	e.Release()
	// Nothing is left of a cache that could not be begun.
	wrong := errors.New("wrong")
	if _, err := s.CacheDir(ctx, "other", CacheShared, func(string) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("error %v", err)
	}
	if _, err := s.CacheDir(ctx, "other", CacheLocked, noFiles); err != nil {
		t.Error(err)
	}
}

func TestCacheDirIsPrunedByAge(t *testing.T) {
	s := openTemp(t)
	paths := map[string]string{}
	for _, name := range []string{"old", "new"} {
		c, err := s.CacheDir(t.Context(), name, CacheShared, noFiles)
		if err != nil {
			t.Fatal(err)
		}
		c.Release()
		paths[name] = c.Dir
	}
	past := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(paths["old"]+doneSuffix, past, past); err != nil {
		t.Fatal(err)
	}
	log, err := s.NewLog("RUN make -j 4 && x/y")
	if err != nil {
		t.Fatal(err)
	}
	log.Close()
	if ok, _ := filepath.Match("*-RUN-make-j-4-x-y-*.log", filepath.Base(log.Name())); !ok {
		t.Errorf("log %s", log.Name())
	}
	report, err := s.Prune(t.Context(), PruneOptions{OlderThan: 24 * time.Hour})
	if err != nil || report.Trees != 1 || report.Temps != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := os.Stat(paths["old"]); err == nil {
		t.Error("the old cache is there")
	}
	if _, err := os.Stat(paths["new"]); err != nil {
		t.Error(err)
	}
	if err := os.Chtimes(log.Name(), past, past); err != nil {
		t.Fatal(err)
	}
	if report, err := s.Prune(t.Context(), PruneOptions{OlderThan: 24 * time.Hour}); err != nil || report.Temps != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := os.Stat(log.Name()); err == nil {
		t.Error("the old log is there")
	}
}

// A tree that was not put on disk is made again after the machine's next boot.
func TestQuickTree(t *testing.T) {
	s := openTemp(t)
	made := 0
	get := func() string {
		t.Helper()
		dir, err := s.QuickTree(t.Context(), "layer-x", func(dir string) error {
			made++
			return os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir := get()
	if get() != dir || made != 1 {
		t.Errorf("made %d times", made)
	}
	if same, err := s.Tree(t.Context(), "layer-x", nil); err != nil || same != dir {
		t.Errorf("%s, %v", same, err)
	}
	os.Remove(dir + doneSuffix)
	if err := markTree(dir, "another boot"); err != nil {
		t.Fatal(err)
	}
	if get() != dir || made != 2 {
		t.Errorf("made %d times", made)
	}
}
