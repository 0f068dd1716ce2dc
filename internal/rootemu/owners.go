package rootemu

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Unset is the id that nobody asked for.
const Unset = -1

// maxRecords bounds what a command can make the supervisor keep: a hundred bytes for each.
const maxRecords = 4 << 20

// IDs is the owner of a file.
type IDs struct{ UID, GID int }

// Record is what was asked for a file and could not be done.
type Record struct {
	IDs           // each of them Unset when never asked for
	Device uint32 // unix.S_IFCHR or unix.S_IFBLK when the regular file stands for a device node, else 0
	Rdev   uint64 // the device's number, as stat(2) has it
}

// Owner returns the owner of a file that has the record, and would belong to without if it had none.
func (r Record) Owner(without IDs) IDs {
	if r.UID != Unset {
		without.UID = r.UID
	}
	if r.GID != Unset {
		without.GID = r.GID
	}
	return without
}

// Owners holds the records of the files of an upper layer. The zero value is empty and ready for use.
type Owners struct {
	mu    sync.Mutex
	files map[inode]owned
}

type inode struct{ dev, ino uint64 }

// file is a file of the upper layer.
type file struct {
	inode      inode
	generation string // see generation
}

type owned struct {
	record     Record
	generation string
}

// Of returns the record of the file called rel in the directory upper, of which st was just read. A symbolic link is not
// followed. The bool is false if there is no record.
func (o *Owners) Of(upper, rel string, st *unix.Stat_t) (Record, bool) {
	o.mu.Lock()
	f, ok := o.files[inode{st.Dev, st.Ino}]
	o.mu.Unlock()
	if !ok || f.generation != generation(unix.AT_FDCWD, upper+"/"+rel, 0) {
		return Record{}, false
	}
	return f.record, true
}

// Len returns the number of records, of which some may be of files that are gone.
func (o *Owners) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.files)
}

// mayKnow reports whether there is a record under an inode number, perhaps of a file that had it before.
func (o *Owners) mayKnow(i inode) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.files[i]
	return ok
}

// Give records the owner of a file of this process's.
func (o *Owners) Give(name string, to IDs) error {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	f, err := fileOf(fd)
	if err != nil {
		return err
	}
	return o.chown(f, to)
}

// chown records an owner.
func (o *Owners) chown(f file, asked IDs) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, _ := o.find(f)
	if asked.UID != Unset {
		r.UID = asked.UID
	}
	if asked.GID != Unset {
		r.GID = asked.GID
	}
	return o.put(f, r)
}

// of returns the record of a file.
func (o *Owners) of(f file) (Record, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.find(f)
}

// mknod records that a new file stands for a device node.
func (o *Owners) mknod(f file, kind uint32, rdev uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.put(f, Record{IDs{Unset, Unset}, kind, rdev})
}

// find returns the record of a file, which is empty if there is none of its generation.
func (o *Owners) find(f file) (Record, bool) {
	if old, ok := o.files[f.inode]; ok && old.generation == f.generation {
		return old.record, true
	}
	return Record{IDs: IDs{Unset, Unset}}, false
}

func (o *Owners) put(f file, r Record) error {
	if _, ok := o.files[f.inode]; !ok && len(o.files) >= maxRecords {
		return unix.ENOSPC
	}
	put(&o.files, f.inode, owned{r, f.generation})
	return nil
}

func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// generation returns what tells apart the files that have had one inode number one after the other: a file handle, which
// can be had for every kind of file. An overlay makes none; there it is the time when the file was made, which two files share
// only if the second is made within the same few milliseconds.
func generation(dirfd int, name string, flags int) string {
	if h, _, err := unix.NameToHandleAt(dirfd, name, flags); err == nil {
		return string(h.Bytes())
	}
	var st unix.Statx_t
	if unix.Statx(dirfd, name, flags|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return ""
	}
	return fmt.Sprintf("made %d.%d", st.Btime.Sec, st.Btime.Nsec)
}

// Entry is part of Owners on its way from one process to another of the same machine.
type Entry struct {
	Dev        uint64 `json:"d"`
	Ino        uint64 `json:"i"`
	Generation []byte `json:"v,omitempty"`
	UID        int    `json:"u"`
	GID        int    `json:"g"`
	Device     uint32 `json:"t,omitempty"`
	Rdev       uint64 `json:"r,omitempty"`
}

// Entries returns all there is, in an order of its own.
func (o *Owners) Entries() []Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	entries := make([]Entry, 0, len(o.files))
	for id, f := range o.files {
		r := f.record
		entries = append(entries, Entry{
			Dev: id.dev, Ino: id.ino, Generation: []byte(f.generation), UID: r.UID, GID: r.GID, Device: r.Device, Rdev: r.Rdev,
		})
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino))
	})
	return entries
}

// Add takes entries over.
func (o *Owners) Add(entries []Entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range entries {
		put(&o.files, inode{e.Dev, e.Ino}, owned{Record{IDs{e.UID, e.GID}, e.Device, e.Rdev}, string(e.Generation)})
	}
}
