// Package store is the content-addressed store that every build reads from and writes to.
//
// One directory holds buckets, each named with the version of its layout:
//
//	blobs-v1/sha256/ab/abcd…   bytes under their own SHA-256: downloads, layers, manifests, configs
//	records-v1/KIND/ab/KEY     small JSON documents under a key: what a step made, what a layer holds, image names
//	trees-v1/NAME              directories that can be made again: layers unpacked for the sandbox, caches of build steps
//	tmp-v1/                    what is being written now, and downloads to be resumed
//	locks-v1/                  files that carry locks and nothing else
//	logs-v1/                   what programs of build steps printed
//
// Contracts that callers rely on:
//
//   - An object appears under its final name whole or not at all: it is written in tmp-v1, synced, then renamed.
//     A process killed at any instruction leaves at most a file in tmp-v1, which the next prune removes.
//   - A blob's name is the hash of its bytes, checked while they are written.
//   - Locks are flock(2) locks: the kernel drops them with the process.
//   - Every process that uses the store holds a shared lock on it; prune takes it exclusively, so it never removes what
//     a live build uses.
//   - A store that cannot be written is opened read-only: objects are found, nothing is added.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
)

// ErrReadOnly is wrapped by every write to a store that this process may only read.
var ErrReadOnly = errors.New("the store is read-only for this user")

// The buckets, named with the version of their layout: a change of layout is a new name, and old sconces keep working.
const (
	blobBucket   = "blobs-v1"
	recordBucket = "records-v1"
	treeBucket   = "trees-v1"
	tmpBucket    = "tmp-v1"
	lockBucket   = "locks-v1"
)

// Store is an open store. Its methods may be called from many goroutines.
type Store struct {
	dir       string
	own       string // has all buckets but blobs, and locks of blobs: dir, or in a store of a group a member's part of it
	group     *group // nil: the store has one writer
	readOnly  bool
	shared    []*Store                                                // further stores, only read, asked after this one
	scratch   *Store                                                  // has the trees and temporary directories of this one; nil: this one itself, see UseScratch
	choose    func(tmp string) (dir string, remove func(), err error) // see ChooseScratch; nil: there is nothing to choose
	chosen    sync.Once
	chosenErr error
	unchoose  func() // removes the chosen directory
	inUse     *Lock  // shared lock that keeps prune away
}

// DefaultDir returns the store's directory: $SCONCE_STORE, else $XDG_CACHE_HOME/sconce, else ~/.cache/sconce.
func DefaultDir() (string, error) {
	if d := os.Getenv("SCONCE_STORE"); d != "" {
		return filepath.Abs(d)
	}
	if d := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sconce"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the store: %w; set SCONCE_STORE to a directory", err)
	}
	return filepath.Join(home, ".cache", "sconce"), nil
}

// SharedDirs returns the directories listed in $SCONCE_SHARED_STORES, separated by colons.
func SharedDirs() []string { return filepath.SplitList(os.Getenv("SCONCE_SHARED_STORES")) }

// Open is [OpenShared] with the stores of [SharedDirs].
func Open(ctx context.Context, dir string) (*Store, error) { return OpenShared(ctx, dir, SharedDirs()) }

// OpenShared opens the store in dir, which is made if it does not exist, together with further stores, which are only read and
// asked for what dir lacks. Where it cannot be made, as in a home that is read-only, there must be another: all of it is read-only then. It
// waits while a prune is running.
func OpenShared(ctx context.Context, dir string, shared []string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{dir: dir, own: dir}
	if err := s.findGroup(); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	if err := s.makeBuckets(); err != nil {
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
			return nil, fmt.Errorf("open store %s: %w", dir, err)
		}
		s.readOnly = true
		if !there(dir) && !slices.ContainsFunc(shared, there) { // with another, what that has can be used
			return nil, fault.Hint(fmt.Errorf("open store %s: %w", dir, err), "set SCONCE_STORE to a directory you can write")
		}
	}
	if err := s.holdOpen(ctx); err != nil {
		return nil, err
	}
	if k := s.keepers(); k != nil {
		s.shared = append(s.shared, k)
	}
	if err := s.openShared(ctx, shared); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// there reports whether a store is in dir.
func there(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, blobBucket))
	return err == nil && info.IsDir()
}

// UseScratch has trees, caches of steps and temporary directories in a store of its own in dir, which is made if it does not exist and
// belongs to one machine: what is unpacked and what steps write is then on a local disk, while blobs, records and their locks are where
// several machines share them. Close closes it; whoever made it removes it.
func (s *Store) UseScratch(ctx context.Context, dir string) error {
	scratch, err := OpenShared(ctx, dir, nil)
	if err == nil && scratch.dir == s.dir {
		return scratch.Close()
	}
	if err != nil {
		return fmt.Errorf("scratch directory: %w", err)
	}
	s.scratch = scratch
	return nil
}

