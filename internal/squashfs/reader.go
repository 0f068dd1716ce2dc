package squashfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"time"

	"sconce.dev/sconce/internal/recent"
)

// Reader reads a file system. It is safe for concurrent use, and keeps some megabytes of decompressed blocks.
//
// What it reads may be hostile: every place, size and count is checked against the file and against limits before anything
// is done with it. Errors about the file system wrap ErrFormat; those about what it is compressed with, and this package
// cannot decompress, wrap errors.ErrUnsupported.
type Reader struct {
	file   io.ReaderAt
	super  superblock
	level  int
	expand expander
	ids    []uint32

	inodes    metaTable
	dirs      metaTable
	fragments []int64 // places of the metadata blocks of the fragment table
	xattrs    xattrTable

	metaCache recent.Cache[int64, metaChunk]
	dataCache recent.Cache[dataKey, []byte]
	buffers   sync.Pool // of *[]byte, for compressed blocks
}

// Info tells what a superblock says.
type Info struct {
	Compressor Compressor // Stored when nothing is compressed
	Level      int        // of compression, where it was written down; 0: unknown, or the compressor has none
	BlockSize  int        // bytes
	Inodes     int
	Fragments  int // blocks that hold small files and ends of files
	IDs        int // different user and group ids
	ModTime    time.Time
	BytesUsed  int64 // by the file system; a file may be longer

	InodesStored    bool // the inode table is not compressed
	DataStored      bool // nor are the blocks of files
	FragmentsStored bool // nor are fragments
	XattrsStored    bool // nor are extended attributes
	IDsStored       bool // nor is the table of ids
	NoFragments     bool // there are no fragments
	AlwaysFragments bool // the ends of large files are in fragments too
	Deduplicated    bool // equal files are stored once
	Exportable      bool // has the table that NFS needs
	NoXattrs        bool // has no extended attributes
}

// Memory that a Reader keeps, in bytes.
const (
	metaCacheSize = 8 << 20
	dataCacheSize = 16 << 20
)

// New makes a Reader of the file system that r begins with. size is r's length in bytes.
func New(r io.ReaderAt, size int64) (*Reader, error) {
	super, err := readSuperblock(r, size)
	if err != nil {
		return nil, err
	}
	z := &Reader{file: r, super: super}
	z.metaCache.Room = metaCacheSize
	z.dataCache.Room = dataCacheSize
	if z.expand, err = newExpander(Compressor(super.Compressor)); err != nil {
		return nil, err
	}
	if err := z.readOptions(); err != nil {
		return nil, err
	}
	if err := z.openTables(); err != nil {
		return nil, err
	}
	return z, nil
}

// readSuperblock reads and checks the superblock.
func readSuperblock(r io.ReaderAt, size int64) (superblock, error) {
	var s superblock
	b := make([]byte, superblockSize)
	switch n, err := r.ReadAt(b, 0); {
	case n == len(b):
	case err == nil || errors.Is(err, io.EOF):
		return s, formatError("%d bytes are too short for a superblock", n)
	default:
		return s, fmt.Errorf("read superblock: %w", err)
	}
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, &s); err != nil {
		return s, fmt.Errorf("read superblock: %w", err)
	}
	return s, s.check(size)
}

func (s *superblock) check(size int64) error {
	switch {
	case s.Magic == bits.ReverseBytes32(Magic):
		return formatError("it is big endian: a version before 4.0, which Linux no longer reads either")
	case s.Magic != Magic:
		return formatError("it does not begin with hsqs")
	case s.Major != 4 || s.Minor != 0:
		return formatError("it is version %d.%d; only 4.0 is known", s.Major, s.Minor)
	case s.BlockLog > 31 || s.BlockSize != 1<<s.BlockLog || s.BlockSize < MinBlockSize || s.BlockSize > MaxBlockSize:
		return formatError("block size of %d bytes (log %d)", s.BlockSize, s.BlockLog)
	case s.BytesUsed < superblockSize || s.BytesUsed > 1<<62:
		return formatError("%d bytes used", s.BytesUsed)
	case s.BytesUsed > uint64(max(size, 0)):
		return formatError("it is cut off: it has %d bytes and should have %d", size, s.BytesUsed)
	case s.InodeTable < superblockSize || s.InodeTable >= s.DirTable || s.DirTable >= s.BytesUsed:
		return formatError("inode table at %d and directory table at %d of %d bytes", s.InodeTable, s.DirTable, s.BytesUsed)
	case s.Inodes == 0 || s.IDs == 0:
		return formatError("%d inodes and %d ids", s.Inodes, s.IDs)
	}
	return nil
}

