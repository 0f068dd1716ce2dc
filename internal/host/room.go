package host

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/units"
)

// NoRoom says in words what err ran out of on the file system of path, "" when it is about something else. The kernel says "no
// space left" for files that are too many as well as for bytes, and a quota may end before either.
func NoRoom(err error, path string) string {
	switch {
	case errors.Is(err, unix.EDQUOT):
		return fmt.Sprintf("your quota on the file system of %s (%s) is used up, of bytes or of files", path, FileSystemOf(existing(path)).Type)
	case errors.Is(err, unix.ENOSPC):
		return fullDisk(path, FileSystemOf(existing(path)))
	}
	return ""
}

// fullDisk leaves out how much is free: what was begun may be gone again.
func fullDisk(path string, at FileSystem) string {
	switch {
	case at.outOfFiles():
		return RoomLeft(path)
	case at.scarceFiles():
		return fmt.Sprintf("the file system of %s (%s, %s) is full, of files more likely than of bytes: %d of its %d inodes are free, now that what was begun is gone",
			path, at.Type, units.Size(at.Size), at.FreeFiles, at.Files)
	case at.Size == 0:
		return fmt.Sprintf("the file system of %s is full", path)
	}
	return fmt.Sprintf("the file system of %s (%s, %s) is full", path, at.Type, units.Size(at.Size))
}

// RoomLeft says how much room there is on the file system of path, for when another program says that there is none.
func RoomLeft(path string) string {
	at := FileSystemOf(existing(path))
	if at.outOfFiles() {
		return fmt.Sprintf("the file system of %s (%s) has no inodes left: it holds as many files as it can, and %s are free",
			path, at.Type, units.Size(at.Free))
	}
	return fmt.Sprintf("the file system of %s (%s) has %s of %s left", path, at.Type, units.Size(at.Free), units.Size(at.Size))
}

// outOfFiles reports whether inodes are what is missing. A few may be free again, as what was begun is removed before anyone asks.
func (fs FileSystem) outOfFiles() bool {
	return fs.FreeFiles*20 < fs.Files && fs.scarceFiles()
}

// scarceFiles reports whether a smaller part of the inodes than of the bytes is free.
func (fs FileSystem) scarceFiles() bool {
	return fs.Files > 0 && fs.Size > 0 && float64(fs.FreeFiles)/float64(fs.Files) < float64(fs.Free)/float64(fs.Size)
}

// RoomFor returns how many bytes may still be written on the file system of path by this user, and whether that is known. Nobody can write more: what is set
// aside for root counts for root, and a quota's soft limit, which can be passed for a while, counts for nobody.
func RoomFor(path string) (n int64, known bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(existing(path), &st); err != nil || st.Blocks == 0 { // which some FUSE file systems do not count
		return 0, false
	}
	if os.Geteuid() == 0 {
		return int64(st.Bfree) * st.Bsize, true
	}
	n = int64(st.Bavail) * st.Bsize
	if left, limited := diskQuotaOf(path).left(); limited {
		n = min(n, left)
	}
	return n, true
}
