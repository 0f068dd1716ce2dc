package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A link is in the way wherever it stands, and also when it leads nowhere.
func TestFilesDir(t *testing.T) {
	dir := t.TempDir()
	if got, err := FilesDir(dir, "tests"); err != nil || got != filepath.Join(dir, ".sconce", "tests") {
		t.Fatal(got, err)
	}
	if err := os.Symlink("elsewhere", filepath.Join(dir, ".sconce")); err != nil {
		t.Fatal(err)
	}
	if _, err := FilesDir(dir); err == nil || !strings.Contains(err.Error(), ".sconce is a symbolic link") {
		t.Error(err)
	}
	dir = t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".sconce"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".sconce", "tests"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := FilesDir(dir, "tests"); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Error(err)
	}
}