// ChooseScratch has choose called when a place is first needed for what [Store.UseScratch] speaks of, with the directory that has temporary files else. It returns a directory for this
// process alone, which Close has removed, or "" where the store is good for it.
func (s *Store) ChooseScratch(choose func(tmp string) (dir string, remove func(), err error)) {
	s.choose = choose
}

// local is the store that has what is unpacked and what steps write: this one or its scratch.
func (s *Store) local() (*Store, error) {
	if s.choose == nil {
		return cmp.Or(s.scratch, s), nil
	}
	s.chosen.Do(func() {
		dir, remove, err := s.choose(s.path(tmpBucket))
		if err == nil && dir != "" {
			s.unchoose = remove
			err = s.UseScratch(context.Background(), dir)
		}
		s.chosenErr = err
	})
	return cmp.Or(s.scratch, s), s.chosenErr
}

// Forgets reports whether what is unpacked is gone when this process ends.
func (s *Store) Forgets() bool {
	_, err := s.local()
	return err != nil || s.unchoose != nil
}

// openShared opens stores for reading. One that does not exist (yet) holds nothing, and one that
// this user may not read is passed over: everything can be had without it.
func (s *Store) openShared(ctx context.Context, dirs []string) error {
	for _, d := range dirs {
		if d == "" || filepath.Clean(d) == s.dir {
			continue
		}
		at := &Store{dir: d, own: d, readOnly: true}
		if err := errors.Join(at.findGroup(), at.readable()); err != nil {
			progress.Warn(ctx, fmt.Sprintf("the shared store %s is passed over: %v", d, err), "its owner can open it with chmod -R a+rX; or take it out of SCONCE_SHARED_STORES, or of the configuration")
			continue
		}
		if err := at.holdOpen(ctx); err != nil {
			return err
		}
		s.shared = append(s.shared, at)
	}
	return nil
}

// readable says why this user may not read the store. What does not exist is no reason.
func (s *Store) readable() error {
	for _, bucket := range []string{"", blobBucket, recordBucket, treeBucket} {
		dir := s.path(bucket)
		if err := unix.Access(dir, unix.R_OK|unix.X_OK); errors.Is(err, fs.ErrPermission) {
			return &fs.PathError{Op: "read", Path: dir, Err: err}
		}
	}
	return nil
}

// all returns the stores to ask for an object, this one first.
func (s *Store) all() []*Store { return append([]*Store{s}, s.shared...) }

func (s *Store) makeBuckets() error {
	if s.group != nil {
		if err := s.joinGroup(); err != nil {
			return err
		}
	} else if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	for _, b := range []string{blobBucket, recordBucket, treeBucket, tmpBucket, lockBucket} {
		if err := s.makeDir(s.path(b)); err != nil {
			return err
		}
	}
	return unix.Access(s.own, unix.W_OK)
}

// makeDir makes a directory that whoever may read the store may read, whatever the umask, unless it is there.
func (s *Store) makeDir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o755) // in a member's part without the setgid bit, which what steps make there would get
	if s.group == nil {
		top, err := os.Stat(s.dir)
		if err != nil {
			return err
		}
		mode = top.Mode().Perm()&^0o022 | 0o700
	}
	return os.Chmod(dir, mode)
}

// holdOpen takes the shared lock that keeps prune away. A reader of somebody else's store takes it where it can: a
// lock needs only a file that can be opened.
func (s *Store) holdOpen(ctx context.Context) error {
	l, err := s.lock(ctx, s.commonLock(useLock), unix.LOCK_SH, prunes)
	if err != nil && (!s.readOnly || ctx.Err() != nil) {
		return err
	}
	s.inUse = l
	return nil
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

// ReadOnly reports whether this process may only read the store.
func (s *Store) ReadOnly() bool { return s.readOnly }

// Close lets go of the store and the shared ones, so that they can be pruned. Nothing may use it afterwards.
func (s *Store) Close() error {
	var errs []error
	for _, at := range s.all() {
		errs = append(errs, at.inUse.Unlock())
		at.inUse = nil
	}
	if s.scratch != nil {
		errs = append(errs, s.scratch.Close())
	}
	if s.unchoose != nil {
		s.unchoose()
	}
	return errors.Join(errs...)
}

// path is where something of a bucket is.
func (s *Store) path(elem ...string) string {
	dir := s.own
	if elem[0] == blobBucket {
		dir = s.dir
	}
	return filepath.Join(append([]string{dir}, elem...)...)
}

func (s *Store) writable() error {
	if s.readOnly {
		return fault.Hint(fmt.Errorf("%s: %w", s.dir, ErrReadOnly), s.elsewhere())
	}
	return nil
}

// elsewhere says how to write to another store, and still read from this one if it has anything.
func (s *Store) elsewhere() string {
	hint := "set SCONCE_STORE to a directory you can write"
	if there(s.dir) {
		hint += ", and add " + s.dir + " to SCONCE_SHARED_STORES to keep using this one"
	}
	return hint
}

// syncDir makes a rename in dir survive a crash of the machine.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
