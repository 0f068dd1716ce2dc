package squashfs

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Sizes and limits of directories.
const (
	dirHeaderSize = 12
	dirEntrySize  = 8   // without the name
	dirHeaderMax  = 256 // entries under one header
	dirSizeExtra  = 3   // a directory's size counts the entries "." and ".." as 3 bytes
)

// dirIndex is an entry of a directory's index: where in the listing a header stands, the metadata block of the directory
// table that it is in, and the first name under it.
type dirIndex struct {
	offset, block uint32
	name          string
}

// directory writes a directory and all below it.
func (t *treeWriter) directory(in *Inode, parent uint32) error {
	node := t.nodes[in]
	for _, e := range in.Entries {
		t.path = append(t.path, e.Name)
		var err error
		if e.Inode.Type == Dir {
			err = t.directory(e.Inode, node.number) // says where
		} else if err = t.child(e.Inode); err != nil {
			err = t.at(err)
		}
		if err != nil {
			return err
		}
		t.path = t.path[:len(t.path)-1]
	}
	if err := t.directoryInode(in, node, parent); err != nil {
		return t.at(err)
	}
	return nil
}

func (t *treeWriter) directoryInode(in *Inode, node *numbered, parent uint32) error {
	xattr, err := t.xattrs.number(in.Xattrs)
	if err != nil {
		return err
	}
	block, offset := t.dirs.at()
	size, index, err := t.listing(in.Entries)
	if err != nil {
		return err
	}
	size += dirSizeExtra
	if block > math.MaxUint32 || size > math.MaxUint32 || len(index) > math.MaxUint16 {
		return fmt.Errorf("a directory with %d names is too large", len(in.Entries))
	}
	long := xattr != noXattrs || size > math.MaxUint16 || len(index) > 0
	if err := t.begin(in, node, long); err != nil {
		return err
	}
	if !long {
		t.put32(uint32(block), node.links)
		t.put16(uint16(size), uint16(offset))
		t.put32(parent)
		return t.end()
	}
	t.put32(node.links, uint32(size), uint32(block), parent)
	t.put16(uint16(len(index)), uint16(offset))
	t.put32(xattr)
	for _, x := range index {
		t.put32(x.offset, x.block, uint32(len(x.name)-1))
		t.buf = append(t.buf, x.name...)
	}
	return t.end()
}

// listing writes the names of a directory, and returns the size and, for a large one, an index: a lookup then needs to
// read but one metadata block, at the beginning of which stands a header.
func (t *treeWriter) listing(entries []DirEntry) (size int64, index []dirIndex, err error) {
	large := isLarge(entries)
	_, start := t.dirs.at()
	indexed := int64(0) // metadata blocks from the first, of the header before
	var b []byte
	for len(entries) > 0 {
		block, offset := t.dirs.at()
		if here := (int64(start) + size) / metadataSize; large && here != indexed {
			at := uint32(min(size, math.MaxUint32))
			index = append(index, dirIndex{offset: at, block: uint32(min(block, math.MaxUint32)), name: entries[0].Name})
			indexed = here
		}
		n := t.headerSpan(entries, offset)
		b = t.header(b[:0], entries[:n])
		if err := t.dirs.write(b); err != nil {
			return 0, nil, err
		}
		size += int64(len(b))
		entries = entries[n:]
	}
	return size, index, nil
}

func isLarge(entries []DirEntry) bool {
	size := 0
	for _, e := range entries {
		size += dirEntrySize + len(e.Name)
		if size > metadataSize {
			return true
		}
	}
	return false
}

// headerSpan is how many entries go under one header: their inodes begin in one metadata block, their numbers are near
// that of the first, and they begin in the metadata block that the header begins in, at offset.
func (t *treeWriter) headerSpan(entries []DirEntry, offset int) int {
	first := t.nodes[entries[0].Inode].number
	block := t.refs[first-1] >> 16
	offset += dirHeaderSize
	for n, e := range entries {
		number := t.nodes[e.Inode].number
		distance := int64(number) - int64(first)
		if n == dirHeaderMax || t.refs[number-1]>>16 != block || distance != int64(int16(distance)) || n > 0 && offset >= metadataSize {
			return n
		}
		offset += dirEntrySize + len(e.Name)
	}
	return len(entries)
}

// header appends a header and the entries under it.
func (t *treeWriter) header(b []byte, entries []DirEntry) []byte {
	const offsetMask = 1<<16 - 1
	first := t.nodes[entries[0].Inode].number
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)-1))
	b = binary.LittleEndian.AppendUint32(b, uint32(t.refs[first-1]>>16))
	b = binary.LittleEndian.AppendUint32(b, first)
	for _, e := range entries {
		number := t.nodes[e.Inode].number
		b = binary.LittleEndian.AppendUint16(b, uint16(t.refs[number-1]&offsetMask))
		b = binary.LittleEndian.AppendUint16(b, uint16(number-first))
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Inode.Type))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(e.Name)-1))
		b = append(b, e.Name...)
	}
	return b
}
