package store

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// useGranularity keeps a build that changes nothing from writing: a record's time of last use is only kept to the hour.
const useGranularity = time.Hour

// touch notes that the file or directory at path was used now; prune reads it.
func (s *Store) touch(path string) {
	if s.readOnly {
		return
	}
	now := time.Now()
	if st, err := os.Stat(path); err == nil && now.Sub(st.ModTime()) > useGranularity {
		_ = os.Chtimes(path, now, now) // only makes prune less exact
	}
}

// touchBlob notes that a blob was used now. Only the time of access changes: a blob may be hard-linked from an exported
// image, whose time of change is not ours.
func (s *Store) touchBlob(path string, st fs.FileInfo) {
	if s.readOnly || time.Since(lastUse(st)) <= useGranularity {
		return
	}
	_ = os.Chtimes(path, time.Now(), st.ModTime()) // only makes prune less exact
}

// lastUse returns when a file of the store was last used: accessed or changed, whichever is later.
func lastUse(st fs.FileInfo) time.Time {
	used := st.ModTime()
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		if at := time.Unix(sys.Atim.Unix()); at.After(used) {
			used = at
		}
	}
	return used
}
