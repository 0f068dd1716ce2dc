package lock

import (
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/recipe"
)

func writeText(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Files that all say nodefaults stay the only ones that name channels, whatever the recipe adds to them.
func TestNoDefaults(t *testing.T) {
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "closed.yml"), "channels: [https://host/private, nodefaults]\ndependencies: [python]\n")
	writeText(t, filepath.Join(dir, "open.yml"), "channels: [https://host/private]\ndependencies: [python]\n")
	for _, c := range []struct {
		files  []string
		client bool
		closed bool
	}{
		{[]string{"closed.yml"}, true, true},
		{[]string{"closed.yml"}, false, true},
		{[]string{"closed.yml", "open.yml"}, true, false},
		{nil, true, false},
	} {
		r := &recipe.Recipe{Path: filepath.Join(dir, "sconce.toml"), Dir: dir}
		r.Target.Platform = "linux/amd64"
		r.Conda = recipe.Conda{Environment: c.files, Client: c.client}
		k := &condaLocker{recipe: r, config: &condalock.Config{}, conda: Conda{Platform: "linux-64"}}
		got, err := k.request(&condalock.Machine{})
		if err != nil {
			t.Fatal(err)
		}
		closed := true
		for _, s := range got.Sources {
			closed = closed && s.NoDefaults
		}
		if closed != c.closed {
			t.Errorf("%q, client %t: closed %t", c.files, c.client, closed)
		}
	}
}
