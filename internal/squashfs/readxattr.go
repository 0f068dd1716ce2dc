package squashfs

import (
	"encoding/binary"
	"fmt"
)

// xattrTable is where extended attributes are.
type xattrTable struct {
	pairs metaTable // names and values
	ids   []int64   // places of the metadata blocks that have one entry for every set of attributes
	count int64     // of sets
}

// Sizes and limits of extended attributes; those of names and values are Linux's, see xattr(7).
const (
	xattrHeadSize  = 16 // of the table's header
	xattrIDSize    = 16 // of the entry of a set
	maxXattrName   = 255
	maxXattrValue  = 64 << 10
	maxXattrsBytes = 16 << 20 // of all names and values of one inode
)

// openXattrs finds the tables of extended attributes.
func (r *Reader) openXattrs() error {
	place := r.super.XattrTable
	if place == noTable {
		return nil
	}
	if place < superblockSize || place > r.super.BytesUsed || r.super.BytesUsed-place < xattrHeadSize {
		return formatError("it is at %d of %d bytes", place, r.super.BytesUsed)
	}
	b := make([]byte, xattrHeadSize)
	if err := r.readAt(b, int64(place)); err != nil {
		return err
	}
	start, count := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	if start < superblockSize || start > place {
		return formatError("it begins at %d, after its index at %d", start, place)
	}
	ids, err := r.tableIndex(place+xattrHeadSize, int64(count), xattrIDSize)
	if err != nil {
		return err
	}
	pairs := metaTable{int64(start), int64(place)}
	r.xattrs = xattrTable{pairs, ids, int64(count)}
	return nil
}

// Xattrs returns the extended attributes by their full names; nil if there are none. Like in Linux, attributes of a namespace
// that is not known are not there.
func (f *File) Xattrs() (map[string]string, error) {
	if f.xattr == noXattrs {
		return nil, nil
	}
	all, err := f.r.readXattrs(int64(f.xattr))
	if err != nil {
		return nil, fmt.Errorf("extended attributes: %w", err)
	}
	return all, nil
}

// readXattrs reads the set of attributes that has a number.
func (r *Reader) readXattrs(n int64) (map[string]string, error) {
	t := &r.xattrs
	if n >= t.count {
		return nil, formatError("number %d of %d", n, t.count)
	}
	b, err := r.tableEntry(t.ids, n, xattrIDSize)
	if err != nil {
		return nil, err
	}
	ref, count := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	c, err := r.xattrCursor(ref)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	total := 0
	for range count {
		name, value, err := r.readXattr(c)
		if err != nil {
			return nil, err
		}
		if total += len(name) + len(value) + 1; total > maxXattrsBytes {
			return nil, formatError("more than %d bytes", maxXattrsBytes)
		}
		if name != "" {
			all[name] = value
		}
	}
	return all, nil
}

func (r *Reader) xattrCursor(ref uint64) (*metaCursor, error) {
	if ref>>16 > r.super.BytesUsed {
		return nil, formatError("reference %#x outside of the table", ref)
	}
	return r.cursor(r.xattrs.pairs, int64(ref>>16), int(ref&0xffff))
}

// readXattr reads a name and its value. The name is empty if its namespace is not known.
func (r *Reader) readXattr(c *metaCursor) (name, value string, err error) {
	b, err := c.fixed(4)
	if err != nil {
		return "", "", err
	}
	kind, n := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:])
	if n == 0 || n > maxXattrName {
		return "", "", formatError("name of %d bytes", n)
	}
	base, err := c.bytes(int64(n))
	if err != nil {
		return "", "", err
	}
	v, err := readXattrValue(c)
	if err != nil {
		return "", "", err
	}
	if kind&xattrOutOfLine != 0 {
		if v, err = r.farXattrValue(v); err != nil {
			return "", "", err
		}
	}
	if space := int(kind & (xattrOutOfLine - 1)); space < len(xattrPrefixes) {
		return xattrPrefixes[space] + string(base), string(v), nil
	}
	return "", "", nil
}

func readXattrValue(c *metaCursor) ([]byte, error) {
	b, err := c.fixed(4)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxXattrValue {
		return nil, formatError("value of %d bytes", n)
	}
	return c.bytes(int64(n))
}

// farXattrValue reads a value that is stored elsewhere, because several attributes have it.
func (r *Reader) farXattrValue(ref []byte) ([]byte, error) {
	if len(ref) != 8 {
		return nil, formatError("reference of %d bytes", len(ref))
	}
	c, err := r.xattrCursor(binary.LittleEndian.Uint64(ref))
	if err != nil {
		return nil, err
	}
	return readXattrValue(c)
}
