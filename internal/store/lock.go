package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/progress"
)

// useLock is held shared by every user of the store and exclusively by prune.
const useLock = "in-use"

// Lock is a file lock held by this process.
type Lock struct {
	f       *os.File
	claimed bool // the file says who has the lock
}

// Unlock releases the lock. The file stays: removing it would let two processes hold locks on different files of one name.
func (l *Lock) Unlock() error {
	if l == nil {
		return nil
	}
	if l.claimed {
		filelock.Disclaim(l.f)
	}
	return l.f.Close()
}

// Lock takes the exclusive lock called name, waiting for other processes and goroutines until ctx ends. Two builds that
// need the same object take the lock named after it; the second then finds the object done. does says what is done under the
// lock, for those who wait: "makes torch".
func (s *Store) Lock(ctx context.Context, name, does string) (*Lock, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	return s.lock(ctx, s.path(lockBucket, lockFileName(name)), unix.LOCK_EX, does)
}

// LockBlob is Lock for bringing what is known by a digest: in a store of a group, one member does and the others wait.
func (s *Store) LockBlob(ctx context.Context, name, does string) (*Lock, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	return s.lock(ctx, s.commonLock(lockFileName(name)), unix.LOCK_EX, does)
}

// commonLock is the file of a lock that all users of the store take.
func (s *Store) commonLock(file string) string { return filepath.Join(s.dir, lockBucket, file) }

// lockFileName makes any name, an URL for instance, the name of a file.
func lockFileName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

func (s *Store) lock(ctx context.Context, path string, how int, does string) (*Lock, error) {
	l, err := lockFile(ctx, path, how, does)
	if err != nil {
		return nil, fmt.Errorf("lock store %s: %w", s.dir, err)
	}
	return l, nil
}

// lockFile takes a flock on the file at path. flock has no deadline, so it is asked for again, ever less often, until
// ctx ends. Whoever holds it exclusively says so in the file; does is as in [filelock.Holder].
func lockFile(ctx context.Context, path string, how int, does string) (*Lock, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	var waiting filelock.Wait
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return newLock(f, how, does), nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, lockError(path, err)
		}
		if note := waiting.Note(path, does); note != "" {
			progress.Wait(ctx, note, waiting.Waited())
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// openLock opens the file of a lock, which is made if it is not there: writable by whoever may write to its directory, as the next one to
// take it may be another user.
func openLock(path string) (*os.File, error) {
	const flags = unix.O_NOFOLLOW | unix.O_NONBLOCK // it may be what another user has put there
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		// Without O_EXCL a directory with the sticky bit may refuse another user's file (sysctl fs.protected_regular).
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|flags, 0o644); err == nil {
			return f, letWrite(f, filepath.Dir(path))
		}
		if errors.Is(err, fs.ErrExist) { // somebody was faster
			f, err = os.OpenFile(path, os.O_RDWR|flags, 0)
		}
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		f, err = os.OpenFile(path, os.O_RDONLY|flags, 0) // a lock can be held on a file that is only read
	}
	return f, err
}

// letWrite lets the group write to f that may write to dir.
func letWrite(f *os.File, dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&0o020 == 0 {
		return err
	}
	return f.Chmod(0o664)
}

// newLock is the lock on f, which is held.
func newLock(f *os.File, how int, does string) *Lock {
	if how == unix.LOCK_EX {
		filelock.Claim(f, does)
	}
	return &Lock{f: f, claimed: how == unix.LOCK_EX}
}

// lockError explains why a lock cannot be had at all: Lustre mounted without -o flock is the usual case.
func lockError(path string, err error) error {
	e := &os.PathError{Op: "flock", Path: filepath.Base(path), Err: err}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK) {
		return fault.Hint(e, "this file system has no file locks; set SCONCE_STORE to a directory on another one, a local disk for instance")
	}
	return e
}
