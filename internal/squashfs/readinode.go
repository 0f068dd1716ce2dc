package squashfs

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"
)

// File is an inode: a file, directory or other object. Its names are in directories; several names may be one File.
type File struct {
	Type    Type
	Mode    uint16 // permissions, set-id and sticky bits: 0o7777
	UID     uint32
	GID     uint32
	ModTime time.Time
	Size    int64  // bytes; of a directory, those of its listing
	Links   uint32 // names that it has; of a directory, with those that Unix counts
	Target  string // of a symlink
	Major   uint32 // of a device
	Minor   uint32
	Number  uint32 // different for every inode, from 1

	r     *Reader
	ref   uint64 // where the inode is
	xattr uint32 // number of its extended attributes, or noXattrs

	listing  dirListing // of a directory
	contents fileLayout // of a regular file
	once     sync.Once
	blocks   *blockList // of a regular file, on demand
	blockErr error
}

// inodeRef is a reference to an inode: the place of its metadata block in the table, and an offset in that.
func inodeRef(block int64, offset int) uint64 { return uint64(block)<<16 | uint64(offset) }

// Root returns the root directory.
func (r *Reader) Root() (*File, error) {
	f, err := r.open(r.super.Root)
	if err != nil {
		return nil, fmt.Errorf("read root directory: %w", err)
	}
	if f.Type != Dir {
		return nil, formatError("the root is no directory")
	}
	return f, nil
}

// open reads the inode that a reference names.
func (r *Reader) open(ref uint64) (*File, error) {
	if ref>>16 > r.super.BytesUsed {
		return nil, formatError("reference %#x to an inode outside of the table", ref)
	}
	c, err := r.cursor(r.inodes, int64(ref>>16), int(ref&0xffff))
	if err != nil {
		return nil, fmt.Errorf("inode %#x: %w", ref, err)
	}
	f := &File{r: r, ref: ref, xattr: noXattrs}
	if err := f.parse(c); err != nil {
		return nil, fmt.Errorf("inode %#x: %w", ref, err)
	}
	return f, nil
}

// parse reads the head that all inodes have, then what the type has.
func (f *File) parse(c *metaCursor) error {
	b, err := c.fixed(16)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	kind := le.Uint16(b)
	f.Mode = le.Uint16(b[2:]) & 0o7777
	f.ModTime = time.Unix(int64(le.Uint32(b[8:])), 0).UTC()
	f.Number = le.Uint32(b[12:])
	uid, gid := le.Uint16(b[4:]), le.Uint16(b[6:])
	if f.UID, err = f.r.id(uid); err != nil {
		return err
	}
	if f.GID, err = f.r.id(gid); err != nil {
		return err
	}
	if kind < typeDir || kind > typeSocket+extended {
		return formatError("inode of type %d", kind)
	}
	long := kind > extended
	if long {
		kind -= extended
	}
	f.Type = Type(kind)
	switch f.Type {
	case Dir:
		return f.parseDir(c, long)
	case Regular:
		return f.parseRegular(c, long)
	case Symlink:
		return f.parseSymlink(c, long)
	case Block, Char:
		return f.parseDevice(c, long)
	default:
		return f.parsePipe(c, long)
	}
}

func (f *File) parseDir(c *metaCursor, long bool) error {
	le := binary.LittleEndian
	n := 16
	if long {
		n = 24
	}
	b, err := c.fixed(n)
	if err != nil {
		return err
	}
	l := &f.listing
	if long {
		f.Links, f.Size = le.Uint32(b), int64(le.Uint32(b[4:]))
		l.block, l.offset = le.Uint32(b[8:]), le.Uint16(b[18:])
		f.xattr = le.Uint32(b[20:])
		l.indexes = int(le.Uint16(b[16:]))
		l.indexAt = inodeRef(c.block(), c.offset)
	} else {
		l.block, f.Links = le.Uint32(b), le.Uint32(b[4:])
		f.Size, l.offset = int64(le.Uint16(b[8:])), le.Uint16(b[10:])
	}
	l.size = max(f.Size-dirExtra, 0)
	return nil
}

func (f *File) parseRegular(c *metaCursor, long bool) error {
	le := binary.LittleEndian
	n := 16
	if long {
		n = 40
	}
	b, err := c.fixed(n)
	if err != nil {
		return err
	}
	var start, size uint64
	l := &f.contents
	if long {
		start, size = le.Uint64(b), le.Uint64(b[8:])
		f.Links = le.Uint32(b[24:])
		l.fragment, l.offset = le.Uint32(b[28:]), le.Uint32(b[32:])
		f.xattr = le.Uint32(b[36:])
	} else {
		start, size = uint64(le.Uint32(b)), uint64(le.Uint32(b[12:]))
		f.Links = 1
		l.fragment, l.offset = le.Uint32(b[4:]), le.Uint32(b[8:])
	}
	l.sizesAt = inodeRef(c.block(), c.offset)
	return f.layOut(start, size)
}

func (f *File) parseSymlink(c *metaCursor, long bool) error {
	b, err := c.fixed(8)
	if err != nil {
		return err
	}
	f.Links = binary.LittleEndian.Uint32(b)
	n := binary.LittleEndian.Uint32(b[4:])
	if n == 0 || n > maxLinkLen {
		return formatError("symlink to a path of %d bytes", n)
	}
	target, err := c.bytes(int64(n))
	if err != nil {
		return err
	}
	f.Target, f.Size = string(target), int64(n)
	if strings.IndexByte(f.Target, 0) >= 0 {
		return formatError("symlink to %q", f.Target)
	}
	if long {
		return f.parseXattr(c)
	}
	return nil
}

func (f *File) parseDevice(c *metaCursor, long bool) error {
	b, err := c.fixed(8)
	if err != nil {
		return err
	}
	f.Links = binary.LittleEndian.Uint32(b)
	dev := binary.LittleEndian.Uint32(b[4:]) // as Linux packs it: 12 bits of major amid 20 of minor
	f.Major, f.Minor = dev>>8&0xfff, dev&0xff|dev>>12&0xfff00
	if long {
		return f.parseXattr(c)
	}
	return nil
}

func (f *File) parsePipe(c *metaCursor, long bool) error {
	b, err := c.fixed(4)
	if err != nil {
		return err
	}
	f.Links = binary.LittleEndian.Uint32(b)
	if long {
		return f.parseXattr(c)
	}
	return nil
}

func (f *File) parseXattr(c *metaCursor) error {
	b, err := c.fixed(4)
	if err != nil {
		return err
	}
	f.xattr = binary.LittleEndian.Uint32(b)
	return nil
}
