package store_test

import (
	"os"
	"path/filepath"
	"testing"
)

// A file for work can be written and read, and has no name from the start.
func TestTempFile(t *testing.T) {
	s := open(t, t.TempDir())
	f, err := s.TempFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("text"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if n, err := f.ReadAt(got, 0); err != nil || string(got[:n]) != "text" {
		t.Errorf("read %q, %v", got[:n], err)
	}
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp-v1")); err != nil || len(left) > 0 {
		t.Errorf("there is %v, %v", left, err)
	}
}
