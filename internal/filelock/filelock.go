// Package filelock keeps two writers of one file apart, wherever they run.
//
// The lock is a hidden file beside the one that is written, because that is the only place that all nodes of a cluster
// see. Where the file system has flock(2) across its clients (NFS, Lustre with the option flock, GPFS, anything local),
// the kernel keeps the lock and drops it with its process. Where it has not (Lustre without the option), the file's
// existence is the lock, and its holder touches it every few seconds: one that was not touched for a minute belongs to a
// process that is gone.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is a held lock.
type Lock struct {
	f       *os.File
	path    string
	stop    chan struct{} // ends the heartbeat of a lock that is kept by touching
	stopped sync.WaitGroup
}

// How often a waiting process looks again, from the first time to the rarest.
const (
	firstLook  = 20 * time.Millisecond
	rarestLook = time.Second
)

// How often a lock without flock is touched, and after how long without that it is nobody's.
const (
	heartbeat = 5 * time.Second
	abandoned = time.Minute
)

// Path returns the lock file of the file at path.
func Path(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".lock")
}

// Acquire locks the file at path, which need not exist, for writing. While another process holds the lock it waits, until
// ctx ends; waiting, unless nil, is then called now and then with a line for the user, and how long it waits by then. does says what is done under the lock,
// as in [Holder].
func Acquire(ctx context.Context, path, does string, waiting func(note string, waited time.Duration)) (*Lock, error) {
	name := Path(path)
	var wait Wait
	look := firstLook
	for {
		l, err := try(name, does)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if l != nil {
			return l, nil
		}
		if note := wait.Note(claimed(name), does); note != "" && waiting != nil {
			waiting(note, wait.Waited())
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(look):
		}
		look = min(2*look, rarestLook)
	}
}

// claimed is the file in which the holder of the lock says who it is.
func claimed(name string) string {
	if _, err := os.Lstat(name + heldSuffix); err == nil {
		return name + heldSuffix
	}
	return name
}

// heldSuffix ends the name of the file that is the lock where there is no flock.
const heldSuffix = ".held"

// try returns the lock, or nil when somebody else holds it.
func try(name, does string) (*Lock, error) {
	f, err := openLockFile(name)
	if err != nil || f == nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, f.Close()
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EINVAL):
		f.Close()
		return tryByName(name+heldSuffix, does)
	default:
		return nil, errors.Join(err, f.Close())
	}
	// Whoever held the lock before may have removed the file between our open and our lock: then it locks nothing.
	if same, err := isAt(f, name); err != nil || !same {
		return nil, errors.Join(err, f.Close())
	}
	Claim(f, does)
	return &Lock{f: f, path: name}, nil
}

// openLockFile opens the lock file, which is made for everybody if it is not there: the next writer may be another user. It
// returns nil when somebody made or removed it meanwhile.
func openLockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrPermission): // another user's, with a mask; NFS alone wants a writer
		f, err = os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrPermission) && isNew(name) {
			return nil, nil // whose mask counts until the mode below is set
		}
	case errors.Is(err, fs.ErrNotExist):
		// Without O_EXCL a directory with the sticky bit may refuse another user's file (sysctl fs.protected_regular).
		if f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666); err == nil {
			err = f.Chmod(0o666)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, nil
	}
	return f, err
}

// isNew reports whether the file at name was made or written a moment ago.
func isNew(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) < abandoned
}

// isAt reports whether f is still the file at name.
func isAt(f *os.File, name string) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, there), err
}

// tryByName takes a lock by making its file, on a file system without flock.
func tryByName(name, does string) (*Lock, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, removeAbandoned(name)
	}
	if err != nil {
		return nil, err
	}
	l := &Lock{f: f, path: name, stop: make(chan struct{})}
	Claim(f, does)
	l.stopped.Go(func() { l.keep(claim(does)) })
	return l, nil
}

// keep touches the lock file until the lock is released. The write makes the server's clock set the time.
func (l *Lock) keep(line []byte) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			_, _ = l.f.WriteAt(line, 0) // when this fails for a minute the lock is lost, which its rename survives
		}
	}
}

// removeAbandoned removes a lock file that its holder has stopped to touch. The time is compared with that of a fresh file
// in the same directory, because the clocks of nodes and servers differ.
func removeAbandoned(name string) error {
	held, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := serverTime(filepath.Dir(name))
	if err != nil || now.Sub(held.ModTime()) < abandoned {
		return err
	}
	// Two waiters may both come here. Renaming lets only one of them have the old file.
	away := fmt.Sprintf("%s.%d", name, held.ModTime().UnixNano())
	if err := os.Rename(name, away); err != nil {
		return nil //nolint:nilerr // the other waiter was first
	}
	return os.Remove(away)
}

func serverTime(dir string) (time.Time, error) {
	f, err := os.CreateTemp(dir, ".clock-*")
	if err != nil {
		return time.Time{}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return st.ModTime(), nil
}

// Release gives the lock up and removes its file.
func (l *Lock) Release() {
	if l.stop != nil {
		close(l.stop)
		l.stopped.Wait()
	}
	os.Remove(l.path) // while it is held, so that nobody's lock is removed
	l.f.Close()
}
