package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/progress"
)

// Programs of a build step keep what they would download or make again in cache directories. Those are trees whose content
// changes: under caches of one name there may be several copies, 0, 1, 2…, each with a lock of its own that its users hold.

// CacheSharing says what happens when a cache directory is wanted that is in use.
type CacheSharing int

// The ways to share a cache directory.
const (
	CacheShared  CacheSharing = iota // all use it at once, but for those who want it alone
	CachePrivate                     // whoever finds it in use gets another copy
	CacheLocked                      // whoever finds it in use waits
)

// CacheDir is a cache directory in use.
type CacheDir struct {
	Dir string

	store  *Store
	marker string
	lock   *Lock
}

// maxCacheCopies bounds how many copies of a cache there can be; after that one waits.
const maxCacheCopies = 100

// CacheDir returns the directory called name, any string, and keeps it until Release. A new one is filled by
// begin. What is in it when the machine crashes may be damaged; prune removes it when it was not used for long.
//
// Whoever wants several caches avoids deadlock by asking for them in the order of their names.
func (s *Store) CacheDir(ctx context.Context, name string, sharing CacheSharing, begin func(dir string) error) (*CacheDir, error) {
	if at, err := s.local(); at != s || err != nil {
		if err != nil {
			return nil, err
		}
		return at.CacheDir(ctx, name, sharing, begin)
	}
	if err := s.writable(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(name))
	base := "cache-" + hex.EncodeToString(sum[:16]) + "-"
	number, lock, err := s.lockCache(ctx, name, base, sharing)
	if err != nil {
		return nil, err
	}
	dir := s.path(treeBucket, base+strconv.Itoa(number))
	if err := s.beginCache(ctx, dir, begin); err != nil {
		lock.Unlock()
		return nil, fmt.Errorf("make cache %q: %w", name, err)
	}
	c := &CacheDir{Dir: dir, store: s, marker: dir + doneSuffix, lock: lock}
	s.touch(c.marker)
	return c, nil
}

// Release lets others have the directory.
func (c *CacheDir) Release() {
	c.store.touch(c.marker)
	c.lock.Unlock()
}

// lockCache takes the lock of one copy.
func (s *Store) lockCache(ctx context.Context, name, base string, sharing CacheSharing) (int, *Lock, error) {
	how := unix.LOCK_EX
	if sharing == CacheShared {
		how = unix.LOCK_SH
	}
	tries, does := 1, fmt.Sprintf("uses the cache %q", name)
	if sharing == CachePrivate {
		tries = maxCacheCopies
	}
	for n := range tries {
		l, err := tryLockFile(s.path(lockBucket, lockFileName(base+strconv.Itoa(n))), how, does)
		if l != nil || err != nil {
			return n, l, err
		}
	}
	progress.Notef(ctx, fmt.Sprintf("waiting for the cache %q, which another step uses", name))
	l, err := s.lock(ctx, s.path(lockBucket, lockFileName(base+"0")), how, does)
	return 0, l, err
}

// tryLockFile takes a lock, or returns nil when somebody has it.
func tryLockFile(path string, how int, does string) (*Lock, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if err == nil {
		return newLock(f, how, does), nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, lockError(path, err)
}

// beginCache makes the directory unless it is there. Those who share its lock may come here at once.
func (s *Store) beginCache(ctx context.Context, dir string, begin func(dir string) error) error {
	made := func() bool {
		_, err := os.Stat(dir + doneSuffix)
		return err == nil
	}
	if made() {
		return nil
	}
	l, err := s.Lock(ctx, "begin "+dir, "makes a cache directory")
	if err != nil || made() {
		l.Unlock()
		return err
	}
	defer l.Unlock()
	return s.makeTree(dir, begin, durability{})
}