// end is where the file system ends.
func (r *Reader) end() int64 { return int64(r.super.BytesUsed) }

// readAt fills p from a place that is known to be inside the file system.
func (r *Reader) readAt(p []byte, place int64) error {
	if n, err := r.file.ReadAt(p, place); n < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read %d bytes at %d: %w", len(p), place, err)
	}
	return nil
}

// readOptions reads the compressor's options, of which only the level means anything to a reader.
func (r *Reader) readOptions() error {
	if r.super.Flags&flagOptions == 0 {
		return nil
	}
	chunk, err := r.loadChunk(superblockSize, r.end())
	if err != nil {
		return fmt.Errorf("read compressor options: %w", err)
	}
	at := map[Compressor]int{Gzip: 0, Zstd: 0, LZO: 4} // where the level is
	if at, ok := at[Compressor(r.super.Compressor)]; ok && len(chunk.data) >= at+4 {
		r.level = int(binary.LittleEndian.Uint32(chunk.data[at:]) & 0xff)
	}
	return nil
}

// openTables finds the tables and reads those that are needed all the time.
func (r *Reader) openTables() error {
	s := &r.super
	r.inodes = metaTable{int64(s.InodeTable), int64(s.DirTable)}
	r.dirs = metaTable{int64(s.DirTable), r.end()}
	for _, next := range []uint64{s.FragmentTable, s.ExportTable, s.IDTable, s.XattrTable} {
		if next > s.DirTable && next < uint64(r.dirs.end) {
			r.dirs.end = int64(next)
		}
	}
	var err error
	if r.fragments, err = r.tableIndex(s.FragmentTable, int64(s.Fragments), fragmentSize); err != nil {
		return fmt.Errorf("read fragment table: %w", err)
	}
	if err := r.readIDs(); err != nil {
		return fmt.Errorf("read id table: %w", err)
	}
	if err := r.openXattrs(); err != nil {
		return fmt.Errorf("read table of extended attributes: %w", err)
	}
	return nil
}

// readIDs reads the user and group ids; there are at most 65535.
func (r *Reader) readIDs() error {
	places, err := r.tableIndex(r.super.IDTable, int64(r.super.IDs), 4)
	if err != nil {
		return err
	}
	r.ids = make([]uint32, r.super.IDs)
	for i := range r.ids {
		b, err := r.tableEntry(places, int64(i), 4)
		if err != nil {
			return err
		}
		r.ids[i] = binary.LittleEndian.Uint32(b)
	}
	return nil
}

// id is the user or group id that has a number.
func (r *Reader) id(n uint16) (uint32, error) {
	if int(n) >= len(r.ids) {
		return 0, formatError("id number %d of %d", n, len(r.ids))
	}
	return r.ids[n], nil
}

// Info returns what the superblock says.
func (r *Reader) Info() Info {
	s := &r.super
	has := func(flag uint16) bool { return s.Flags&flag != 0 }
	info := Info{
		Compressor: Compressor(s.Compressor), Level: r.level, BlockSize: int(s.BlockSize),
		Inodes: int(s.Inodes), Fragments: int(s.Fragments), IDs: int(s.IDs),
		ModTime: time.Unix(int64(s.ModTime), 0).UTC(), BytesUsed: r.end(),
		InodesStored: has(flagInodesStored), DataStored: has(flagDataStored), FragmentsStored: has(flagFragmentsStored),
		XattrsStored: has(flagXattrsStored), IDsStored: has(flagIDsStored), NoFragments: has(flagNoFragments),
		AlwaysFragments: has(flagAlwaysFragments), Deduplicated: has(flagDuplicates), Exportable: has(flagExportable),
		NoXattrs: has(flagNoXattrs),
	}
	fragmentsStored := info.FragmentsStored || info.NoFragments || info.Fragments == 0
	if info.InodesStored && info.DataStored && fragmentsStored {
		info.Compressor, info.Level = Stored, 0
	}
	return info
}
