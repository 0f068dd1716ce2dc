// Package storetest opens stores for tests.
package storetest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/store"
)

// New opens an empty store, which is closed when the test ends.
func New(t testing.TB) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// Alone is [New] without the shared stores of this machine, for tests that count on what is not there. They cannot run in parallel.
func Alone(t testing.TB) *store.Store {
	t.Helper()
	t.Setenv("SCONCE_SHARED_STORES", "")
	return New(t)
}

// WaitForPartial waits until a download into the store at dir has put n bytes on disk.
func WaitForPartial(t testing.TB, dir string, n int64) {
	t.Helper()
	childtest.Eventually(t, "a download", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "tmp-v1", "partial-*")) // the pattern is a good one
		return slices.ContainsFunc(files, func(f string) bool {
			fi, err := os.Stat(f)
			return err == nil && fi.Size() >= n
		})
	})
}
