package fetch

import (
	"fmt"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// CheckRoom returns an error when files do not fit onto the disk of the store that they are to come into, so that nobody waits for gigabytes
// to be told. Of each file Digest and Size count: what the store has already takes no room, nor does a size that nobody knows.
func CheckRoom(st *store.Store, files []Request) error {
	room, known := host.RoomFor(st.Dir())
	if !known || total(files) <= room { // what is here need not be looked at
		return nil
	}
	needed := Needed(st, files)
	if needed <= room {
		return nil
	}
	at := host.FileSystemOf(st.Dir())
	return fault.Hint(fmt.Errorf("downloads of %s are to come, and the store %s (%s) has room for %s", units.Size(needed), st.Dir(), at.Type, units.Size(room)),
		"run `sconce cache prune`, or set SCONCE_STORE to a directory with more room; nothing was downloaded")
}

func total(files []Request) (n int64) {
	for _, f := range files {
		n += f.Size
	}
	return n
}

// Needed returns how many bytes of files are still to come into the store.
func Needed(st *store.Store, files []Request) (n int64) {
	seen := make(map[store.Digest]bool, len(files))
	for _, f := range files {
		if seen[f.Digest] || st.HasBlob(f.Digest) {
			continue
		}
		seen[f.Digest] = true
		n += max(0, f.Size-st.Arrived(f.Digest))
	}
	return n
}
