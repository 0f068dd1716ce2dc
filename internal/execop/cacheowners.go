package execop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
)

// An ordinary user's cache has, beside the files, who they belong to in the eyes of the commands that used it: to the machine all
// are the user's. A file is known by its inode number and generation; which device the cache is on may change from one start of
// the machine to the next, and is left out.

// cacheOwners is the file of owners in a cache's directory, a JSON array of rootemu.Entry.
const cacheOwners = "owners.json"

// readOwners reads the owners of files in the cache at dir. A cache of which none are recorded has no file of them.
func readOwners(dir string) (*rootemu.Owners, error) {
	owners := &rootemu.Owners{}
	text, err := os.ReadFile(filepath.Join(dir, cacheOwners))
	if errors.Is(err, fs.ErrNotExist) {
		return owners, nil
	}
	if err != nil {
		return nil, err
	}
	var entries []rootemu.Entry
	if err := json.Unmarshal(text, &entries); err != nil {
		return owners, nil //nolint:nilerr // a machine that crashed: they are lost, as files may be
	}
	dev, err := deviceOf(filepath.Join(dir, cacheRoot))
	if err != nil {
		return nil, err
	}
	for i := range entries {
		entries[i].Dev = dev
	}
	owners.Add(entries)
	return owners, nil
}

// saveOwners adds what is new to the owners in the cache at dir, which other commands may have changed meanwhile.
func saveOwners(dir string, fresh []rootemu.Entry) error {
	if len(fresh) == 0 {
		return nil
	}
	lock, err := os.OpenFile(filepath.Join(dir, "owners.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	all, err := readOwners(dir)
	if err != nil {
		return err
	}
	all.Add(fresh)
	entries := all.Entries()
	for i := range entries {
		entries[i].Dev = 0
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, cacheOwners), text, 0o600)
}

func deviceOf(name string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st.Dev, nil
}

// keepOwners has the owners that the command gives to a cache's files kept when it has ended.
func (s *running) keepOwners(dir string, owners *rootemu.Owners) {
	before := map[string]bool{}
	for _, e := range owners.Entries() {
		before[fmt.Sprint(e)] = true
	}
	s.ends = append(s.ends, func() {
		fresh := slices.DeleteFunc(owners.Entries(), func(e rootemu.Entry) bool { return before[fmt.Sprint(e)] })
		if err := saveOwners(dir, fresh); err != nil {
			progress.Warn(s.ctx, fmt.Sprintf("who the files of a cache belong to could not be kept: %v", err), "")
		}
	})
}
