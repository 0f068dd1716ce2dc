// Package storetest opens stores for tests.
package storetest

import (
	"testing"

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
