package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
)

// WriteClusterFile writes a squashfs or SIF file. Unlike other files, which an export replaces when sconce wrote them, these
// may be what jobs run from: only what sconce wrote of an image of the same name is replaced without the user's insisting. Whoever
// has the old file open keeps it. Of several writers of one
// file, wherever they run, one writes and the others find it done.
func WriteClusterFile(ctx context.Context, in clusterfile.Input, t Target, o Options) error {
	dest := t.String()
	path, err := filepath.Abs(t.Path)
	if err != nil {
		return fmt.Errorf("write %s: %w", t, err)
	}
	t.Path = path
	if holds(t, in, o) {
		progress.Begin(ctx, "export", dest, 0).EndCached()
		return nil
	}
	task := progress.Begin(ctx, "export", dest, 0)
	c := &clusterWriter{ctx: ctx, in: in, target: t, o: o}
	return task.End(explain(t, c.write(c.fill)))
}

// CopyClusterFile makes a squashfs or SIF file of another one: the file system in it is copied as it is.
func CopyClusterFile(ctx context.Context, from *source.ClusterFile, t Target, o Options) error {
	path, err := filepath.Abs(t.Path)
	if err != nil {
		return fmt.Errorf("write %s: %w", t, err)
	}
	t.Path = path
	task := progress.Begin(ctx, "export", t.String(), from.Partition.Size())
	c := &clusterWriter{ctx: ctx, target: t, o: o, size: from.Partition.Size()}
	c.o.Squashfs = clusterfile.OptionsOf(from.FS)
	if t.Transport != Plain {
		c.in.Digest, _ = clusterfile.Digest(from.FS) // without one, nothing is taken for the same
		c.in.Name = clusterfile.Name(from.FS)
	}
	return task.End(explain(t, c.write(func(f *os.File) error {
		if t.Transport == source.SIF {
			return clusterfile.WrapSquashfs(ctx, f, from, task)
		}
		return clusterfile.CopyPartition(ctx, f, 0, from, task)
	})))
}

// IsClusterFile reports whether the target is a squashfs or SIF file.
func (t Target) IsClusterFile() bool {
	return t.Transport == source.Squashfs || t.Transport == source.SIF || holdsTree(t.Transport)
}

// clusterWriter writes one file.
type clusterWriter struct {
	ctx    context.Context // of the one call that the writer serves
	in     clusterfile.Input
	target Target
	o      Options
	size   int64 // of the file system, in bytes; 0 when it has to be estimated
	named  bool  // give an unfinished file a hidden name even where it needs none
}

func (c *clusterWriter) fill(f *os.File) error {
	o := clusterfile.Options{Store: c.o.Store, Squashfs: c.o.Squashfs, NoReuse: c.o.NoReuse}
	if c.target.Transport == source.SIF {
		return clusterfile.WriteSIF(c.ctx, f, c.in, o)
	}
	return clusterfile.WriteSquashfs(c.ctx, f, c.in, o)
}

// errWritten says that another writer was first and wrote the same.
var errWritten = errors.New("already written")

func (c *clusterWriter) write(fill func(*os.File) error) error {
	if err := os.MkdirAll(filepath.Dir(c.target.Path), 0o755); err != nil {
		return err
	}
	lock, err := filelock.Acquire(c.ctx, c.target.Path, "writes "+c.target.Path, progress.Waiting(c.ctx))
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := c.mayWrite(); err != nil {
		if errors.Is(err, errWritten) {
			return nil
		}
		return err
	}
	if err := c.checkSpace(); err != nil {
		return err
	}
	return c.writeLocked(fill)
}

// mayWrite looks at what is there.
func (c *clusterWriter) mayWrite() error {
	st, err := os.Lstat(c.target.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.IsDir():
		return errIsDir()
	case c.in.Digest != "" && holds(c.target, c.in, c.o):
		return errWritten
	case c.o.Force || c.holdsEarlier():
		return nil
	}
	return errHoldsElse()
}

// holdsEarlier reports whether the target holds an image of the same name, as one that was built before the recipe was changed.
func (c *clusterWriter) holdsEarlier() bool {
	if c.in.Name == "" {
		return false
	}
	name, ours := writtenBefore(c.target)
	return ours && name == c.in.Name
}

// holds reports whether the target holds the image already, compressed as asked. It reads a few blocks.
func holds(t Target, in clusterfile.Input, o Options) bool {
	if holdsTree(t.Transport) {
		return in.Digest != "" && holdsPlain(t.Path, t.Transport, in, o.Squashfs)
	}
	f, err := source.OpenClusterFile(t.Path)
	if err != nil {
		return false
	}
	defer f.Close()
	return (f.SIF != nil) == (t.Transport == source.SIF) && clusterfile.Holds(f.FS, in, o.Squashfs)
}

