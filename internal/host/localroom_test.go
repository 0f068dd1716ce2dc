package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/tooltest"
)

// readOnly has a directory's disk only be read.
func readOnly(t *testing.T, dir string) string {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Of disks that can hold layers the one with the most room is taken, unless one that is preferred has enough; what cannot hold them is not,
// whatever room it has.
func TestLocalPlaceByRoom(t *testing.T) {
	small, larger, largest := tooltest.SmallDisk(t, "size=1m"), tooltest.SmallDisk(t, "size=4m"), tooltest.SmallDisk(t, "size=8m")
	full := tooltest.SmallDisk(t, "size=9m")
	if err := os.WriteFile(filepath.Join(full, "file"), make([]byte, 9<<20-8<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	files := tooltest.SmallDisk(t, "size=64m,nr_inodes=8")
	network, locked := tooltest.WithoutAttributes(t), readOnly(t, tooltest.SmallDisk(t, "size=16m"))
	for name, c := range map[string]struct {
		dirs []string
		want string
	}{
		"a small one is left for a larger one":           {[]string{small, larger, largest}, largest},
		"wherever it stands":                             {[]string{largest, larger, small}, largest},
		"what others use is not counted":                 {[]string{full, small}, small},
		"where files are too few":                        {[]string{files, small}, small},
		"room is of no use where no layer can be":        {[]string{network, locked, small}, small},
		"of two with the same room the preferred":        {[]string{small, small + "/."}, small},
		"what is not there is passed over":               {[]string{small + "/none", small}, small},
		"one that was named twice is tried as one is":    {[]string{small, small, larger}, larger},
		"a network file system in front changes nothing": {[]string{network, small, larger}, larger},
	} {
		if p, err := ChooseLocalPlace(c.dirs); err != nil || p.Dir != c.want || p.Type != "tmpfs" {
			t.Errorf("%s: %+v, %v, want %s", name, p, err, c.want)
		}
	}
	_, err := ChooseLocalPlace([]string{network, locked})
	if err == nil || !strings.Contains(err.Error(), network+" (fuse): no extended attributes") || !strings.Contains(err.Error(), locked+"/") {
		t.Errorf("no place, and it does not say why of each: %v", err)
	}
}

// A disk in memory is no larger than half of the memory that is left, whatever it says, and less where it says less.
func TestLocalPlaceInMemory(t *testing.T) {
	half := AvailableMemory().Available / 2
	for size, want := range map[string]int64{"size=100t": half, "size=8m": 8 << 20} {
		p := placeAt(tooltest.SmallDisk(t, size))
		if p.Type != "tmpfs" || p.Room < want*9/10 || p.Room > want*11/10 { // memory comes and goes meanwhile
			t.Errorf("%s: %+v, want room for about %d", size, p, want)
		}
	}
}

// The first place with enough room is taken, though there is a larger one, and memory is no more than it is.
func TestLocalPlaceWithEnough(t *testing.T) {
	memory := tooltest.SmallDisk(t, "size=100t")
	disk := t.TempDir()
	if fs := FileSystemOf(disk); fs.Type == "tmpfs" || fs.Free < enoughRoom || AvailableMemory().Available/2 >= enoughRoom {
		t.Skip("this needs a disk with room for an image with PyTorch, and less memory than for two")
	}
	for _, dirs := range [][]string{{memory, disk}, {disk, memory}} {
		if p, err := ChooseLocalPlace(dirs); err != nil || p.Dir != disk {
			t.Errorf("of %q: %+v, %v, want %s", dirs, p, err, disk)
		}
	}
}

// TMPDIR is looked at first, and what a profile names before it.
func TestLocalPlaceOfTMPDIR(t *testing.T) {
	tmp, network := tooltest.SmallDisk(t, "size=1m"), tooltest.WithoutAttributes(t)
	t.Setenv("TMPDIR", tmp)
	p, reason, err := PlaceInstead(network)
	if err != nil || reason == nil || p.Dir == tmp || p.Room <= 1<<20 {
		t.Errorf("TMPDIR is small: %+v, %v, %v", p, reason, err)
	}
	if p, reason, err := PlaceInstead(tmp); p.Dir != "" || reason != nil || err != nil {
		t.Errorf("a store in TMPDIR is good: %+v, %v, %v", p, reason, err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	if FileSystemOf(os.TempDir()).Free < enoughRoom || HoldsLayers(os.TempDir()) != nil {
		t.Skip("there is too little room for TMPDIR to be enough")
	}
	if p, _, err := PlaceInstead(network); err != nil || p.Dir != os.TempDir() {
		t.Errorf("TMPDIR has room: %+v, %v", p, err)
	}
	if p, _, err := PlaceInstead(network, tmp); err != nil || p.Dir != os.TempDir() {
		t.Errorf("what a profile names is small: %+v, %v", p, err)
	}
	named := t.TempDir()
	if p, _, err := PlaceInstead(network, named); err != nil || p.Dir != named {
		t.Errorf("what a profile names has room: %+v, %v", p, err)
	}
}
