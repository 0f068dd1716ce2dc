package facts

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// Squashfs are the files of a file system, read where they are.
func Squashfs(r *squashfs.Reader) (Files, error) {
	root, err := newSquashRoot(r)
	return &rootFiles{root: root}, err
}

// ClusterFile are the files of a cluster file, read where they are. What is found in them is kept in the store, unless that is
// nil.
func ClusterFile(c *source.ClusterFile, st *store.Store) (Files, error) { return clusterFiles(c, st) }

func clusterFiles(c *source.ClusterFile, st *store.Store) (*rootFiles, error) {
	id, err := tablesDigest(c.Partition)
	if err != nil {
		return nil, fmt.Errorf("read the tables of the file system: %w", err)
	}
	root, err := newSquashRoot(c.FS)
	if err != nil {
		return nil, err
	}
	return &rootFiles{root: root, id: id, cache: cache{st}}, nil
}

// Places of numbers in a squashfs superblock (Linux, fs/squashfs/squashfs_fs.h).
const (
	superblockSize = 96
	atBytesUsed    = 40
	atInodeTable   = 64
)

// tablesDigest is the hash of everything in a squashfs but the blocks of its files. The tables have the time of each file and the
// place and the compressed length of each of its blocks: two file systems that differ in anything do not share them, unless
// somebody means to deceive himself.
func tablesDigest(r *io.SectionReader) (store.Digest, error) {
	super := make([]byte, superblockSize)
	if _, err := r.ReadAt(super, 0); err != nil {
		return "", err
	}
	end, tables := binary.LittleEndian.Uint64(super[atBytesUsed:]), binary.LittleEndian.Uint64(super[atInodeTable:])
	if end > uint64(r.Size()) || tables > end {
		return "", squashfs.ErrFormat
	}
	h := sha256.New()
	h.Write(super)
	if _, err := io.Copy(h, io.NewSectionReader(r, int64(tables), int64(end-tables))); err != nil {
		return "", err
	}
	return store.SumDigest(h), nil
}
