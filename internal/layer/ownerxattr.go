package layer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// originalXattr is on every regular file and directory that was unpacked without owners, if that took something from it: it
// says what. Whatever happens to the file then, a copy up of an overlay, a rename, a write, what it had goes with it. It
// takes effect in no other way, and is in no image.
const originalXattr = "user.sconce.original"

// original is what a file is in its image.
type original struct {
	uid, gid   int
	mode       uint32 // permissions, setuid and setgid
	modTime    int64  // seconds; while the file has this time nobody has written to it
	capability string
}

func (from *original) String() string {
	return fmt.Sprintf("%d %d %o %d %x", from.uid, from.gid, from.mode, from.modTime, from.capability)
}

func parseOriginal(text string) (*original, error) {
	var o original
	var attr string
	n, err := fmt.Sscanf(text, "%d %d %o %d %s", &o.uid, &o.gid, &o.mode, &o.modTime, &attr)
	if n < 4 { // without capabilities the last one is missing
		return nil, fmt.Errorf("attribute %s is %q: %w", originalXattr, text, err)
	}
	given, err := hex.DecodeString(attr)
	if err != nil {
		return nil, fmt.Errorf("attribute %s is %q: %w", originalXattr, text, err)
	}
	o.capability = string(given)
	return &o, nil
}

// originalOf returns what unpacking without owners takes from an entry, nil for nothing.
func originalOf(e Entry, when time.Time) *original {
	if e.Type != Regular && e.Type != Dir { // they can have no attributes
		return nil
	}
	given := e.Xattrs[capability]
	if e.UID == 0 && e.GID == 0 && given == "" && e.Mode&setIDs == 0 && shownMode(e) == e.Mode {
		return nil
	}
	return &original{e.UID, e.GID, e.Mode, when.Unix(), given}
}

const setIDs = unix.S_ISUID | unix.S_ISGID

// shownMode returns the permissions that a file gets without owners: who unpacks it must be able to read it.
func shownMode(e Entry) uint32 {
	if e.Type == Dir {
		return e.Mode&0o7777 | 0o700
	}
	return e.Mode&0o7777 | 0o400
}

// Original returns what a file is in its image, which was unpacked without owners: its owner, permissions and capabilities.
// It may have been copied up since; st has its mode and the time of the last change to its content. Symlinks are followed.
// The bool is false if unpacking took nothing from it.
func Original(name string, st *unix.Stat_t) (Ownership, bool, error) {
	value := make([]byte, 256)
	n, err := unix.Getxattr(name, originalXattr, value)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return Ownership{}, false, nil
	}
	if err != nil {
		return Ownership{}, false, &os.PathError{Op: "getxattr " + originalXattr, Path: name, Err: err}
	}
	from, err := parseOriginal(string(value[:n]))
	if err != nil {
		return Ownership{}, false, err
	}
	return from.restore(Ownership{UID: int(st.Uid), GID: int(st.Gid), Mode: st.Mode}, st), true, nil
}

// restore gives back what unpacking without owners took from a file, but for what was changed on purpose.
func (from *original) restore(o Ownership, st *unix.Stat_t) Ownership {
	o.UID, o.GID = from.uid, from.gid
	now, shown := o.Mode&0o7777, shownMode(Entry{Type: typeOf(o.Mode), Mode: from.mode})
	// Outside the first user namespace a write takes setuid away from root as well. chmod(2) leaves the time alone.
	written := st.Mtim.Sec != from.modTime
	if now == shown || written && typeOf(o.Mode) == Regular && now == afterWrite(shown) {
		o.Mode = o.Mode&unix.S_IFMT | from.mode
	}
	if from.capability != "" && !written && o.Capability == "" {
		o.Capability = from.capability
	}
	return o
}

// afterWrite returns the permissions of a file that somebody without CAP_FSETID has written to (inode(7), write(2)).
func afterWrite(mode uint32) uint32 {
	mode &^= unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		mode &^= unix.S_ISGID
	}
	return mode
}
