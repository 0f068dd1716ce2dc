package store

import (
	"fmt"
	"io/fs"
	"syscall"
)

// BucketUsage says how much one bucket holds.
type BucketUsage struct {
	Name    string `json:"name"`    // "blobs", "records", "trees", "temporary"; logs count as temporary
	Objects int    `json:"objects"` // blobs, records, trees; files being written
	Bytes   int64  `json:"bytes"`   // sum of the files' lengths, hard links once
}

// Usage says how much the store holds, bucket by bucket. Shared stores are not counted.
func (s *Store) Usage() ([]BucketUsage, error) {
	blobs, err := countFiles("blobs", s.path(blobBucket))
	if err != nil {
		return nil, err
	}
	records, err := countFiles("records", s.path(recordBucket))
	if err != nil {
		return nil, err
	}
	trees, err := s.treeUsage()
	if err != nil {
		return nil, err
	}
	temps, err := countFiles("temporary", s.path(tmpBucket))
	if err != nil {
		return nil, err
	}
	logs, err := countFiles("logs", s.path(logBucket))
	if err != nil {
		return nil, err
	}
	temps.Objects, temps.Bytes = temps.Objects+logs.Objects, temps.Bytes+logs.Bytes
	return []BucketUsage{blobs, records, trees, temps}, nil
}

func countFiles(name, dir string) (BucketUsage, error) {
	u := BucketUsage{Name: name}
	err := walkFiles(dir, func(_ string, info fs.FileInfo) error {
		u.Objects++
		u.Bytes += info.Size()
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("measure the store's %s: %w", name, err)
	}
	return u, nil
}

func (s *Store) treeUsage() (BucketUsage, error) {
	u := BucketUsage{Name: "trees"}
	trees, err := s.listTrees()
	if err != nil {
		return u, fmt.Errorf("measure the store's trees: %w", err)
	}
	for _, t := range trees {
		u.Objects++
		u.Bytes += treeSize(t.path)
	}
	return u, nil
}

// treeSize sums up the lengths of the files below dir. Directories that may not be read, which images contain, are
// passed over: the sum is for people.
func treeSize(dir string) int64 {
	var sum int64
	type inode struct{ dev, ino uint64 }
	linked := map[inode]bool{}
	_ = walkReadable(dir, func(_ string, info fs.FileInfo) {
		if sys, ok := info.Sys().(*syscall.Stat_t); ok && sys.Nlink > 1 {
			at := inode{sys.Dev, sys.Ino}
			if linked[at] {
				return
			}
			linked[at] = true
		}
		sum += info.Size()
	})
	return sum
}
