package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// session is one with a store of its own and no network.
func session(t testing.TB) *Session {
	t.Helper()
	s, err := New(context.Background(), Options{Dir: filepath.Join(t.TempDir(), "store"), Offline: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestOwnName(t *testing.T) {
	s := session(t)
	d, err := s.Store.PutBlob([]byte("manifest"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store.PutImage(store.ImageRef{Name: "mine", Tag: "3", Digest: d}, []store.Digest{d}); err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("ab", 32)
	for written, want := range map[string]string{
		"docker://debian:12":                 "debian:12",
		"debian":                             "debian:latest",
		"localhost:5000/x":                   "localhost:5000/x:latest",
		"docker://me@nvcr.io#nvidia/cuda:12": "nvcr.io/nvidia/cuda:12",
		"ghcr.io/a/b@" + digest:              "ghcr.io/a/b:sha256-abababababab",
		"ghcr.io/a/b:1@" + digest:            "ghcr.io/a/b:1",
		"oci:some/dir:tag":                   "dir:tag",
		"docker-archive:a/saved.tar.gz":      "saved:latest",
		"tar:/tmp/root.tar.zst":              "root:latest",
		"mine":                               "mine:3",
	} {
		subject, err := s.Open(written, Wanted{})
		if err != nil {
			t.Errorf("%s: %v", written, err)
			continue
		}
		if got := subject.OwnName(); got != want {
			t.Errorf("%s is named %s, want %s", written, got, want)
		}
	}
}

func TestWithTag(t *testing.T) {
	for ref, want := range map[string]string{
		"host/x": "host/x:t", "host/x:1": "host/x:1", "localhost:5000/x": "localhost:5000/x:t",
		"docker://localhost:5000/x:1": "docker://localhost:5000/x:1", "docker://x": "docker://x:t",
	} {
		if got := withTag(ref, "t"); got != want {
			t.Errorf("withTag(%q) = %q, want %q", ref, got, want)
		}
	}
}

// TestLoadRecipeCluster: what is compiled is compiled for the cluster that the recipe names, as if it said so itself.
func TestLoadRecipeCluster(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"here.toml":   "description = \"ours\"\nplatform = \"linux/arm64\"\ngpu = [\"8.0\", \"9.0\"]\n",
		"sconce.toml": "name = \"x\"\n[base]\nimage = \"debian:12\"\n[target]\ncluster = \"./here.toml\"\n",
		"own.toml":    "name = \"x\"\n[base]\nimage = \"debian:12\"\n[target]\ncluster = \"./here.toml\"\nplatform = \"linux/amd64\"\ngpu = [\"9.0\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		file, flag, platform string
		gpu                  []string
	}{
		{"sconce.toml", "", "linux/arm64", []string{"8.0", "9.0"}},
		{"sconce.toml", "linux/amd64", "linux/amd64", []string{"8.0", "9.0"}},
		{"own.toml", "", "linux/amd64", []string{"9.0"}},
	} {
		r, err := LoadRecipe(filepath.Join(dir, c.file), Changes{Platform: c.flag})
		if err != nil {
			t.Fatal(err)
		}
		for what, got := range map[string]recipe.Target{"target": {Profile: cluster.Profile{Platform: r.Target.Platform, GPU: r.Target.GPU}}, "what is locked": r.pinned.Target} {
			if got.Platform != c.platform || !slices.Equal(got.GPU, c.gpu) {
				t.Errorf("%s, platform %q: %s: %+v", c.file, c.flag, what, got)
			}
		}
		if said := r.Recipe.Target.GPU; c.file == "sconce.toml" && said != nil {
			t.Errorf("%s: the recipe says %q now", c.file, said)
		}
	}
}

func TestGPUSuffix(t *testing.T) {
	if got := gpuSuffix([]int{80, 90}); got != "-sm80-90" {
		t.Errorf("got %s", got)
	}
}
