package madetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What is made once is there the next time, under another key it is made anew, and what failed is not there: neither is what it left.
func TestOnce(t *testing.T) {
	top := t.TempDir()
	if err := os.WriteFile(filepath.Join(top, "go.mod"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(top)
	made := 0
	word := func(_ context.Context, work, dir string) error {
		made++
		return errors.Join(os.WriteFile(filepath.Join(work, "scratch"), nil, 0o644), os.WriteFile(filepath.Join(dir, "word"), []byte("kept"), 0o644))
	}
	for key, want := range map[string]int{"a": 1, "b": 2} {
		made = want - 1
		first := Once(t, "words", key, word)
		if again := Once(t, "words", key, word); again != first || made != want {
			t.Errorf("%s: made %d times, at %s and %s", key, made-want+1, first, again)
		}
		if text, err := os.ReadFile(filepath.Join(first, "word")); err != nil || string(text) != "kept" {
			t.Errorf("%s: %q, %v", key, text, err)
		}
	}
	failed := errors.New("no network")
	dir := filepath.Join(top, ".cache", "words", "c")
	err := makeWhole(t.Context(), dir, func(ctx context.Context, work, dir string) error { return errors.Join(word(ctx, work, dir), failed) })
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	left, err := filepath.Glob(filepath.Join(top, ".cache", "words", "*"))
	if err != nil || len(slices.DeleteFunc(left, func(name string) bool { return filepath.Ext(name) != "" })) != 2 {
		t.Errorf("there are %q, %v", left, err)
	}
}
