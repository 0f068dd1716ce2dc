package squashfs

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"sconce.dev/sconce/internal/pathwalk"
)

// dirListing is where the entries of a directory are.
type dirListing struct {
	block   uint32 // of the directory table
	offset  uint16 // in that
	size    int64  // bytes
	indexes int    // entries of the index that large directories have
	indexAt uint64 // where it is in the inode table, as references are
}

// Limits of directories.
const (
	dirExtra   = 3         // the size of a directory counts . and .., which are not stored
	dirRun     = 256       // entries that may share a header
	maxListing = 512 << 20 // bytes of one directory; some 20 million names
)

// Entry is a name in a directory.
type Entry struct {
	Name   string
	Type   Type
	Number uint32 // of the inode

	r   *Reader
	ref uint64
}

// Open reads the inode that the entry names.
func (e Entry) Open() (*File, error) {
	f, err := e.r.open(e.ref)
	if err != nil {
		return nil, err
	}
	if f.Type != e.Type {
		return nil, formatError("its directory and its inode have different types")
	}
	return f, nil
}

// errNotDir reports a directory that is none.
const errNotDir = syscall.ENOTDIR

// ReadDir returns the entries of a directory, sorted by name, bytewise.
func (f *File) ReadDir() ([]Entry, error) {
	if f.Type != Dir {
		return nil, errNotDir
	}
	text, err := f.r.readListing(f.listing.whole())
	if err != nil {
		return nil, err
	}
	entries, err := f.r.parseListing(text)
	if err != nil {
		return nil, err
	}
	byName := func(a, b Entry) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(entries, byName) { // mksquashfs and others sort, as Linux needs it for its index
		slices.SortFunc(entries, byName)
	}
	for i := range entries[min(len(entries), 1):] {
		if entries[i].Name == entries[i+1].Name {
			return nil, formatError("directory with two entries %q", entries[i].Name)
		}
	}
	return entries, nil
}

// listingPart is a part of a directory's listing: where it begins and how many bytes it has.
type listingPart struct {
	block  int64
	offset int
	size   int64
}

func (l *dirListing) whole() listingPart { return listingPart{int64(l.block), int(l.offset), l.size} }

// readListing reads a part of a listing.
func (r *Reader) readListing(p listingPart) (string, error) {
	if p.size <= 0 {
		return "", nil
	}
	if p.size > maxListing {
		return "", formatError("directory of %d bytes", p.size)
	}
	c, err := r.cursor(r.dirs, p.block, p.offset)
	if err != nil {
		return "", err
	}
	b, err := c.bytes(p.size)
	return string(b), err
}

