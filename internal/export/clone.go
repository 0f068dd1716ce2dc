package export

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// clone makes a copy of the file at from under the name to, which must not exist: sharing its blocks where the file
// system can, else as a second name of the same file, else byte by byte in the kernel. The store's files are never
// changed and read-only, so a second name is as good as a copy.
func clone(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		return dst.Close()
	}
	if err := errors.Join(dst.Close(), os.Remove(to)); err != nil {
		return err
	}
	if os.Link(from, to) == nil {
		return nil
	}
	return copyFile(src, to)
}

func copyFile(src *os.File, to string) error {
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src) // copy_file_range(2)
	if err = errors.Join(err, dst.Sync(), dst.Close()); err != nil {
		os.Remove(to)
	}
	return err
}
