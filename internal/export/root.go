package export

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// stampAttr carries the stamp of a directory or plain file.
const stampAttr = "user.sconce"

// maxStamp is the longest stamp, in bytes.
const maxStamp = 512

// dirStamp reads the stamp of a root file system or plain file that sconce wrote, "" for anything else.
func dirStamp(dir string) string {
	buf := make([]byte, maxStamp)
	n, err := unix.Lgetxattr(dir, stampAttr, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// dir writes the merged root file system beside the target and exchanges the two.
func (w *writer) dir() error {
	_, err := os.Lstat(w.target.Path)
	exists := err == nil
	if exists {
		if err := mayReplaceDir(w.target.Path, w.force); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(w.target.Path), tempPattern(w.target.Path))
	if err != nil {
		return err
	}
	defer store.RemoveAll(tmp)
	if err := w.fillRoot(tmp); err != nil {
		return err
	}
	// A file system without extended attributes only costs the next export a --force.
	_ = unix.Lsetxattr(tmp, stampAttr, []byte(w.stamp()), 0)
	if !exists {
		return moveDir(tmp, w.target.Path)
	}
	return replaceDir(tmp, w.target.Path)
}

func mayReplaceDir(path string, force bool) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return errIsFile()
	}
	if found, err := os.ReadDir(path); err == nil && len(found) == 0 {
		return nil
	}
	return mayReplace(dirStamp(path), force)
}

// moveDir gives a directory its name unless that is taken. File systems that cannot look and move in one step refuse at
// least to replace a directory that is not empty.
func moveDir(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return os.Rename(from, to)
	}
	return err
}

// replaceDir puts the new directory in the place of the old one, in one step where the file system can.
func replaceDir(fresh, old string) error {
	err := unix.Renameat2(unix.AT_FDCWD, fresh, unix.AT_FDCWD, old, unix.RENAME_EXCHANGE)
	if err == nil || (!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS)) {
		return err // what is under the name fresh now is removed by the caller
	}
	away := fresh + ".old"
	if err := os.Rename(old, away); err != nil {
		return err
	}
	defer store.RemoveAll(away)
	if err := os.Rename(fresh, old); err != nil {
		return errors.Join(err, os.Rename(away, old))
	}
	return nil
}

// rootWriter lays the merged tree down in a directory. Every path is opened below the directory, so that nothing in the
// tree can lead out of it.
type rootWriter struct {
	w      *writer
	tree   *image.Tree
	root   *os.Root
	asRoot bool
	names  map[int]string // inode to the first name of a file with several
	dirs   []*image.Node  // their modes and times are set last: first they must take their content
	left   int            // device nodes left out
}

func (w *writer) fillRoot(dir string) error {
	tree, err := w.im.Tree(w.ctx, w.st)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	r := &rootWriter{w: w, tree: tree, root: root, asRoot: os.Geteuid() == 0, names: map[int]string{}}
	if err := tree.Walk(r.write); err != nil {
		return err
	}
	r.dirs = append([]*image.Node{tree.Root()}, r.dirs...)
	for _, n := range slices.Backward(r.dirs) {
		if err := r.attributes(n); err != nil {
			return err
		}
	}
	if r.left > 0 {
		progress.Warn(w.ctx, fmt.Sprintf("%s: %d device nodes were left out", w.target, r.left), "only root can make them; /dev is the container engine's to fill")
	}
	return nil
}

func (r *rootWriter) write(n *image.Node) error {
	if err := r.w.ctx.Err(); err != nil {
		return err
	}
	if err := r.make(n); err != nil {
		return fmt.Errorf("%s: %w", n.Path, err)
	}
	return nil
}

func (r *rootWriter) make(n *image.Node) error {
	if first, ok := r.names[n.Inode]; ok && n.Links > 1 {
		return r.root.Link(first, n.Path)
	}
	switch n.Type {
	case layer.Dir:
		r.dirs = append(r.dirs, n)
		return r.root.Mkdir(n.Path, 0o700)
	case layer.Regular:
		r.names[n.Inode] = n.Path
		if err := r.file(n); err != nil {
			return err
		}
	case layer.Symlink:
		if err := r.root.Symlink(n.Link, n.Path); err != nil {
			return err
		}
	case layer.Fifo, layer.Char, layer.Block:
		if made, err := r.node(n); !made || err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown type %d", n.Type)
	}
	return r.attributes(n)
}

