package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// A file that nodes share is refused before a layer comes, when it will not fit itself, or not beside the layers on the same disk.
func TestShareThatDoesNotFit(t *testing.T) {
	dir, manifest := layoutOf(t) // of 300 kB
	for name, c := range map[string]struct {
		disk      string
		storeToo  bool
		wantError string
	}{
		"the file":                         {"size=100k", false, "it will take at least 1 MB"},
		"the file beside the layers":       {"size=400k", true, "together with what is to be downloaded"},
		"enough for the file":              {"size=600k", false, ""},
		"enough for file, layers and more": {"size=4m", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			disk := tooltest.SmallDisk(t, c.disk)
			at := filepath.Join(t.TempDir(), "store")
			if c.storeToo {
				at = filepath.Join(disk, "store")
			}
			s, err := engine.New(t.Context(), engine.Options{Dir: at})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			path, err := s.Share(t.Context(), openLayout(t, s, dir), filepath.Join(disk, "images"), engine.Writing{Squashfs: squashfs.DefaultOptions()})
			if c.wantError == "" {
				if _, statErr := os.Stat(path); err != nil || statErr != nil {
					t.Errorf("%v, %v", err, statErr)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.wantError) {
				t.Errorf("error %v, want %q", err, c.wantError)
			}
			for _, l := range manifest.Layers {
				if s.Store.HasBlob(store.Digest(l.Digest.String())) {
					t.Errorf("layer %s has come", l.Digest)
				}
			}
		})
	}
}

// An output that the packages of a recipe alone are too large for is refused before they are downloaded, whatever room the store has.
func TestOutputThatDoesNotFit(t *testing.T) {
	locktest.Isolate(t)
	wheel := locktest.Wheel{Name: "alpha", Version: "1.0", Pad: 9 << 20}
	x := locktest.NewIndex(t, wheel)
	dir := locktest.Dir(t, locktest.Base{}, map[string]string{"sconce.toml": locktest.Head + python, "pylock.toml": x.Pylock(t, wheel)})
	s, disk := newSession(t), tooltest.SmallDisk(t, "size=1m")
	_, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{Outputs: []string{filepath.Join(disk, "x.sqsh")}})
	if err == nil || !strings.Contains(err.Error(), "it will take at least 5 MB, and only 1 MB are free there") {
		t.Errorf("error %v", err)
	}
	if got := x.Downloads(); len(got) > 0 {
		t.Errorf("%q were downloaded", got)
	}
}
