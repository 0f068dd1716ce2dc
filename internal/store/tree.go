package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Tree returns the directory called name, made by make unless it exists. make gets an empty directory; what it leaves
// there appears under the final name only when make succeeds. Concurrent callers, in any process, wait for one make.
//
// Trees are not synced file by file: after a crash of the machine a tree may be incomplete, so a tree made before the
// last boot is only believed if the marker beside it was written after its files were synced.
func (s *Store) Tree(ctx context.Context, name string, make func(dir string) error) (string, error) {
	return s.tree(ctx, name, make, onDisk)
}

// tree returns a tree, made if necessary.
func (s *Store) tree(ctx context.Context, name string, make func(dir string) error, how durability) (string, error) {
	if s.readOnly && s.choose != nil {
		if dir, ok := s.FindTree(name); ok { // the place that would be chosen is empty
			return dir, nil
		}
	}
	if at, err := s.local(); at != s || err != nil {
		if err != nil {
			return "", err
		}
		return at.tree(ctx, name, make, how)
	}
	if !keyForm.MatchString(name) {
		return "", fmt.Errorf("%q cannot be a tree's name", name)
	}
	if dir, ok := s.FindTree(name); ok {
		return dir, nil
	}
	l, err := s.Lock(ctx, "tree "+name, "unpacks "+name)
	if err != nil {
		return "", err
	}
	defer l.Unlock()
	dir := s.path(treeBucket, name)
	if treeDone(dir) {
		return dir, nil
	}
	return dir, s.makeTree(dir, make, how)
}

// FindTree returns the directory of a tree that is there, in this store or a shared one.
func (s *Store) FindTree(name string) (dir string, ok bool) {
	if !keyForm.MatchString(name) {
		return "", false
	}
	for _, at := range s.all() {
		dir := at.path(treeBucket, name)
		if treeDone(dir) {
			at.touch(dir + doneSuffix)
			return dir, true
		}
	}
	return "", false
}

// doneSuffix marks a tree whose files are all there: on disk, or as long as the boot lasts that the marker names.
const doneSuffix = ".done"

func (s *Store) makeTree(dir string, make func(dir string) error, how durability) error {
	tmp, err := os.MkdirTemp(s.path(tmpBucket), "tree-*")
	if err != nil {
		return fmt.Errorf("write to store: %w", err)
	}
	defer func() { _ = RemoveAll(tmp) }()        // gone when all went well
	if err := os.Chmod(tmp, 0o755); err != nil { // a tree, unlike a temporary directory, is for everyone who may read the store
		return err
	}
	if err := make(tmp); err != nil {
		return err
	}
	if how.sync {
		if err := syncFS(tmp); err != nil {
			return err
		}
	}
	// What a crash left between the rename and the marker, or a tree that was not put on disk before it.
	os.Remove(dir + doneSuffix)
	if err := RemoveAll(dir); err != nil {
		return err
	}
	size := treeSize(tmp)
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	_ = os.WriteFile(dir+sizeSuffix, strconv.AppendInt(nil, size, 10), 0o644) // only saves walking it
	return markTree(dir, how.boot)
}

// sizeSuffix marks the size of a tree that does not change any more, in bytes, so that measuring the store is quick where asking
// for each file is not. What has one can be made again from what the store has.
const sizeSuffix = ".size"

// measureTree returns how many bytes a tree holds, and whether it was unpacked and stays as it is.
func measureTree(dir string) (size int64, unpacked bool) {
	text, err := os.ReadFile(dir + sizeSuffix)
	if err == nil {
		if size, err = strconv.ParseInt(string(text), 10, 64); err == nil {
			return size, true
		}
	}
	return treeSize(dir), false
}

// TempDir makes a directory for work that leaves nothing behind. The caller removes it with [RemoveAll]; prune removes
// it if the caller dies.
func (s *Store) TempDir(pattern string) (string, error) {
	if at, err := s.local(); at != s || err != nil {
		if err != nil {
			return "", err
		}
		return at.TempDir(pattern)
	}
	if err := s.writable(); err != nil {
		return "", err
	}
	return os.MkdirTemp(s.path(tmpBucket), pattern)
}

// treeInfo is a tree as prune and usage see it.
type treeInfo struct {
	path string
	used time.Time
	done bool
}

// listTrees lists the trees; one without a marker is not done and was never used.
func (s *Store) listTrees() ([]treeInfo, error) {
	entries, err := os.ReadDir(s.path(treeBucket))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	byPath := map[string]treeInfo{}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), sizeSuffix) && !e.IsDir() {
			continue
		}
		name, isMarker := strings.CutSuffix(e.Name(), doneSuffix)
		t := byPath[name]
		t.path = s.path(treeBucket, name)
		if isMarker {
			if info, err := e.Info(); err == nil {
				t.used, t.done = info.ModTime(), true
			}
		}
		byPath[name] = t
	}
	trees := slices.Collect(maps.Values(byPath))
	slices.SortFunc(trees, func(a, b treeInfo) int { return strings.Compare(a.path, b.path) })
	return trees, nil
}

// walkReadable calls fn for every file below dir that can be reached.
func walkReadable(dir string, fn func(path string, info fs.FileInfo)) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // only readable files count
		}
		if info, err := d.Info(); err == nil {
			fn(path, info)
		}
		return nil
	})
}
