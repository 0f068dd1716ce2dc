package squashfs

import (
	"encoding/binary"
	"fmt"
	"math"
)

// treeWriter is the second walk over a tree: it writes inodes and directories. What a directory holds is written before
// it, since it refers to it.
type treeWriter struct {
	numbering
	inodes, dirs *metaStream
	ids          idTable
	xattrs       *xattrSet
	refs         []uint64 // of each inode, by number less one; unwritten
	blockSize    int64
	buf          []byte // of one inode
}

const unwritten = math.MaxUint64

// child writes an object that is no directory, unless another name of it came before.
func (t *treeWriter) child(in *Inode) error {
	node := t.nodes[in]
	if t.refs[node.number-1] != unwritten {
		return nil
	}
	return t.inode(in, node)
}

// inode writes an object that is no directory.
func (t *treeWriter) inode(in *Inode, node *numbered) error {
	xattr, err := t.xattrs.number(in.Xattrs)
	if err != nil {
		return err
	}
	long := xattr != noXattrs
	if in.Type == Regular {
		long = long || in.Data.needsLong() || node.links > 1
	}
	if err := t.begin(in, node, long); err != nil {
		return err
	}
	switch in.Type {
	case Regular:
		t.regular(in.Data, node, xattr, long)
		return t.end()
	case Symlink:
		t.put32(node.links, uint32(len(in.Target)))
		t.buf = append(t.buf, in.Target...)
	case Block, Char:
		t.put32(node.links, deviceNumber(in.Major, in.Minor))
	default: // Fifo, Socket
		t.put32(node.links)
	}
	if long {
		t.put32(xattr)
	}
	return t.end()
}

// deviceNumber is how Linux packs a device's numbers (new_encode_dev).
func deviceNumber(major, minor uint32) uint32 { return minor&0xff | major<<8 | minor&^0xff<<12 }

func (t *treeWriter) put16(v ...uint16) {
	for _, v := range v {
		t.buf = binary.LittleEndian.AppendUint16(t.buf, v)
	}
}

func (t *treeWriter) put32(v ...uint32) {
	for _, v := range v {
		t.buf = binary.LittleEndian.AppendUint32(t.buf, v)
	}
}

func (t *treeWriter) put64(v ...uint64) {
	for _, v := range v {
		t.buf = binary.LittleEndian.AppendUint64(t.buf, v)
	}
}

// begin writes what all inodes begin with, and notes where that is.
func (t *treeWriter) begin(in *Inode, node *numbered, long bool) error {
	uid, err := t.ids.number(in.UID)
	if err != nil {
		return err
	}
	gid, err := t.ids.number(in.GID)
	if err != nil {
		return err
	}
	kind := uint16(in.Type)
	if long {
		kind += extended
	}
	block, _ := t.inodes.at()
	if block > math.MaxUint32 { // directories have 32 bits for it
		return fmt.Errorf("the inodes are longer than %d bytes", uint32(math.MaxUint32))
	}
	t.refs[node.number-1] = t.inodes.ref()
	t.buf = t.buf[:0]
	const allModes = 0o7777
	t.put16(kind, in.Mode&allModes, uid, gid)
	t.put32(unixTime(in.ModTime), node.number)
	return nil
}

func (t *treeWriter) end() error { return t.inodes.write(t.buf) }

// regular writes the rest of a file's inode.
func (t *treeWriter) regular(d *Data, node *numbered, xattr uint32, long bool) {
	if d == nil {
		d = &Data{fragment: noFragment}
	}
	r := d.run
	if r == nil {
		r = &run{}
	}
	if long {
		t.put64(uint64(r.start), uint64(d.size), d.sparse(t.blockSize))
		t.put32(node.links, d.fragment, d.offset, xattr)
	} else {
		t.put32(uint32(r.start), d.fragment, d.offset, uint32(d.size))
	}
	t.put32(r.sizes...)
}

// needsLong tells whether a file's content cannot be described by a basic inode.
func (d *Data) needsLong() bool {
	if d == nil {
		return false
	}
	return d.size > math.MaxUint32 || d.run != nil && (d.run.start > math.MaxUint32 || d.run.zeros > 0)
}

// sparse is how many bytes of the file take no place. Of a file that is nothing but zeros, one byte counts as there, as
// the format's tools have it.
func (d *Data) sparse(blockSize int64) uint64 {
	if d.run == nil || d.run.zeros == 0 {
		return 0
	}
	n := d.run.zeros * blockSize
	last := len(d.run.sizes) - 1
	if rest := d.size % blockSize; rest > 0 && d.fragment == noFragment && d.run.sizes[last] == 0 {
		n -= blockSize - rest
	}
	return uint64(min(n, d.size-1))
}
