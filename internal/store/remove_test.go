package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A step can make directories deeper than a process can have files open, and longer than a path can be.
func TestRemoveDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY, 0)
	for range 3000 {
		for _, name := range []string{"deep", "wide", "file"} {
			if err == nil && name != "file" {
				err = unix.Mkdirat(fd, name, 0o755)
			} else if err == nil {
				err = unix.Mknodat(fd, name, unix.S_IFREG|0o600, 0)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		up := fd
		fd, err = unix.Openat(up, "deep", unix.O_RDONLY, 0)
		if err == nil {
			err = unix.Fchmod(up, 0o500) // nothing can be removed from it, but by root
		}
		unix.Close(up)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: 512, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err = RemoveAll(dir)
	if limitErr := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); limitErr != nil {
		t.Fatal(limitErr)
	}
	if _, statErr := os.Lstat(dir); err != nil || !errors.Is(statErr, fs.ErrNotExist) {
		t.Errorf("%.200v, %v", err, statErr)
	}
}
