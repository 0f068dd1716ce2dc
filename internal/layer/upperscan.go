package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
)

// upperReader reads an overlay's upper directory. A first pass notes everything in it in the order of [Less]; contents
// are compared and copied afterwards. Every directory is opened from the one above it, and nothing is followed.
type upperReader struct {
	ctx     context.Context
	opts    UpperOptions
	modTime time.Time // of what the step wrote
	root    int       // O_PATH
	uid     int       // of this process
	gid     int
	nodes   []upperNode
	names   int64           // bytes of names held in nodes
	groups  map[inode][]int // names of each file that has several, as indexes into nodes
	lifted  []liftedDir     // directories that were made readable
	value   []byte          // buffer for an extended attribute
	copies  [2][]byte       // buffers for comparing contents
}

// liftedDir is a directory whose permissions wait to be given back.
type liftedDir struct {
	path string
	mode uint32
}

// upperNode is a file of the upper directory, or an order to whatever merges layers.
type upperNode struct {
	Entry
	disk      uint32 // permissions that the file has
	base      *BaseEntry
	inherited bool // owner and permissions are the base's
	chowned   bool // but for the owner
	written   bool // since the step began: it gets the time that all this gets
	unchanged bool // it is in no need of an entry
}

func newUpperReader(ctx context.Context, root int, o UpperOptions) *upperReader {
	return &upperReader{
		ctx: ctx, opts: o, root: root, uid: os.Geteuid(), gid: os.Getegid(), groups: map[inode][]int{}, value: make([]byte, maxXattrBytes),
	}
}

// upperDir is a directory that is being read.
type upperDir struct {
	fd     int
	path   string
	shines bool // what the base has in its place is seen through it
	hides  bool // it says that the base's is not to be seen
	holds  bool // overlayfs was told that xattrs make whiteouts in it

	gid    int
	mode   uint32 // permissions in the layer
	hidden bool   // the step did not see its setgid bit
}

// upperChild is a file of such a directory.
type upperChild struct {
	name string // "" for the order to hide the base's directory
	out  string // its name in the layer
}

// upperAttrs are the extended attributes of a file.
type upperAttrs struct {
	kept     map[string]string // those that belong into an image
	opaque   string
	origin   bool // overlayfs copied it up from a layer below
	whiteout bool
	from     *original // what it was in its image, wherever that was; nil if it lost nothing
}

func (u *upperReader) scanRoot() error {
	var s unix.Stat_t
	if err := unix.Fstat(u.root, &s); err != nil {
		return err
	}
	if err := u.lift(".", s.Mode); err != nil {
		return err
	}
	attrs, err := u.xattrs(fdName(u.root) + "/.")
	if err != nil {
		return err
	}
	base, err := u.find(".", true)
	if err != nil {
		return err
	}
	attrs.origin = true
	n := u.node(upperDir{}, UpperFile{fdName(u.root), ".", &s, base}, attrs)
	if base != nil {
		n.keepTime() // overlayfs makes a new one
		n.unchanged = u.same(&n)
	} else {
		n.unchanged = n.Mode == newRoot && n.UID == 0 && n.GID == 0 && len(n.Xattrs) == 0
	}
	if err := u.append(n); err != nil {
		return err
	}
	fd, err := openDirAt(u.root, ".")
	if err != nil {
		return err
	}
	return u.scan(upperDir{fd: fd, path: ".", shines: true, holds: attrs.opaque == "x"})
}

// newRoot is the mode of the root of an upper directory at first: overlayfs does not copy the base's.
const newRoot = 0o755