// parseListing parses runs of entries. The names are parts of text.
func (r *Reader) parseListing(text string) ([]Entry, error) {
	entries := make([]Entry, 0, len(text)/24)
	for len(text) > 0 {
		run, rest, err := parseRun(text)
		if err != nil {
			return nil, err
		}
		text = rest
		for range run.count {
			e, rest, err := run.entry(text)
			if err != nil {
				return nil, err
			}
			e.r, text = r, rest
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// entryRun is the header of entries whose inodes are in one metadata block and have close numbers.
type entryRun struct {
	count  int
	block  uint32
	number uint32
}

func parseRun(s string) (entryRun, string, error) {
	if len(s) < 12 {
		return entryRun{}, "", formatError("directory that ends in a header")
	}
	run := entryRun{count: int(le32(s)) + 1, block: le32(s[4:]), number: le32(s[8:])}
	if run.count < 1 || run.count > dirRun {
		return entryRun{}, "", formatError("directory with a run of %d entries", run.count)
	}
	return run, s[12:], nil
}

func (run entryRun) entry(s string) (Entry, string, error) {
	if len(s) < 8 {
		return Entry{}, "", formatError("directory that ends in an entry")
	}
	offset, delta := le16(s), int16(le16(s[2:]))
	kind, n := le16(s[4:]), int(le16(s[6:]))+1
	s = s[8:]
	if n > maxNameLen || n > len(s) {
		return Entry{}, "", formatError("directory with a name of %d bytes", n)
	}
	if kind < typeDir || kind > typeSocket {
		return Entry{}, "", formatError("directory entry %q of type %d", s[:n], kind)
	}
	if err := checkName(s[:n]); err != nil {
		return Entry{}, "", err
	}
	return Entry{
		Name: s[:n], Type: Type(kind), Number: run.number + uint32(delta),
		ref: inodeRef(int64(run.block), int(offset)),
	}, s[n:], nil
}

// checkName refuses names that would lead out of their directory.
func checkName(name string) error {
	if name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return formatError("directory with an entry %q", name)
	}
	return nil
}

func le16(s string) uint16 { return uint16(s[0]) | uint16(s[1])<<8 }
func le32(s string) uint32 { return uint32(le16(s)) | uint32(le16(s[2:]))<<16 }

// Lookup opens the entry of a directory that has a name, by the directory's index if it has one. The error for a name that
// is not there wraps fs.ErrNotExist.
func (f *File) Lookup(name string) (*File, error) {
	if f.Type != Dir {
		return nil, errNotDir
	}
	part, err := f.findPart(name)
	if err != nil {
		return nil, err
	}
	text, err := f.r.readListing(part)
	if err != nil {
		return nil, err
	}
	e, err := f.r.findEntry(text, name)
	if err != nil {
		return nil, err
	}
	return e.Open()
}

// findEntry finds a name in runs of entries.
func (r *Reader) findEntry(text, name string) (Entry, error) {
	for len(text) > 0 {
		run, rest, err := parseRun(text)
		if err != nil {
			return Entry{}, err
		}
		text = rest
		for range run.count {
			e, rest, err := run.entry(text)
			if err != nil {
				return Entry{}, err
			}
			if e.Name == name {
				e.r = r
				return e, nil
			}
			text = rest
		}
	}
	return Entry{}, fmt.Errorf("%q: %w", name, fs.ErrNotExist)
}

// findPart finds where in its listing a directory may have a name. The index has the names that parts of about 8 KiB begin with.
func (f *File) findPart(name string) (listingPart, error) {
	l := &f.listing
	part := l.whole()
	if l.indexes == 0 {
		return part, nil
	}
	c, err := f.r.cursor(f.r.inodes, int64(l.indexAt>>16), int(l.indexAt&0xffff))
	if err != nil {
		return part, err
	}
	begin := int64(0)
	for range l.indexes {
		at, block, first, err := readIndex(c)
		if err != nil {
			return part, err
		}
		if at < begin || at > l.size {
			return part, formatError("index of a directory of %d bytes that names byte %d after %d", l.size, at, begin)
		}
		if first > name {
			part.size = at - begin
			break
		}
		begin = at
		part = listingPart{block, int((at + int64(l.offset)) % metadataSize), l.size - at}
	}
	return part, nil
}

// readIndex reads an entry of a directory's index: the byte of the listing, its metadata block and the name there.
func readIndex(c *metaCursor) (at, block int64, name string, err error) {
	b, err := c.fixed(12)
	if err != nil {
		return 0, 0, "", err
	}
	at, block = int64(binary.LittleEndian.Uint32(b)), int64(binary.LittleEndian.Uint32(b[4:]))
	n := int64(binary.LittleEndian.Uint32(b[8:])) + 1
	if n > maxNameLen {
		return 0, 0, "", formatError("directory index with a name of %d bytes", n)
	}
	first, err := c.bytes(n)
	return at, block, string(first), err
}

// Lookup opens what a path names, whether it begins with a slash or not. Symlinks in the path are followed inside of the file
// system, .. of the root is the root; the last one only if follow. Errors wrap fs.ErrNotExist where there is nothing.
func (r *Reader) Lookup(path string, follow bool) (*File, error) {
	f, err := r.lookup(path, follow)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (r *Reader) lookup(path string, follow bool) (*File, error) {
	root, err := r.Root()
	if err != nil {
		return nil, err
	}
	n, err := pathwalk.Find(fileNode{root}, path, follow)
	return n.File, err
}

// fileNode is a file as [pathwalk.Find] wants it.
type fileNode struct{ *File }

func (n fileNode) IsDir() bool             { return n.Type == Dir }
func (n fileNode) Symlink() (string, bool) { return n.Target, n.Type == Symlink }
func (n fileNode) Child(name string) (fileNode, error) {
	f, err := n.Lookup(name)
	return fileNode{f}, err
}
