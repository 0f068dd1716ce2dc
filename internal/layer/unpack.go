package layer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

// UnpackOptions says how a layer is unpacked.
type UnpackOptions struct {
	// Owners gives everything its owner, its capabilities and makes devices, which needs root. Without it these are left out,
	// directories get at least u+rwx and files u+r; what is taken from a file that way goes with it, see [Original].
	//
	// Either way files keep the setuid bit.
	Owners bool
	// SetID, unless nil, is called before a file gets the setuid or setgid bit: the directory that dir is in must be closed to
	// others then.
	SetID func() error
}

// Unpack lays a layer down in dir, an empty directory, as overlay wants a lower directory that is mounted with the option
// userxattr: a whiteout is a character device 0:0 and an opaque directory has the attribute user.overlay.opaque (Linux
// Documentation/filesystems/overlayfs.rst). The layer must be what d.DiffID, unless that is empty, promises; after an error
// what is in dir is of no use.
//
// No symlink is ever followed: every directory is opened from the one above it, with O_NOFOLLOW. An entry below something
// that is not a directory turns that into one, as a layer of its own would.
func Unpack(ctx context.Context, st *store.Store, d Descriptor, dir string, o UnpackOptions) error {
	if err := unpack(ctx, st, d, dir, o); err != nil {
		return fmt.Errorf("unpack layer %s: %w", d.Digest.Short(), err)
	}
	return nil
}

func unpack(ctx context.Context, st *store.Store, d Descriptor, dir string, o UnpackOptions) error {
	f, err := st.OpenBlob(d.Digest)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	tar, err := decompressAhead(ctx, f, hash)
	if err != nil {
		return err
	}
	defer tar.Close()
	if err := unpackTar(tar, dir, o); err != nil {
		return err
	}
	if err := tar.Close(); err != nil {
		return err
	}
	if got := store.SumDigest(hash); d.DiffID != "" && got != d.DiffID {
		return &store.MismatchError{Want: d.DiffID, Got: got, Size: d.RawSize}
	}
	return nil
}

func unpackTar(r io.Reader, dir string, o UnpackOptions) error {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	u := &unpacker{opts: o, open: []openDir{{".", root}}, dirs: map[string]Entry{}, opaque: map[string]bool{}, buf: make([]byte, 256<<10)}
	defer u.closeTo(0)
	u.dirs["."] = impliedDir(".")
	tr := newTarReader(r)
	if err := tr.each(func(e IndexEntry) error { return u.entry(e, tr) }); err != nil {
		return err
	}
	if _, err := tr.drain(); err != nil {
		return err
	}
	return u.finish()
}

// unpacker lays entries down.
type unpacker struct {
	opts      UnpackOptions
	open      []openDir        // the root, and the directories that lead to the one in use
	dirs      map[string]Entry // what directories get at the end: until then they must be writable, and their time changes
	whiteouts []string
	opaque    map[string]bool // directories that hide what layers below have in their place
	buf       []byte
}

type openDir struct {
	path string
	fd   int
}

func impliedDir(p string) Entry {
	return Entry{Path: p, Type: Dir, Mode: 0o755, ModTime: DefaultModTime}
}

func (u *unpacker) entry(e IndexEntry, content io.Reader) error {
	if strings.HasPrefix(path.Base(e.Path), WhiteoutPrefix) {
		u.whiteouts = append(u.whiteouts, e.Path)
		return nil
	}
	if e.Path == "." {
		u.dirs["."] = e.Entry
		return nil
	}
	dir, err := u.enter(path.Dir(e.Path), replace)
	if err != nil {
		return err
	}
	name := path.Base(e.Path)
	switch e.Type {
	case Dir:
		u.dirs[e.Path] = e.Entry
		return u.makeDir(dir, e.Path)
	case Regular:
		return u.file(dir, name, e, content)
	case HardLink:
		return u.hardLink(dir, name, e.Entry)
	case Symlink:
		err = u.replacing(dir, name, func() error { return unix.Symlinkat(e.Link, dir, name) })
	case Fifo:
		err = u.replacing(dir, name, func() error { return unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0) })
	case Char, Block:
		if !u.opts.Unpacks(e.Entry) {
			return nil
		}
		kind := uint32(unix.S_IFCHR)
		if e.Type == Block {
			kind = unix.S_IFBLK
		}
		err = u.replacing(dir, name, func() error {
			return unix.Mknodat(dir, name, kind|0o600, int(unix.Mkdev(e.Major, e.Minor)))
		})
		if errors.Is(err, unix.EPERM) { // root of a user namespace may not
			return nil
		}
	}
	if err != nil {
		return err
	}
	return u.attributes(dir, name, e.Entry)
}

