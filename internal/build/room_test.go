package build_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// Wheels that fit one by one and not together are refused before the first is downloaded; where all are in layers already, a full disk is no
// reason to refuse.
func TestWheelsThatDoNotFit(t *testing.T) {
	locktest.Isolate(t)
	wheels := []locktest.Wheel{large("one"), large("two"), large("three")}
	x := locktest.NewIndex(t, wheels...)
	on := func(disk string) (string, *store.Store) {
		dir := tooltest.SmallDisk(t, disk)
		st, err := store.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.Close() })
		return dir, st
	}
	_, small := on("size=20m")
	_, err := run(t.Context(), small, recipeDir(t, locktest.Base{}, x, "", wheels...))
	if err == nil || !strings.Contains(err.Error(), "downloads of 28.3 MB are to come") {
		t.Errorf("error %v", err)
	}
	if got := x.Downloads(); len(got) > 0 {
		t.Errorf("%q were downloaded", got)
	}
	dir, st := on("size=120m")
	mustRun(t.Context(), t, st, recipeDir(t, locktest.Base{}, x, "", wheels...))
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs-v1/sha256/*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wheels {
		gone := store.DigestOf(w.Bytes(t)).Hex()
		for _, blob := range blobs {
			if filepath.Base(blob) == gone {
				if err := os.Remove(blob); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	size := int64(0)
	for buf := make([]byte, 1<<20); err == nil; size += int64(len(buf)) {
		_, err = filler.Write(buf)
	}
	if err := filler.Truncate(size - 12<<20); err != nil { // so much is left for the new image, and less than a download of all would take
		t.Fatal(err)
	}
	if _, err := run(t.Context(), st, recipeDir(t, locktest.Base{}, x, "[image]\nenv = { A = \"1\" }\n", wheels...)); err != nil {
		t.Error(err)
	}
}
