package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
)

// Adopt turns dir, the upper directory of which [FromUpper] has made the layer d and which nobody has changed since, into what
// [Unpack] would make of d. It changes attributes and removes what is not in the layer, and reads no content. An error says
// that dir is not that directory, or has what only unpacking can do; then it is of no use any more.
func Adopt(ctx context.Context, st *store.Store, d Descriptor, dir string, o UnpackOptions) error {
	ix, err := OpenIndex(ctx, st, d)
	if err != nil {
		return err
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	a := newAdopter(ctx, ix.Entries, o)
	if err := a.adopt(root); err != nil {
		return fmt.Errorf("take over the files of layer %s: %w", d.Digest.Short(), err)
	}
	return nil
}

// adopter walks an upper directory.
type adopter struct {
	unpacker // for the attributes that files get

	ctx       context.Context
	uid       int
	wanted    map[string]*Entry
	whiteouts map[string]bool
	opaque    map[string]bool
	found     int
	numbers   map[string]uint64 // inodes of files with several names, by the name that is not a link
	links     map[string]uint64 // inodes of the others
}

func newAdopter(ctx context.Context, entries []IndexEntry, o UnpackOptions) *adopter {
	a := &adopter{
		unpacker: unpacker{opts: o}, ctx: ctx, uid: os.Geteuid(), wanted: make(map[string]*Entry, len(entries)),
		whiteouts: map[string]bool{}, opaque: map[string]bool{}, numbers: map[string]uint64{}, links: map[string]uint64{},
	}
	for i := range entries {
		e := &entries[i].Entry
		switch hidden := WhitesOut(e.Path); {
		case hidden != "":
			a.whiteouts[hidden] = true
		case path.Base(e.Path) == WhiteoutOpaque:
			a.opaque[path.Dir(e.Path)] = true
		case (e.Type == Char || e.Type == Block) && !o.Owners: // is not unpacked
		default:
			a.wanted[e.Path] = e
		}
	}
	return a
}

var errNotAsLayer = errors.New("it is not as in the layer")

func (a *adopter) adopt(root int) error {
	e := impliedDir(".")
	if given := a.wanted["."]; given != nil {
		e = *given
		delete(a.wanted, ".")
	}
	if err := a.dir(root, ".", e); err != nil {
		return err
	}
	for p, number := range a.links {
		if a.numbers[a.wanted[p].Link] != number {
			return fmt.Errorf("%s: %w", quotePath(p), errNotAsLayer)
		}
	}
	if a.found != len(a.wanted) || len(a.whiteouts) > 0 {
		return errNotAsLayer // something is missing
	}
	return nil
}

// dir adopts the directory p, which above leads to: "." is above itself.
func (a *adopter) dir(above int, p string, e Entry) error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	name := path.Base(p)
	fd, names, err := openListed(above, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, child := range names {
		if err := a.child(fd, path.Join(p, child)); err != nil {
			return fmt.Errorf("%s: %w", quotePath(path.Join(p, child)), err)
		}
	}
	if a.opaque[p] {
		if err := setOpaque(fd); err != nil {
			return err
		}
	}
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return err
	}
	return a.settleOne(above, name, &s, e)
}

