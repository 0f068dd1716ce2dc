package engine

import (
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/store"
)

// A flag goes before the environment, and that before the configuration.
func TestSettingsOrder(t *testing.T) {
	for _, name := range variables {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_CACHE_HOME", "/cache")
	set := Settings{}
	want := func(where string) {
		t.Helper()
		if dir, err := set.Dir(); err != nil || dir != where {
			t.Errorf("the store is %q, %v, want %q", dir, err, where)
		}
	}
	want("/cache/sconce")
	set.Config.Store = "/of-site"
	want("/of-site")
	t.Setenv("SCONCE_STORE", "/of-environment")
	want("/of-environment")
	set.Store = "/of-flag"
	want("/of-flag")
}

// The variable goes before the policy that lies in the store, and that before the configuration.
func TestLimitsOrder(t *testing.T) {
	st, err := store.OpenShared(t.Context(), filepath.Join(t.TempDir(), "store"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	t.Setenv("SCONCE_STORE_SIZE", "")
	size, err := config.ParseSize("3GB")
	if err != nil {
		t.Fatal(err)
	}
	set := Settings{Config: config.Config{StoreSize: &size}}
	want := func(bytes int64) {
		t.Helper()
		if l, _, err := set.Limits(st); err != nil || l.Bytes != bytes {
			t.Errorf("the limit is %d, %v, want %d", l.Bytes, err, bytes)
		}
	}
	want(3e9)
	if err := os.WriteFile(filepath.Join(st.Dir(), config.PolicyFile), []byte("max-size = \"2GB\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want(2e9)
	t.Setenv("SCONCE_STORE_SIZE", "1GB")
	want(1e9)
}
