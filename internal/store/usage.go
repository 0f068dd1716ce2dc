package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// BucketUsage says how much one bucket holds.
type BucketUsage struct {
	Name    string `json:"name"`    // "blobs", "records", "trees", "temporary"; logs count as temporary
	Objects int    `json:"objects"` // blobs, records, trees; what is being written, or was when its process was killed: files, and directories as one
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
	temps, err := s.tempUsage()
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
		size, _ := measureTree(t.path)
		u.Objects++
		u.Bytes += size
	}
	return u, nil
}

// tempUsage counts what lies there as [Store.Prune] does. What a command works in has directories that their owner may not read:
// the kernel makes one for each overlay.
func (s *Store) tempUsage() (BucketUsage, error) {
	u := BucketUsage{Name: "temporary"}
	entries, err := os.ReadDir(s.path(tmpBucket))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, fmt.Errorf("measure the store's temporary files: %w", err)
	}
	for _, e := range entries {
		u.Objects++
		u.Bytes += treeSize(s.path(tmpBucket, e.Name()))
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
