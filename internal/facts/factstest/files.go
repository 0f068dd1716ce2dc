package factstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Of gathers the facts of a root as of an image for linux/amd64 with these variables.
func Of(t testing.TB, r facts.Root, env ...string) *facts.Facts {
	t.Helper()
	f, err := facts.OfRoot(t.Context(), r, "test", "linux/amd64", v1.Config{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// WriteFiles lays files in a new directory, the content by name; a name that ends in a slash is a directory, a content
// that starts with "-> " a link.
func WriteFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "-> ")
		var err error
		if link {
			err = os.Symlink(target, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Metadata returns a METADATA file.
func Metadata(name, version string, lines ...string) string {
	return "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n" + strings.Join(lines, "\n") + "\n\nA description.\n"
}
