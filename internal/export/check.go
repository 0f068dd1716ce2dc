package export

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// CheckTarget looks at what is at a destination before anything is made for it, so that nobody waits for an image to be told that it has
// no place. name is that of the image, whose earlier files are replaced; "" passes the files of any image that sconce wrote, as long as
// it is open which image it will be. What passes is looked at again when it is written.
func CheckTarget(t Target, name string, force bool) error {
	return explain(t, checkTarget(t, name, force))
}

func checkTarget(t Target, name string, force bool) error {
	path, err := filepath.Abs(t.Path)
	if err != nil {
		return err
	}
	t.Path = path
	_, err = os.Lstat(t.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return checkParent(t.Path)
	case err != nil:
		return err
	case t.IsClusterFile():
		return checkClusterFile(t, name, force)
	case t.Transport == source.OCI:
		return checkLayout(t, force)
	case t.Transport == source.Dir:
		return mayReplaceDir(t.Path, force)
	}
	return mayReplaceFile(t.Path, force)
}

// checkParent looks whether a file can be made at a path. Directories that are missing are made with it.
func checkParent(path string) error {
	dir := filepath.Dir(path)
	for {
		st, err := os.Stat(dir)
		switch {
		case err == nil && !st.IsDir():
			return fault.Hint(fmt.Errorf("%s is not a directory", dir), "choose another name")
		case err == nil:
			if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
				return fault.Hint(fmt.Errorf("nothing can be written in %s: %w", dir, err), "choose another directory")
			}
			return nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return err
		}
		dir = filepath.Dir(dir) // which ends at the root: that exists
	}
}

// checkClusterFile looks at a squashfs or SIF file that exists.
func checkClusterFile(t Target, name string, force bool) error {
	st, err := os.Lstat(t.Path)
	switch {
	case err != nil:
		return err
	case st.IsDir():
		return errIsDir()
	case force:
		return nil
	}
	there, ours := writtenBefore(t)
	if ours && (name == "" || there == name) {
		return nil
	}
	return errHoldsElse()
}

// writtenBefore reports whether sconce has written the file at a target, as the kind of file that the target is, and the name of its
// image, "" where it had none.
func writtenBefore(t Target) (name string, ours bool) {
	if holdsTree(t.Transport) {
		return plainName(t.Path, t.Transport)
	}
	f, err := source.OpenClusterFile(t.Path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	name = clusterfile.Name(f.FS)
	_, err = clusterfile.Digest(f.FS)
	return name, (name != "" || err == nil) && (f.SIF != nil) == (t.Transport == source.SIF)
}

// checkLayout looks at what an OCI layout would be written to.
func checkLayout(t Target, force bool) error {
	st, err := os.Stat(t.Path)
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return errIsFile()
	case force:
		return nil
	}
	index, err := readIndex(t.Path)
	switch {
	case err != nil:
		return err
	case index == nil:
		return mayFill(t.Path, force)
	case t.Tag == "" && len(index.Manifests) > 1:
		return errOtherImages()
	}
	return nil
}

func errIsDir() error {
	return fault.Hint(errors.New("there is a directory of this name"), "choose another name")
}

func errIsFile() error {
	return fault.Hint(errors.New("there is a file of this name"), "choose another name, or remove it")
}

func errHoldsElse() error {
	return fault.Hint(errors.New("there is a file of this name, which holds something else"),
		"choose another name, or replace it with --force; jobs that run from the old file keep it")
}

func errOtherImages() error {
	return fault.Hint(errors.New("the layout holds other images"), "give this one a tag, oci:DIR:TAG, or replace them all with --force")
}

// CheckRoom returns an error when a file of at least size bytes will not fit where it goes, so that nothing is downloaded for it. coming is
// how much the store is still to download, which counts where both lie on one file system. A file that is there may be the very one that is wanted.
func CheckRoom(t Target, st *store.Store, size, coming int64) error {
	path, err := filepath.Abs(t.Path)
	if err != nil {
		return explain(t, err)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	dir := filepath.Dir(path)
	room, known := host.RoomFor(dir)
	if !known {
		return nil
	}
	beside := ""
	if coming > 0 && sameFileSystem(dir, st.Dir()) {
		size += coming
		beside = " together with what is to be downloaded"
	}
	if size <= room {
		return nil
	}
	return explain(t, fault.Hint(fmt.Errorf("it will take at least %s%s, and only %s are free there", megabytes(size), beside, wholeMegabytes(room)),
		"make room, or write to another file system"))
}

// sameFileSystem reports whether what is written in one directory is missing in the other. Directories that are missing are made.
func sameFileSystem(a, b string) bool {
	var one, other unix.Stat_t
	for ; unix.Stat(a, &one) != nil && a != filepath.Dir(a); a = filepath.Dir(a) {
	}
	return unix.Stat(b, &other) == nil && one.Dev == other.Dev
}

// LeastSize is the least that a squashfs or SIF file of an image will take, in bytes, as far as its manifest tells; 0 when that is not known.
func LeastSize(st *store.Store, im *image.Image, o Options) int64 {
	return clusterfile.Estimate(clusterfile.FromImage(st, im), o.Squashfs) / leastShare
}

// leastShare is what an estimate is divided by where more than the estimate itself must be certain.
const leastShare = 2