// openUp lets the owner list and change a directory.
func openUp(above int, name string) error {
	var s unix.Stat_t
	if err := unix.Fstatat(above, name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil || s.Mode&0o700 == 0o700 {
		return err
	}
	return unix.Fchmodat(above, name, s.Mode&0o7777|0o700, 0)
}

func (a *adopter) child(dir int, p string) error {
	name := path.Base(p)
	var s unix.Stat_t
	if err := unix.Fstatat(dir, name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if !a.opts.Owners && int(s.Uid) != a.uid {
		return errNotAsLayer // somebody else's, whom the caller is not
	}
	if a.whiteouts[p] {
		delete(a.whiteouts, p)
		if s.Mode&unix.S_IFMT == unix.S_IFCHR && s.Rdev == 0 {
			return nil
		}
		return errors.Join(a.remove(dir, p), unix.Mknodat(dir, name, unix.S_IFCHR, 0)) // a socket hides what the base has
	}
	e := a.wanted[p]
	if e == nil {
		return a.remove(dir, p)
	}
	a.found++
	if e.Type == HardLink {
		a.links[p] = s.Ino
		return nil
	}
	if typeOf(s.Mode) != e.Type || e.Type == Regular && s.Size != e.Size {
		return errNotAsLayer
	}
	switch e.Type {
	case Dir:
		return a.dir(dir, p, *e)
	case Symlink:
		if link, err := readlink(dir, name); err != nil || link != e.Link {
			return errors.Join(err, errNotAsLayer)
		}
	case Char, Block:
		if s.Rdev != unix.Mkdev(e.Major, e.Minor) {
			return errNotAsLayer
		}
	case Regular:
		if s.Nlink > 1 {
			a.numbers[p] = s.Ino
		}
	}
	return a.settleOne(dir, name, &s, *e)
}

// remove removes what the layer has not, with directories that their owner may not look into.
func (a *adopter) remove(dir int, p string) error {
	name := path.Base(p)
	err := unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	fd, names, err := openListed(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, n := range names {
		if err := a.remove(fd, path.Join(p, n)); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// openListed opens a directory, one that its owner may not look into as well, and lists what it holds.
func openListed(above int, name string) (fd int, names []string, err error) {
	if err := openUp(above, name); err != nil {
		return -1, nil, err
	}
	if fd, err = openDirAt(above, name); err != nil {
		return -1, nil, err
	}
	if names, err = readNames(fd); err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, names, nil
}

// settleOne gives a file the attributes that unpacking gives it, and touches it only when it has others.
func (a *adopter) settleOne(dir int, name string, s *unix.Stat_t, e Entry) error {
	when := e.ModTime
	if when.IsZero() {
		when = DefaultModTime
	}
	when = when.Truncate(time.Second)
	stray, lacking, err := a.compareXattrs(dir, name, s, e, when)
	if err != nil {
		return err
	}
	same := !stray && !lacking && s.Mtim.Nano() == when.UnixNano()
	if e.Type != Symlink {
		same = same && s.Mode&0o7777 == a.opts.Shown(e).Mode
	}
	if a.opts.Owners {
		same = same && int(s.Uid) == e.UID && int(s.Gid) == e.GID
	}
	if same {
		return nil
	}
	if lacking {
		if err := makeWritable(dir, name, s); err != nil {
			return err
		}
	}
	return a.attributes(dir, name, e)
}

// makeWritable lets the owner of a file change its extended attributes.
func makeWritable(dir int, name string, s *unix.Stat_t) error {
	if s.Mode&0o600 == 0o600 {
		return nil
	}
	return unix.Fchmodat(dir, name, s.Mode&0o7777|0o600, 0)
}

// compareXattrs removes the attributes that an unpacked file has not, and reports whether there were some and whether one is
// missing or different.
func (a *adopter) compareXattrs(dir int, name string, s *unix.Stat_t, e Entry, when time.Time) (stray, lacking bool, err error) {
	if e.Type != Regular && e.Type != Dir {
		return false, false, nil // the kernel gives user.* to nothing else
	}
	wanted := a.xattrs(e, when)
	p := fdName(dir) + "/" + name
	names, err := listXattrs(p)
	if err != nil {
		return false, false, err
	}
	same := 0
	for _, k := range names {
		value, ok := wanted[k]
		switch {
		case ok:
			if hasXattr(p, k, value) {
				same++
			}
		case k == overlayXattrs+"opaque" && a.opaque[e.Path]:
		case k == capability:
			stray = true
			// Whoever may not set capabilities can still lose them.
			err = unix.Fchownat(dir, name, int(s.Uid), int(s.Gid), unix.AT_SYMLINK_NOFOLLOW)
		case strings.HasPrefix(k, "user."):
			stray = true
			if err = makeWritable(dir, name, s); err == nil {
				err = unix.Lremovexattr(p, k)
			}
		}
		if err != nil {
			return false, false, err
		}
	}
	return stray, same != len(wanted), nil
}

func hasXattr(p, name, value string) bool {
	has := make([]byte, len(value)+1)
	n, err := unix.Lgetxattr(p, name, has)
	return err == nil && string(has[:n]) == value
}
