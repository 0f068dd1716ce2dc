package rootemu

import (
	"cmp"
	"path"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Unset is the id that nobody asked for.
const Unset = -1

// The bounds of what a command can make the supervisor keep: a hundred bytes for a record, some more with a path.
const (
	maxRecords = 4 << 20
	maxPaths   = 256 << 10
)

// IDs is the owner of a file.
type IDs struct{ UID, GID int }

// root is whom everything belongs to, as stat(2) shows it in the sandbox.
var root = IDs{0, 0}

// Record is what was asked for a file and could not be done.
type Record struct {
	IDs           // each of them Unset when never asked for
	Device uint32 // unix.S_IFCHR or unix.S_IFBLK when the regular file stands for a device node, else 0
	Rdev   uint64 // the device's number, as stat(2) has it
}

// Owner returns the owner of a file that has the record. Without it the file would belong to without; below is the owner
// that a file of this path has in the layers below, 0 and 0 if there is none.
//
// A program that writes a file anew and puts it in the place of the old one (sed -i, useradd) gives it the owner that stat(2)
// showed of the old one. That is always root here: a new file that was given to root, over one that belongs to somebody
// else, is taken to be meant like that.
func (r Record) Owner(without, below IDs) IDs {
	if r.IDs == root && without == root {
		return below
	}
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
	paths map[string]IDs // what was last asked for a path, other than root: the file there may have been replaced since
}

type inode struct{ dev, ino uint64 }

// file is a file of the upper layer.
type file struct {
	inode      inode
	generation string // see generation
	path       string // in the image, absolute
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
	before, replaced := o.paths[path.Join("/", rel)]
	o.mu.Unlock()
	if !ok || f.generation != generation(unix.AT_FDCWD, upper+"/"+rel, 0) {
		return Record{}, false
	}
	if f.record.IDs == root && replaced { // see Record.Owner
		f.record.IDs = before
	}
	return f.record, true
}

// Len returns the number of records, of which some may be of files that are gone.
func (o *Owners) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.files)
}

// chown records an owner.
func (o *Owners) chown(f file, asked IDs) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, known := o.find(f)
	was := r.IDs
	if asked.UID != Unset {
		r.UID = asked.UID
	}
	if asked.GID != Unset {
		r.GID = asked.GID
	}
	switch {
	case r.UID > 0 || r.GID > 0:
		if len(o.paths) < maxPaths {
			put(&o.paths, f.path, r.IDs)
		}
	case known && (was.UID > 0 || was.GID > 0): // the file that was given away is given back
		delete(o.paths, f.path)
	}
	return o.put(f, r)
}

// group returns the group that was asked for a file.
func (o *Owners) group(f file) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, _ := o.find(f)
	return r.GID
}

// mknod records that a new file stands for a device node.
func (o *Owners) mknod(f file, kind uint32, rdev uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.paths, f.path)
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
// can be had for every kind of file. It is "" where the file system makes none.
func generation(dirfd int, name string, flags int) string {
	h, _, err := unix.NameToHandleAt(dirfd, name, flags)
	if err != nil {
		return ""
	}
	return string(h.Bytes())
}

// Entry is part of Owners on its way from one process to another of the same machine.
type Entry struct {
	Path       []byte `json:"p,omitempty"` // what was asked for a path; else for the file of the next three fields
	Dev        uint64 `json:"d,omitempty"`
	Ino        uint64 `json:"i,omitempty"`
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
	entries := make([]Entry, 0, len(o.files)+len(o.paths))
	for id, f := range o.files {
		r := f.record
		entries = append(entries, Entry{
			Dev: id.dev, Ino: id.ino, Generation: []byte(f.generation), UID: r.UID, GID: r.GID, Device: r.Device, Rdev: r.Rdev,
		})
	}
	for name, ids := range o.paths {
		entries = append(entries, Entry{Path: []byte(name), UID: ids.UID, GID: ids.GID})
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino), slices.Compare(a.Path, b.Path))
	})
	return entries
}

// Add takes entries over.
func (o *Owners) Add(entries []Entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range entries {
		ids := IDs{e.UID, e.GID}
		if len(e.Path) > 0 {
			put(&o.paths, string(e.Path), ids)
			continue
		}
		put(&o.files, inode{e.Dev, e.Ino}, owned{Record{ids, e.Device, e.Rdev}, string(e.Generation)})
	}
}
