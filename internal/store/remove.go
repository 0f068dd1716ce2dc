package store

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// RemoveAll removes dir with everything below it, directories without permissions and of any depth included: images contain
// them, so does the work directory of an overlay, and a step may have made what it likes.
func RemoveAll(dir string) error {
	err := os.RemoveAll(dir) // holds a file open for every level, of which a process may have a few thousand
	if err == nil {
		return nil
	}
	if flatten(dir) != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// maxLevels is how deep directories lie after flatten, below the one that it makes.
const maxLevels = 64

// flattener makes a tree easy to remove.
type flattener struct {
	shelf int // directory for what lay too deep, below numbers
	moved int
}

// flatten gives directories below dir all permissions, and moves those that lie deep to a new one in dir. What it cannot reach
// is left for the removal to report.
func flatten(dir string) error {
	root, err := openAny(unix.AT_FDCWD, dir)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	f := flattener{shelf: -1} // a full disk has no room for one, and hardly a tree that needs it
	if name, err := os.MkdirTemp(dir, "deep-*"); err == nil {
		if f.shelf, err = openAny(unix.AT_FDCWD, name); err != nil {
			return err
		}
		defer unix.Close(f.shelf)
	}
	f.below(root, 1)
	for done := 0; done < f.moved; done++ {
		f.visit(f.shelf, strconv.Itoa(done), 1)
	}
	return nil
}

// openAny opens a directory, whatever its permissions.
func openAny(parent int, name string) (int, error) {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	_ = unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700) // else the next call says why
	return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

func (f *flattener) visit(parent int, name string, level int) {
	fd, err := openAny(parent, name)
	if err != nil {
		return // no directory
	}
	defer unix.Close(fd)
	if level < maxLevels {
		f.below(fd, level+1)
		return
	}
	if unix.Renameat(parent, name, f.shelf, strconv.Itoa(f.moved)) == nil {
		f.moved++
	}
}

// below visits what is in a directory.
func (f *flattener) below(dir, level int) {
	fd, err := unix.Dup(dir)
	if err != nil {
		return
	}
	list := os.NewFile(uintptr(fd), "directory")
	names, _ := list.Readdirnames(-1)
	list.Close()
	for _, name := range names {
		f.visit(dir, name, level)
	}
}
