package test

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/tooltest"
)

// Two stores, two directories, two users, two umasks, two time zones and languages, one or all cores, old and new files:
// one recipe with its lock is one image, to the last byte of its layout.
func TestSameBytesForEverybody(t *testing.T) {
	begin(t)
	app := lockedRecipe(t, newIndex(t), recipe(base(t).ref, everything))

	mine := newPlace(t, nil)
	mine.env = []string{"TZ=UTC", "LC_ALL=C"}
	mine.take(app, "app")

	theirs := newPlace(t, ordinary(t))
	theirs.umask = "077"
	theirs.env = []string{"TZ=Pacific/Kiritimati", "LC_ALL=tr_TR.UTF-8", "LANG=tr_TR.UTF-8", "GOMAXPROCS=1"}
	theirs.take(app, "an example – örnek")
	age(t, theirs.path("an example – örnek"), time.Date(1999, 12, 31, 23, 59, 59, 0, time.UTC))

	for _, compression := range []string{"zstd", "gzip"} {
		a := mine.build("--locked", "--compression", compression, "app", "-o", "oci:"+mine.path(compression))
		b := theirs.build("--locked", "--compression", compression, "an example – örnek", "-o", "oci:"+theirs.path(compression))
		if a != b {
			t.Errorf("%s: digests differ: %s, %s", compression, a, b)
		}
		wantSameFiles(t, mine.path(compression), theirs.path(compression))
	}
	mine.wantTidy()
	theirs.wantTidy()
}

// Another machine, in another year: the command for arm64, run by an emulator whose clock is set to 2041. qemu asks the
// C library for the time on behalf of its guest, and faketime answers.
//
// The store has the wheels and nothing else, so all layers are made there. Byte code is left out: the image's Python is
// for amd64.
func TestSameBytesOnAnotherMachineInAnotherYear(t *testing.T) {
	begin(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("this machine is no amd64")
	}
	qemu, faketime := tooltest.Path(t, "qemu-aarch64"), tooltest.Path(t, "faketime")
	app := lockedRecipe(t, newIndex(t), recipe("tar:"+smallRoot(t), few, "bytecode = false", "[target]", `platform = "linux/amd64"`))
	here := newPlace(t, nil)
	here.take(app, "app")
	want := here.build("--locked", "app", "-o", "oci:"+here.path("out"))

	there := newPlace(t, nil)
	there.take(app, "elsewhere")
	takeWheels(t, here, there)
	// As .ci/run has compiled it before: nothing but the linker's work is left.
	if err := compile("arm64", there.path("sconce"), "-gcflags=all=-l -dwarf=false"); err != nil {
		t.Fatal(err)
	}
	const year = "2041"
	there.program = []string{faketime, "-f", "@" + year + "-05-06 07:08:09", qemu, there.path("sconce")}
	// The clock that cannot be set, and by which Go sleeps, stays; so do the times of files.
	there.env = []string{"FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1", "TZ=UTC"}
	got := there.build("--locked", "--offline", "elsewhere", "-o", "oci:"+there.path("out"))
	if got != want {
		t.Errorf("digests differ: %s here, %s there", want, got)
	}
	wantSameFiles(t, here.path("out"), there.path("out"))
	if images := there.must("images", "--json").stdout; !strings.Contains(images, `"created": "`+year+"-") {
		t.Errorf("the clock was not set: %s", images)
	}
}

// takeWheels gives to the store of one place the wheels in that of another, and nothing else.
func takeWheels(t *testing.T, from, to *place) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(wheelDir(t), "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := blobFile(data)
		if _, err := os.Stat(filepath.Join(from.store, name)); err != nil {
			continue
		}
		path := filepath.Join(to.store, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o444)); err != nil {
			t.Fatal(err)
		}
		taken++
	}
	if taken < len(few) {
		t.Fatalf("only %d wheels were found in the store", taken)
	}
	to.own()
}

// age sets the times of everything below dir.
func age(t *testing.T, dir string, to time.Time) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, to, to))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantSameFiles fails unless two directories hold files of the same names and contents.
func wantSameFiles(t *testing.T, a, b string) {
	t.Helper()
	sumsA, sumsB := sums(t, a), sums(t, b)
	for _, name := range slices.Sorted(maps.Keys(sumsA)) {
		if sumsA[name] != sumsB[name] {
			t.Errorf("%s is not the same in %s and %s", name, a, b)
		}
	}
	if len(sumsA) != len(sumsB) || len(sumsA) < 5 {
		t.Errorf("%d files in %s, %d in %s", len(sumsA), a, len(sumsB), b)
	}
}

func sums(t *testing.T, dir string) map[string][sha256.Size]byte {
	t.Helper()
	out := make(map[string][sha256.Size]byte)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = sha256.Sum256(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