// scan notes what lies in a directory, whose file descriptor it closes.
func (u *upperReader) scan(d upperDir) error {
	defer unix.Close(d.fd)
	if u.ctx.Err() != nil {
		return context.Cause(u.ctx)
	}
	children, err := u.children(d)
	if err != nil {
		return fmt.Errorf("read directory %s: %w", quotePath(d.path), err)
	}
	for _, c := range children {
		if c.name == "" {
			err = u.append(whiteout(path.Join(d.path, c.out)))
		} else {
			err = u.child(d, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// children lists a directory, in the order of the names that things have in a layer.
func (u *upperReader) children(d upperDir) ([]upperChild, error) {
	names, err := readNames(d.fd)
	if err != nil {
		return nil, err
	}
	if len(names) > maxEntries {
		return nil, errTooManyEntries
	}
	children := make([]upperChild, 0, len(names)+1)
	for _, name := range names {
		if strings.HasPrefix(name, WhiteoutPrefix) {
			return nil, reservedName(path.Join(d.path, name))
		}
		c := upperChild{name, name}
		isWhiteout, err := u.isWhiteout(d, name)
		if err != nil {
			return nil, err
		}
		if isWhiteout {
			c.out = WhiteoutPrefix + name
		}
		children = append(children, c)
	}
	if d.hides {
		children = append(children, upperChild{"", WhiteoutOpaque})
	}
	slices.SortFunc(children, func(a, b upperChild) int { return cmp.Compare(a.out, b.out) })
	return children, nil
}

func readNames(dir int) ([]string, error) {
	fd, err := openDirAt(dir, ".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	return f.Readdirnames(-1)
}

func reservedName(p string) error {
	return fault.Hint(fmt.Errorf("%s cannot be in an image: names that start with %q mean that a file was removed", quotePath(p), WhiteoutPrefix),
		"rename or remove it at the end of the step")
}

// isWhiteout reports whether a file says that there is none: a whiteout, or a socket, which means nothing without the process
// that listens.
func (u *upperReader) isWhiteout(d upperDir, name string) (bool, error) {
	var s unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, &os.PathError{Op: "lstat", Path: name, Err: err}
	}
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return true, nil
	case unix.S_IFCHR:
		return s.Rdev == 0, nil
	case unix.S_IFREG:
		if d.holds && s.Size == 0 {
			attrs, err := u.childXattrs(d.fd, name, s.Mode)
			return attrs.whiteout, err
		}
	}
	return false, nil
}

func (u *upperReader) child(d upperDir, c upperChild) error {
	p := path.Join(d.path, c.name)
	base, err := u.find(p, d.shines)
	if err != nil {
		return fmt.Errorf("look up %s: %w", quotePath(p), err)
	}
	if c.out != c.name {
		if !d.shines || u.opts.Base != nil && base == nil {
			return nil // there is nothing to hide
		}
		return u.append(whiteout(path.Join(d.path, c.out)))
	}
	var s unix.Stat_t
	if err := unix.Fstatat(d.fd, c.name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "lstat", Path: p, Err: err}
	}
	attrs, err := u.childXattrs(d.fd, c.name, s.Mode)
	if err != nil {
		return err
	}
	n := u.node(d, UpperFile{fdName(u.root), p, &s, base}, attrs)
	switch {
	case n.Type == Dir:
		return u.subdir(d, s.Mode, attrs.opaque, n)
	case n.Type == Symlink:
		if n.Link, err = readlink(d.fd, c.name); err != nil {
			return err
		}
	case n.Type == Regular && s.Nlink > 1:
		id := inode{s.Dev, s.Ino}
		u.groups[id] = append(u.groups[id], len(u.nodes))
	}
	return u.append(n)
}

func whiteout(p string) upperNode { return upperNode{Entry: Entry{Path: p, Mode: 0o600}} }

func (u *upperReader) subdir(d upperDir, mode uint32, opaque string, n upperNode) error {
	// Whether there is a directory in the base to look through, or to hide.
	below := d.shines && (u.opts.Base == nil || n.base != nil && n.base.Type == Dir)
	sub := upperDir{path: n.Path, holds: opaque == "x", gid: n.GID, mode: n.Mode, hidden: mode&unix.S_ISGID == 0}
	sub.hides = below && opaque == "y"
	sub.shines = below && !sub.hides
	if sub.shines && n.base != nil {
		if u.opts.Started.IsZero() || n.base.Mode&unix.S_ISVTX != 0 { // where programs put what they need for a moment
			n.keepTime()
		}
		n.unchanged = u.same(&n)
		if n.unchanged {
			n.Entry = n.base.Entry
		}
	}
	if err := u.append(n); err != nil {
		return err
	}
	if err := u.lift(n.Path, mode); err != nil {
		return err
	}
	var err error
	if sub.fd, err = openDirAt(d.fd, path.Base(n.Path)); err != nil {
		return &os.PathError{Op: "open", Path: n.Path, Err: err}
	}
	return u.scan(sub)
}

func (u *upperReader) append(n upperNode) error {
	if err := n.validate(); err != nil {
		return fmt.Errorf("%s: %w", quotePath(n.Path), err)
	}
	if u.names += n.nameBytes(); len(u.nodes) >= maxEntries || u.names > maxNameBytes {
		return errTooManyEntries
	}
	u.nodes = append(u.nodes, n)
	return nil
}

// find returns what the base has at p, nil for nothing.
func (u *upperReader) find(p string, shines bool) (*BaseEntry, error) {
	if u.opts.Base == nil || !shines {
		return nil, nil
	}
	e, ok, err := u.opts.Base.Find(p)
	if err != nil || !ok {
		return nil, err
	}
	e.Xattrs = imageXattrs(e.Xattrs)
	return &e, nil
}

func imageXattrs(all map[string]string) map[string]string {
	for k := range all {
		if !inImage(k) {
			kept := maps.Clone(all)
			maps.DeleteFunc(kept, func(k, _ string) bool { return !inImage(k) })
			return kept
		}
	}
	return all
}

// node makes the node of a file. The target of a symlink is still missing.
func (u *upperReader) node(d upperDir, f UpperFile, attrs upperAttrs) upperNode {
	s, base := f.Stat, f.Below
	n := upperNode{Entry: Entry{Path: f.Path, Xattrs: attrs.kept}, disk: s.Mode & 0o7777, base: base}
	u.date(&n, s)
	o := Ownership{UID: int(s.Uid), GID: int(s.Gid), Mode: s.Mode, Rdev: s.Rdev, Capability: attrs.kept[capability]}
	if u.uid != 0 && o.UID == u.uid {
		o.UID = 0
	}
	if u.uid != 0 && o.GID == u.gid {
		o.GID = 0
	}
	switch {
	case u.opts.Unpacked.Owners: // the file system says all of it
	case attrs.from != nil:
		n.inherited = true
		o = attrs.from.restore(o, s)
	case copiedUp(s, attrs, base):
		n.inherited = true
		o = u.inherit(o, s, base)
	default:
		o = d.bequeath(o)
	}
	if u.opts.Owner != nil {
		given := u.opts.Owner(f, o)
		if n.chowned = given.UID != o.UID || given.GID != o.GID; n.chowned && given.Mode == o.Mode && given.Capability == o.Capability {
			// chown(2) takes these away; what is there has been given after it.
			given.Mode = o.Mode&^setIDs | s.Mode&setIDs
			given.Capability = attrs.kept[capability]
		}
		o = given
	}
	n.own(o)
	if n.Type == Regular {
		n.Size = s.Size
	}
	return n
}

// own gives a node its ownership, and the type that goes with it.
func (n *upperNode) own(o Ownership) {
	n.UID, n.GID, n.Mode, n.Type = o.UID, o.GID, o.Mode&0o7777, typeOf(o.Mode)
	switch n.Type {
	case Char, Block:
		n.Major, n.Minor = unix.Major(o.Rdev), unix.Minor(o.Rdev)
	case Symlink:
		n.Mode = 0o777
	}
	if o.Capability != n.Xattrs[capability] {
		n.setCapability(o.Capability)
	}
}

func (n *upperNode) setCapability(value string) {
	n.Xattrs = maps.Clone(n.Xattrs)
	delete(n.Xattrs, capability)
	if value == "" {
		return
	}
	if n.Xattrs == nil {
		n.Xattrs = map[string]string{}
	}
	n.Xattrs[capability] = value
}

// copiedUp reports whether a file is the base's, changed perhaps, and not a new one in its place. overlayfs marks what it
// copies up, but not files with several names, and cannot mark what is neither a file nor a directory.
func copiedUp(s *unix.Stat_t, attrs upperAttrs, base *BaseEntry) bool {
	if base == nil || base.Type != typeOf(s.Mode) {
		return false
	}
	return attrs.origin || base.Type == Regular && base.Links > 1 || base.Type != Regular && base.Type != Dir
}

// inherit gives back what unpacking without owners took from a file that could not take it with it.
func (u *upperReader) inherit(o Ownership, s *unix.Stat_t, base *BaseEntry) Ownership {
	if o.UID != 0 || o.GID != 0 {
		return o
	}
	if base.Path == "." && o.Mode&0o7777 == newRoot {
		o.Mode = o.Mode&unix.S_IFMT | base.Mode
	}
	from := original{base.UID, base.GID, base.Mode, base.ModTime.Unix(), ""}
	return from.restore(o, s)
}

// bequeath gives a new file what a directory with the setgid bit hands on (inode(7), "S_ISGID"). The kernel did so only
// where it knew of the bit.
func (d upperDir) bequeath(o Ownership) Ownership {
	if d.mode&unix.S_ISGID == 0 {
		return o
	}
	if o.GID == 0 {
		o.GID = d.gid
	}
	if o.Mode&unix.S_IFMT == unix.S_IFDIR && d.hidden {
		o.Mode |= unix.S_ISGID
	}
	return o
}

// date gives a node the time of its file, or notes that it was written.
func (u *upperReader) date(n *upperNode, s *unix.Stat_t) {
	t := unixTime(s.Mtim).Truncate(time.Second)
	switch {
	case u.opts.Started.IsZero():
		n.ModTime = clamp(t, u.modTime)
	case n.base != nil && t.Equal(shownTime(n.base.Entry)):
		n.keepTime()
	case t.Before(u.opts.Started.Truncate(time.Second)):
		n.ModTime = t
		if !t.Before(u.modTime) {
			u.modTime = t.Add(time.Second)
		}
	default:
		n.written = true
	}
}

// keepTime gives a node the time that the base has.
func (n *upperNode) keepTime() { n.ModTime, n.written = n.base.ModTime, false }

// dateWritten gives what the step wrote its time, which is known when everything has been seen.
func (u *upperReader) dateWritten() {
	for i := range u.nodes {
		if u.nodes[i].written {
			u.nodes[i].ModTime = u.modTime
		}
	}
}

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(buf[:n]), nil
}

// childXattrs reads the attributes of a file, which takes the permission to read it.
func (u *upperReader) childXattrs(dir int, name string, mode uint32) (upperAttrs, error) {
	p := fdName(dir) + "/" + name
	attrs, err := u.xattrs(p)
	if !errors.Is(err, unix.EACCES) || mode&unix.S_IFMT == unix.S_IFLNK {
		return attrs, err
	}
	if err := unix.Fchmodat(dir, name, mode&0o7777|0o400, 0); err != nil {
		return attrs, &os.PathError{Op: "chmod", Path: name, Err: err}
	}
	attrs, err = u.xattrs(p)
	return attrs, errors.Join(err, unix.Fchmodat(dir, name, mode&0o7777, 0))
}

func fdName(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// The names under which overlayfs keeps its own attributes, without and with its option userxattr.
var overlayNames = []string{"trusted.overlay.", overlayXattrs}

func (u *upperReader) xattrs(p string) (a upperAttrs, err error) {
	names, err := listXattrs(p)
	if err != nil {
		return a, err
	}
	for _, name := range names {
		own := overlayName(name)
		if own == "" && !inImage(name) && name != originalXattr {
			continue
		}
		n, err := unix.Lgetxattr(p, name, u.value)
		if err != nil {
			return a, &os.PathError{Op: "getxattr " + name, Path: path.Base(p), Err: err}
		}
		value := string(u.value[:n])
		switch own {
		case "":
			if name == originalXattr {
				if a.from, err = parseOriginal(value); err != nil {
					return a, fmt.Errorf("%s: %w", quotePath(path.Base(p)), err)
				}
				continue
			}
			if a.kept == nil {
				a.kept = map[string]string{}
			}
			a.kept[name] = u.imageValue(name, value)
		case "opaque":
			a.opaque = value
		case "origin":
			a.origin = true
		case "whiteout":
			a.whiteout = true
		case "redirect", "metacopy":
			return a, fmt.Errorf("%s has the attribute %s: the overlay was mounted with the option redirect_dir or metacopy, and its upper directory is no layer",
				quotePath(path.Base(p)), name)
		}
	}
	return a, nil
}

// overlayName returns the name of one of overlayfs's own attributes, "" for another one.
func overlayName(name string) string {
	for _, prefix := range overlayNames {
		if own, ok := strings.CutPrefix(name, prefix); ok {
			return own
		}
	}
	return ""
}

// imageValue returns an attribute as it is on a machine where root is root. Capabilities given by the root of a user
// namespace name that user (capabilities(7), "File capability extended attribute versioning").
func (u *upperReader) imageValue(name, value string) string {
	const (
		revision2, revision3 = 2, 3
		size2, size3         = 20, 24
	)
	if name != capability || len(value) != size3 || value[3] != revision3 {
		return value
	}
	root := int(value[20]) | int(value[21])<<8 | int(value[22])<<16 | int(value[23])<<24
	if root != u.uid {
		return value
	}
	return value[:3] + string(rune(revision2)) + value[4:size2]
}

// lift makes a directory readable for its owner.
func (u *upperReader) lift(p string, mode uint32) error {
	const needed = 0o500
	if u.uid == 0 || mode&needed == needed {
		return nil
	}
	if err := u.chmod(p, mode&0o7777|needed); err != nil {
		return err
	}
	u.lifted = append(u.lifted, liftedDir{p, mode & 0o7777})
	return nil
}

// restore gives directories their permissions back, the deepest first.
func (u *upperReader) restore() {
	for _, d := range slices.Backward(u.lifted) {
		_ = u.chmod(d.path, d.mode) // it could be changed before; nobody needs the directory but to remove it
	}
}

func (u *upperReader) chmod(p string, mode uint32) error {
	if p == "." {
		return unix.Chmod(fdName(u.root), mode)
	}
	fd, err := u.open(p, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Chmod(fdName(fd), mode); err != nil {
		return &os.PathError{Op: "chmod", Path: p, Err: err}
	}
	return nil
}

// open opens a file of the upper directory.
func (u *upperReader) open(p string, flags uint64) (int, error) {
	how := &unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := unix.Openat2(u.root, p, how)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return -1, &os.PathError{Op: "open", Path: p, Err: err}
		}
	}
}