// checkSpace says how much is expected, and refuses to begin what cannot be finished. An estimate may be wrong: what it says would
// just not fit is tried all the same, since nothing is lost when it does not.
func (c *clusterWriter) checkSpace() error {
	expected, least := c.size, c.size
	if expected == 0 {
		expected = clusterfile.Estimate(c.in, c.o.Squashfs)
		least = expected / leastShare
	}
	there := host.FileSystemOf(filepath.Dir(c.target.Path))
	if expected == 0 || there.Size == 0 {
		return nil // nothing is known
	}
	progress.Notef(c.ctx, fmt.Sprintf("%s will take about %s; %s are free there", c.target.Path, megabytes(expected), wholeMegabytes(there.Free)))
	switch {
	case there.Free < least:
		return fault.Hint(fmt.Errorf("it will take about %s, and only %s are free there", megabytes(expected), wholeMegabytes(there.Free)),
			"make room, or write to another file system")
	case there.Free < expected:
		progress.Warn(c.ctx, fmt.Sprintf("%s will take about %s, and only %s are free there", c.target.Path, megabytes(expected), wholeMegabytes(there.Free)),
			"if it does not fit, make room, or write to another file system")
	}
	return nil
}

func megabytes(n int64) string { return wholeMegabytes(n + 999_999) }

func wholeMegabytes(n int64) string { return fmt.Sprintf("%d MB", n/1_000_000) }

// writeLocked writes the file without a name, checks it, and gives it its name when it is whole.
func (c *clusterWriter) writeLocked(fill func(*os.File) error) error {
	f, name, err := createBeside(c.target.Path, c.named)
	if err != nil {
		return err
	}
	defer f.Close()
	if name != "" {
		defer os.Remove(name) // does nothing after the rename
	}
	if err := fill(f); err != nil {
		return err
	}
	if err := c.checkAndSync(f); err != nil {
		return err
	}
	if holdsTree(c.target.Transport) && c.in.Digest != "" {
		stampPlain(f, c.target.Transport, c.in, c.o.Squashfs)
	}
	if name == "" {
		if name, err = nameFile(f, c.target.Path); err != nil {
			return err
		}
		defer os.Remove(name)
	}
	if err := os.Rename(name, c.target.Path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(c.target.Path))
}

// checkAndSync reads what was written while the disk takes it.
func (c *clusterWriter) checkAndSync(f *os.File) error {
	synced := make(chan error, 1)
	go func() { synced <- errors.Join(f.Chmod(c.mode()), f.Sync()) }()
	err := c.check(f)
	if err != nil {
		err = fmt.Errorf("what was written is not right: %w", err)
	}
	return errors.Join(err, <-synced)
}

// mode returns the permissions of the file: what the umask leaves, as of any other file. A SIF can be executed, as Apptainer's can.
func (c *clusterWriter) mode() fs.FileMode {
	switch {
	case c.o.Public:
		return 0o644
	case c.target.Transport == source.SIF:
		return 0o777 &^ umask()
	}
	return 0o666 &^ umask()
}

// check reads everything but the contents of what was written.
func (c *clusterWriter) check(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	partition, size, err := clusterfile.Partition(f, st.Size(), c.target.Transport == source.SIF)
	if err != nil {
		return err
	}
	r, err := squashfs.New(partition, size)
	if err != nil {
		return err
	}
	return r.Check(c.ctx)
}

// createBeside makes a file in the directory of path: without a name where the file system can, so that nothing is left of
// a process that is killed, else under a hidden one. The caller holds the lock of path, so what an earlier process left
// there is nobody's.
func createBeside(path string, named bool) (f *os.File, name string, err error) {
	if !named {
		fd, err := unix.Open(filepath.Dir(path), unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), path), "", nil
		}
	}
	name = unfinishedName(path)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, err
}

func unfinishedName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".sconce-unfinished")
}

// nameFile gives a file without a name a hidden one beside path. A name cannot be given over another file's, so renaming
// follows.
func nameFile(f *os.File, path string) (string, error) {
	name := unfinishedName(path)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// Without privileges a descriptor is linked by its name in /proc (open(2), O_TMPFILE).
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return "", &os.LinkError{Op: "linkat", Old: "unnamed file", New: name, Err: err}
	}
	return name, nil
}

// syncDir makes a name last. Some network file systems refuse to sync a directory; their server keeps its own promises.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}
