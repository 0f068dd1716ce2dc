// Package tempdir makes temporary directories of which none stays for good: what a killed process left is removed by the next
// one that needs such a directory, or looks after the store.
package tempdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
)

// prefix begins the names of all temporary directories.
const prefix = "sconce-tmp-"

// lockName is a file in each, of which its process holds a flock(2): without one the directory is nobody's.
const lockName = ".lock"

// unlockedFor is for how long a directory may be without a lock file: it is being made.
const unlockedFor = time.Hour

// Make makes a directory where temporary files are ($TMPDIR), for this user alone, and returns a function that removes it. name
// says what it is for.
func Make(name string) (dir string, remove func(), err error) { return MakeIn(os.TempDir(), name) }

// MakeIn is Make in another directory.
func MakeIn(parent, name string) (dir string, remove func(), err error) {
	sweep(parent)
	if dir, err = os.MkdirTemp(parent, prefix+name+"-*"); err != nil {
		return "", nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(dir))
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil && !withoutLocks(err) {
		lock.Close()
		return "", nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), store.RemoveAll(dir))
	}
	return dir, func() {
		_ = store.RemoveAll(dir) // what stays is swept up by the next
		lock.Close()
	}, nil
}

// withoutLocks reports whether a file system has no flock.
func withoutLocks(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK)
}

// Sweep removes what dead processes of this user left where temporary files are. What cannot be removed is in nobody's way.
func Sweep() { sweep(os.TempDir()) }

// sweep is Sweep of another directory.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
			sweepOne(filepath.Join(dir, e.Name()))
		}
	}
}

func sweepOne(dir string) {
	info, err := os.Lstat(dir)
	if err != nil {
		return
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) && time.Since(info.ModTime()) > unlockedFor {
		_ = store.RemoveAll(dir)
	}
	if err != nil {
		return
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil { // else it is in use, or nobody can say
		_ = store.RemoveAll(dir)
	}
}
