package squashfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// padding is what the length of a file system is a multiple of, in bytes: loop devices need it.
const padding = 4 << 10

// Finish writes everything else: the tables for the tree below root, and the superblock. It returns the length of the file
// system in bytes, a multiple of 4 KiB, and truncates the file to its end.
func (w *Writer) Finish(root *Inode) (int64, error) {
	if err := w.err(); err != nil {
		return 0, err
	}
	if w.seg != nil {
		return 0, errors.New("the last segment has not ended")
	}
	w.stopPipeline()
	n, err := w.finish(root)
	if err != nil {
		return 0, w.fail(err)
	}
	_ = w.fail(errors.New("the file system is finished"))
	return n, nil
}

func (w *Writer) finish(root *Inode) (int64, error) {
	encoder, err := w.opts.metadataEncoder()
	if err != nil {
		return 0, err
	}
	tree, err := w.writeTree(root, encoder)
	if err != nil {
		return 0, err
	}
	super, err := w.writeTables(tree, &tables{sink: w.out, encoder: encoder})
	if err != nil {
		return 0, err
	}
	super.Root = tree.refs[0]
	if err := w.pad(); err != nil {
		return 0, err
	}
	if err := w.writeHead(super); err != nil {
		return 0, err
	}
	if err := w.f.Truncate(w.base + w.out.pos); err != nil {
		return 0, fmt.Errorf("write file system: %w", err)
	}
	return w.out.pos, nil
}

// metadataEncoder compresses metadata blocks.
func (o Options) metadataEncoder() (blockEncoder, error) {
	o.BlockSize = metadataSize
	return o.encoder()
}

// writeTree makes the inodes and directories, in memory.
func (w *Writer) writeTree(root *Inode, encoder blockEncoder) (*treeWriter, error) {
	if root == nil || root.Type != Dir {
		return nil, errors.New("the root of a file system is a directory")
	}
	t := &treeWriter{
		numbering: numbering{owner: w, nodes: make(map[*Inode]*numbered)},
		inodes:    newMetaStream(encoder),
		dirs:      newMetaStream(encoder),
		xattrs:    newXattrSet(encoder),
		blockSize: int64(w.opts.BlockSize),
	}
	if err := t.add(root); err != nil {
		return nil, err
	}
	t.refs = make([]uint64, len(t.nodes))
	for i := range t.refs {
		t.refs[i] = unwritten
	}
	return t, t.directory(root, uint32(len(t.nodes))+1)
}

// writeTables writes the tables in the order in which the kernel expects them, and begins the superblock.
func (w *Writer) writeTables(t *treeWriter, out *tables) (*superblock, error) {
	s := &superblock{
		Magic: Magic, Major: 4,
		Inodes:     uint32(len(t.nodes)),
		ModTime:    unixTime(w.opts.ModTime),
		BlockSize:  uint32(w.opts.BlockSize),
		BlockLog:   uint16(bits.TrailingZeros32(uint32(w.opts.BlockSize))),
		Fragments:  uint32(len(w.parts)),
		Compressor: uint16(w.opts.Compression),
		Flags:      w.flags(t),
	}
	if w.opts.Compression == Stored {
		s.Compressor = uint16(Gzip) // a compressor must be named, and this one every kernel has
	}
	for _, table := range []struct {
		place *uint64
		write func() (uint64, error)
	}{
		{&s.InodeTable, func() (uint64, error) { return out.stream(t.inodes) }},
		{&s.DirTable, func() (uint64, error) { return out.stream(t.dirs) }},
		{&s.FragmentTable, func() (uint64, error) { return out.fragments(w.parts) }},
		{&s.ExportTable, func() (uint64, error) { return out.export(t.refs) }},
		{&s.IDTable, func() (uint64, error) { return out.ids(&t.ids) }},
		{&s.XattrTable, func() (uint64, error) { return out.xattrs(t.xattrs) }},
	} {
		var err error
		if *table.place, err = table.write(); err != nil {
			return nil, err
		}
	}
	s.IDs = uint16(len(t.ids.ids))
	s.BytesUsed = uint64(w.out.pos)
	return s, nil
}

func (w *Writer) flags(t *treeWriter) uint16 {
	flags := uint16(flagDuplicates | flagExportable)
	if w.opts.Compression == Stored {
		flags |= flagInodesStored | flagDataStored | flagFragmentsStored | flagXattrsStored | flagIDsStored
	}
	if w.opts.TailPacking {
		flags |= flagAlwaysFragments
	}
	if t.xattrs.count == 0 {
		flags |= flagNoXattrs
	}
	if w.opts.compressorOptions() != nil {
		flags |= flagOptions
	}
	return flags
}

// pad fills up the last 4 KiB.
func (w *Writer) pad() error {
	if n := w.out.pos % padding; n > 0 {
		if err := w.out.write(zeroPage[:padding-n]); err != nil {
			return err
		}
	}
	return w.out.flush()
}

// writeHead writes the superblock, and behind it the compressor's options as a metadata block.
func (w *Writer) writeHead(s *superblock) error {
	head := s.encode()
	if extra := w.opts.compressorOptions(); extra != nil {
		head = binary.LittleEndian.AppendUint16(head, uint16(len(extra)|metadataStored)&math.MaxUint16)
		head = append(head, extra...)
	}
	return w.out.writeAt(head, 0)
}
