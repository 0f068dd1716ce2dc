package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What cannot be written, or is no directory, will not do, and of the places that will one is chosen; trying leaves nothing behind.
func TestChooseLocalPlace(t *testing.T) {
	dir := t.TempDir()
	if err := HoldsLayers(dir); err != nil {
		t.Skipf("temporary files of this machine are where no overlay can be: %v", err)
	}
	none := filepath.Join(dir, "none")
	p, err := ChooseLocalPlace([]string{none, "/proc", dir})
	if err != nil || p.Dir != dir || p.Room <= 0 || p.Type != FileSystemOf(dir).Type {
		t.Errorf("%+v, %v", p, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if p, err := ChooseLocalPlace([]string{none, "/proc"}); err == nil || !strings.Contains(err.Error(), none) || !strings.Contains(err.Error(), "/proc") {
		t.Errorf("there is no place: %+v, %v", p, err)
	}
	long := filepath.Join(dir, strings.Repeat("x", 150)) // longer than the address of a socket
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := HoldsLayers(long); err != nil {
		t.Error(err)
	}
}