func (r *rootWriter) file(n *image.Node) error {
	rc, err := r.tree.Open(n)
	if err != nil {
		return err
	}
	defer rc.Close()
	f, err := r.root.OpenFile(n.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	copied, err := io.Copy(f, rc)
	if err = errors.Join(err, f.Close()); err == nil && copied != n.Size {
		err = io.ErrUnexpectedEOF
	}
	r.w.task.Add(copied)
	return err
}

// node makes a pipe or a device in its directory, which is opened below the root.
func (r *rootWriter) node(n *image.Node) (made bool, err error) {
	if n.Type != layer.Fifo && !r.asRoot {
		r.left++
		return false, nil
	}
	dir, err := r.root.Open(path.Dir(n.Path))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	err = unix.Mknodat(int(dir.Fd()), path.Base(n.Path), n.Type.Bits()|0o600, int(unix.Mkdev(n.Major, n.Minor)))
	if errors.Is(err, unix.EPERM) && n.Type != layer.Fifo { // root of a user namespace
		r.left++
		return false, nil
	}
	return err == nil, err
}

// The bits that give a program the rights of its owner or group.
const setIDs = unix.S_ISUID | unix.S_ISGID

// attributes sets owner, mode, extended attributes and time. An ordinary user owns everything, and leaves the set-user-ID
// bits out: a program that was root's would give away the user's own rights.
func (r *rootWriter) attributes(n *image.Node) error {
	mode := n.Mode
	if r.asRoot {
		if err := r.root.Lchown(n.Path, n.UID, n.GID); err != nil {
			return err
		}
	} else {
		mode &^= setIDs
	}
	if err := r.xattrs(n); err != nil { // before the mode, which may forbid it
		return err
	}
	if n.Type != layer.Symlink {
		if err := r.root.Chmod(n.Path, fileMode(mode)); err != nil {
			return err
		}
	}
	return r.time(n)
}

// fileMode translates permission bits of Linux to Go's.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// xattrs sets what this user may set: user's own attributes, and capabilities as root. A file system that has none goes
// without.
func (r *rootWriter) xattrs(n *image.Node) error {
	if len(n.Xattrs) == 0 || (n.Type != layer.Regular && n.Type != layer.Dir) {
		return nil
	}
	f, err := r.root.Open(n.Path)
	if errors.Is(err, fs.ErrPermission) {
		return nil // a file without permissions, of an ordinary user
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for key, value := range n.Xattrs {
		err := unix.Fsetxattr(int(f.Fd()), key, []byte(value), 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("extended attribute %s: %w", key, err)
		}
	}
	return nil
}

func (r *rootWriter) time(n *image.Node) error {
	dir, err := r.root.Open(path.Dir(n.Path))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	at := []unix.Timespec{unix.NsecToTimespec(modTime(n).UnixNano()), unix.NsecToTimespec(modTime(n).UnixNano())}
	return unix.UtimesNanoAt(int(dir.Fd()), path.Base(n.Path), at, unix.AT_SYMLINK_NOFOLLOW)
}

func modTime(n *image.Node) time.Time {
	if n.ModTime.IsZero() {
		return layer.DefaultModTime
	}
	return n.ModTime
}

// rootTar writes the merged root file system as a tar.
func (w *writer) rootTar(f *os.File) error {
	tree, err := w.im.Tree(w.ctx, w.st)
	if err != nil {
		return err
	}
	t, err := newTarFile(f, w.stamp())
	if err != nil {
		return err
	}
	names := map[int]string{}
	err = tree.Walk(func(n *image.Node) error {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.tarNode(t, tree, n, names); err != nil {
			return fmt.Errorf("%s: %w", n.Path, err)
		}
		return nil
	})
	return errors.Join(err, t.end())
}

func (w *writer) tarNode(t *tarFile, tree *image.Tree, n *image.Node, names map[int]string) error {
	h := tarHeader(n)
	if first, ok := names[n.Inode]; ok && n.Links > 1 {
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		return t.header(h)
	}
	if err := t.header(h); err != nil || n.Type != layer.Regular {
		return err
	}
	names[n.Inode] = n.Path
	rc, err := tree.Open(n)
	if err != nil {
		return err
	}
	defer rc.Close()
	copied, err := io.Copy(t.f, rc)
	w.task.Add(copied)
	if err == nil && copied != n.Size {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, t.pad(copied))
}

// tarTypes are the type flags of a tar (POSIX.1-2017, pax, "ustar Interchange Format").
var tarTypes = map[layer.Type]byte{
	layer.Regular: tar.TypeReg, layer.Dir: tar.TypeDir, layer.Symlink: tar.TypeSymlink,
	layer.Char: tar.TypeChar, layer.Block: tar.TypeBlock, layer.Fifo: tar.TypeFifo,
}

// xattrRecord is the prefix of the PAX records that hold extended attributes.
const xattrRecord = "SCHILY.xattr."

func tarHeader(n *image.Node) *tar.Header {
	h := &tar.Header{
		Typeflag: tarTypes[n.Type], Name: n.Path, Mode: int64(n.Mode), Uid: n.UID, Gid: n.GID,
		ModTime: modTime(n).Truncate(time.Second), Format: tar.FormatPAX,
	}
	switch n.Type {
	case layer.Regular:
		h.Size = n.Size
	case layer.Dir:
		h.Name += "/"
	case layer.Symlink:
		h.Linkname = n.Link
	case layer.Char, layer.Block:
		h.Devmajor, h.Devminor = int64(n.Major), int64(n.Minor)
	}
	for key, value := range n.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[xattrRecord+key] = value
	}
	return h
}
