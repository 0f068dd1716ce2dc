package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

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
		r, err := loadRecipe(buildOptions{recipe: filepath.Join(dir, c.file), platform: c.flag})
		if err != nil {
			t.Fatal(err)
		}
		if r.Target.Platform != c.platform || !slices.Equal(r.Target.GPU, c.gpu) {
			t.Errorf("%s, --platform %q: %+v", c.file, c.flag, r.Target)
		}
	}
}