// missing says what enter does about a directory that is not there.
type missing int

const (
	fail    missing = iota // nothing; the error is ENOENT, ENOTDIR or ELOOP
	create                 // makes it where nothing is
	replace                // makes it, in place of whatever is there
)

// enter returns the open directory p.
func (u *unpacker) enter(p string, m missing) (int, error) {
	keep := len(u.open)
	for keep > 1 && u.open[keep-1].path != p && !isBelow(p, u.open[keep-1].path) {
		keep--
	}
	u.closeTo(keep)
	at := u.open[keep-1]
	if at.path == p {
		return at.fd, nil
	}
	rest := p
	if at.path != "." {
		rest = p[len(at.path)+1:]
	}
	for name := range strings.SplitSeq(rest, "/") {
		sub := path.Join(at.path, name)
		fd, err := openDirAt(at.fd, name)
		if m == replace && err != nil || m == create && errors.Is(err, unix.ENOENT) {
			u.dirs[sub] = impliedDir(sub)
			if err = u.makeDir(at.fd, sub); err == nil {
				fd, err = openDirAt(at.fd, name)
			}
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: sub, Err: err}
		}
		at = openDir{sub, fd}
		u.open = append(u.open, at)
	}
	return at.fd, nil
}

// notThere reports whether err says that a directory is not there, or something else is.
func notThere(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func (u *unpacker) closeTo(n int) {
	for _, d := range u.open[n:] {
		unix.Close(d.fd)
	}
	u.open = u.open[:n]
}

func openDirAt(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// makeDir makes the directory p, unless there is one, in that above it. A file in its place goes, and has hidden what layers
// below have there.
func (u *unpacker) makeDir(above int, p string) error {
	name := path.Base(p)
	err := unix.Mkdirat(above, name, 0o700)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := openDirAt(above, name)
	if err == nil || !notThere(err) {
		unix.Close(fd)
		return err
	}
	if err := errors.Join(unix.Unlinkat(above, name, 0), unix.Mkdirat(above, name, 0o700)); err != nil {
		return err
	}
	if fd, err = openDirAt(above, name); err != nil {
		return err
	}
	defer unix.Close(fd)
	u.opaque[p] = true
	return setOpaque(fd)
}

// replacing does make, which makes name in dir, and does it again without what was there before.
func (u *unpacker) replacing(dir int, name string, make func() error) error {
	err := make()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := removeAllAt(dir, name); err != nil {
		return err
	}
	return make()
}

// removeAllAt removes name from dir with everything below it.
func removeAllAt(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	fd, err := openDirAt(dir, name)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeAllAt(fd, n); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

func (u *unpacker) file(dir int, name string, e IndexEntry, content io.Reader) error {
	fd := -1
	err := u.replacing(dir, name, func() (err error) {
		fd, err = unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	if e.Sparse > 0 {
		err = u.writeHoles(fd, content, e.Size)
	} else {
		err = u.write(fd, content, e.Size)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	return u.attributes(dir, name, e.Entry)
}

func (u *unpacker) write(fd int, content io.Reader, size int64) error {
	for size > 0 {
		n, err := content.Read(u.buf)
		size -= int64(n)
		if err := writeAll(fd, u.buf[:n]); err != nil {
			return err
		}
		if err != nil && size > 0 {
			return unexpected(err)
		}
	}
	return nil
}

// writeHoles writes a file that has large holes without taking the room for them.
func (u *unpacker) writeHoles(fd int, content io.Reader, size int64) error {
	r := bufio.NewReader(content)
	zeros := make([]byte, holeSize)
	for at := int64(0); at < size; {
		piece := u.buf[:min(holeSize, size-at)]
		if _, err := io.ReadFull(r, piece); err != nil {
			return unexpected(err)
		}
		if !bytes.Equal(piece, zeros[:len(piece)]) {
			if _, err := unix.Seek(fd, at, io.SeekStart); err != nil {
				return err
			}
			if err := writeAll(fd, piece); err != nil {
				return err
			}
		}
		at += int64(len(piece))
	}
	return unix.Ftruncate(fd, size)
}

// holeSize is the block size of most file systems, in bytes.
const holeSize = 4096

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (u *unpacker) hardLink(dir int, name string, e Entry) error {
	from, err := u.openPath(path.Dir(e.Link))
	if err != nil {
		return fmt.Errorf("it is a hard link to %s: %w", quotePath(e.Link), err)
	}
	defer unix.Close(from)
	target := path.Base(e.Link)
	var s unix.Stat_t
	if err := unix.Fstatat(from, target, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("it is a hard link to %s: %w", quotePath(e.Link), err)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("it is a hard link to %s, which is not a regular file", quotePath(e.Link))
	}
	if e.Path == e.Link {
		return nil
	}
	return u.replacing(dir, name, func() error { return unix.Linkat(from, target, dir, name, 0) })
}

// openPath opens a directory that is there.
func (u *unpacker) openPath(p string) (int, error) {
	fd, err := openDirAt(u.open[0].fd, ".")
	if p == "." {
		return fd, err
	}
	for name := range strings.SplitSeq(p, "/") {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = openDirAt(fd, name)
		unix.Close(fd)
		fd = next
	}
	return fd, err
}

// attributes gives name its owner, permissions, extended attributes and time, in an order in which none undoes another.
func (u *unpacker) attributes(dir int, name string, e Entry) error {
	if u.opts.Owners {
		if err := unix.Fchownat(dir, name, e.UID, e.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("change owner: %w", err)
		}
	}
	when := shownTime(e)
	if err := u.permit(dir, name, e, when); err != nil {
		return err
	}
	t, err := unix.TimeToTimespec(when)
	if err != nil {
		return fmt.Errorf("change time: %w", err)
	}
	if err := unix.UtimesNanoAt(dir, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("change time: %w", err)
	}
	return nil
}

// permit gives name its extended attributes and permissions, in this order: who may not write to a file may not give it
// attributes of users.
func (u *unpacker) permit(dir int, name string, e Entry, when time.Time) error {
	if err := setXattrs(dir, name, u.xattrs(e, when)); err != nil {
		return err
	}
	if e.Type == Symlink {
		return nil
	}
	if e.Type == Regular && e.Mode&setIDs != 0 && u.opts.SetID != nil {
		if err := u.opts.SetID(); err != nil {
			return err
		}
	}
	if err := unix.Fchmodat(dir, name, u.opts.Shown(e).Mode, 0); err != nil {
		return fmt.Errorf("change mode: %w", err)
	}
	return nil
}

func shownTime(e Entry) time.Time {
	if e.ModTime.IsZero() {
		return DefaultModTime
	}
	return e.ModTime.Truncate(time.Second)
}

// Unpacks reports whether an entry, not a whiteout, is unpacked: devices are not without owners, nor is 0:0, which overlay would
// take for a whiteout.
func (o UnpackOptions) Unpacks(e Entry) bool {
	switch e.Type {
	case Char:
		return o.Owners && (e.Major != 0 || e.Minor != 0)
	case Block:
		return o.Owners
	default:
		return true
	}
}

// Shown returns an entry with the owner, the permissions and the time that it gets when it is unpacked.
func (o UnpackOptions) Shown(e Entry) Entry {
	e.ModTime = shownTime(e)
	switch {
	case e.Type == Symlink:
		e.Mode = 0o777
	case !o.Owners:
		e.Mode = shownMode(e)
	}
	if !o.Owners {
		e.UID, e.GID = 0, 0
	}
	return e
}

// ShownXattrs returns the extended attributes that an entry gets when it is unpacked, without what is kept for [Original].
func (o UnpackOptions) ShownXattrs(e Entry) map[string]string {
	if e.Type != Regular && e.Type != Dir {
		return nil
	}
	given := make(map[string]string, len(e.Xattrs))
	for k, v := range e.Xattrs {
		if inImage(k) && (o.Owners || k != capability) {
			given[k] = v
		}
	}
	return given
}

// xattrs returns the extended attributes that e gets.
func (u *unpacker) xattrs(e Entry, when time.Time) map[string]string {
	if e.Type != Regular && e.Type != Dir {
		return nil
	}
	var from *original
	if !u.opts.Owners {
		from = originalOf(e, when)
	}
	if len(e.Xattrs) == 0 && from == nil {
		return nil
	}
	given := u.opts.ShownXattrs(e)
	if from != nil {
		given[originalXattr] = from.String()
	}
	return given
}

func setXattrs(dir int, name string, given map[string]string) error {
	if len(given) == 0 {
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, k := range slices.Sorted(maps.Keys(given)) {
		err := unix.Fsetxattr(fd, k, []byte(given[k]), 0)
		// The file works without user.* attributes, which many file systems do not keep.
		if err != nil && (k == capability || !errors.Is(err, unix.ENOTSUP)) {
			return fmt.Errorf("set %s: %w", k, err)
		}
	}
	return nil
}

// finish does what must come after everything else: whiteouts, which are void where the layer itself has the name, and the
// attributes of directories, the deepest first.
func (u *unpacker) finish() error {
	for _, p := range u.whiteouts {
		dir, err := u.makeOpaque(p)
		if err != nil {
			return fmt.Errorf("whiteout %s: %w", quotePath(p), err)
		}
		u.opaque[dir] = dir != ""
	}
	for _, p := range u.whiteouts {
		// In a directory that hides everything below it a whiteout has nothing to do, and overlay would list it as a name.
		if u.opaque[path.Dir(p)] || slices.ContainsFunc(Parents(p), func(dir string) bool { return u.opaque[dir] }) {
			continue
		}
		if err := u.whiteout(p); err != nil {
			return fmt.Errorf("whiteout %s: %w", quotePath(p), err)
		}
	}
	return u.settleDirs()
}

func (u *unpacker) settleDirs() error {
	paths := make([]string, 0, len(u.dirs))
	for p := range u.dirs {
		paths = append(paths, p)
	}
	slices.SortFunc(paths, func(a, b string) int {
		if Less(b, a) {
			return -1
		}
		return 1
	})
	for _, p := range paths {
		if err := u.settle(u.dirs[p]); err != nil {
			return fmt.Errorf("directory %s: %w", quotePath(p), err)
		}
	}
	return nil
}

// settle gives a directory its attributes, if it is still one.
func (u *unpacker) settle(e Entry) error {
	dir, err := u.enter(path.Dir(e.Path), fail)
	if notThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	name := path.Base(e.Path)
	var s unix.Stat_t
	if err := unix.Fstatat(dir, name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil || s.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil //nolint:nilerr // something else has taken its place
	}
	return u.attributes(dir, name, e)
}

// makeOpaque returns the directory that the whiteout p makes opaque, or "": the one it stands in, or one that the layer brings
// in place of what p hides.
func (u *unpacker) makeOpaque(p string) (string, error) {
	opaque, absent := path.Dir(p), create
	if path.Base(p) != WhiteoutOpaque {
		opaque, absent = WhitesOut(p), fail
	}
	if opaque == "" {
		return "", nil
	}
	fd, err := u.enter(opaque, absent)
	if notThere(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return opaque, setOpaque(fd)
}

func (u *unpacker) whiteout(p string) error {
	hidden := WhitesOut(p)
	if hidden == "" {
		return nil
	}
	dir, err := u.enter(path.Dir(p), create)
	if notThere(err) {
		return nil // nothing can lie below what is no directory
	}
	if err != nil {
		return err
	}
	err = unix.Mknodat(dir, path.Base(hidden), unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil // what the layer has itself hides what is below it
	}
	if errors.Is(err, unix.EPERM) {
		return fault.Hint(err, "the kernel lets users make whiteouts since Linux 5.8; the store's file system must allow it too")
	}
	return err
}

// setOpaque makes a directory hide what layers below have in its place.
func setOpaque(fd int) error {
	err := unix.Fsetxattr(fd, overlayXattrs+"opaque", []byte("y"), 0)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("set %sopaque: %w", overlayXattrs, err)
	if errors.Is(err, unix.ENOTSUP) {
		return fault.Hint(err, "the store's file system keeps no user extended attributes; set SCONCE_STORE to a directory on one that does (ext4, xfs, btrfs; tmpfs since Linux 6.6)")
	}
	return err
}
