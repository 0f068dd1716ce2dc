package layer

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
)

// UpperOptions says how a layer is made of an overlay's upper directory. The zero value is usable.
type UpperOptions struct {
	Options

	// Base is what the step ran on. Without it everything in the upper directory becomes part of the layer, changed or not.
	Base Base
	// Unpacked says how the layers were unpacked that the step ran on. Without owners the step saw neither owners nor setuid
	// bits nor capabilities: what was copied up gets those of Base again, unless the step gave it other permissions.
	Unpacked UnpackOptions
	// Owner returns what the step's processes asked for a file, which may be more than the file system could hold. It gets
	// what would be used without it.
	Owner func(f UpperFile, o Ownership) Ownership
	// Started is when the step began, by the clock of files. Earlier times were set on purpose, by who unpacks an archive for instance, and are
	// kept; later ones become one time: Options.ModTime, or a second more than the latest that was kept, so that what the
	// step made is not older than what it was made from. A file of which only the time is another is in the layer, too.
	// When it is zero, all times later than Options.ModTime become that, and the base's count where nothing else has changed.
	Started time.Time
}

// UpperFile is a file of the upper directory.
type UpperFile struct {
	Upper string // names the upper directory as long as FromUpper runs
	Path  string // in it, and in the image
	Stat  *unix.Stat_t
	Below *BaseEntry // what the base has at the path, nil for nothing or without a base
}

// Ownership is what only root can give to a file.
type Ownership struct {
	UID, GID   int
	Mode       uint32 // as st_mode: permissions, setuid and setgid, and S_IFCHR or S_IFBLK for a file that stands for a device
	Rdev       uint64 // number of a device, as st_rdev
	Capability string // the attribute security.capability (capabilities(7), revision 2), "" for none
}

// Base is an image that a step ran on. Symlinks are not followed.
type Base interface {
	// Find returns what stands at a clean path.
	Find(p string) (e BaseEntry, ok bool, err error)
	// Open opens the content of the regular file at p.
	Open(p string) (io.ReadCloser, error)
}

// BaseEntry is a file of an image. Its type is never HardLink.
type BaseEntry struct {
	Entry
	Inode int // the same for all names of a file
	Links int // how many names it has
}

// FromUpper makes a layer of dir, the upper directory of an overlay that nobody has mounted any more and whose options
// redirect_dir, metacopy and index were off (Linux Documentation/filesystems/overlayfs.rst).
//
// The layer is the difference between what the base had and what was seen at the end, not a record of how that came to be: what was
// opened for writing, touched, or written again with the same content is not in it. Package execop makes layers of commands so.
//
// Whiteouts and opaque directories become those of OCI (image-spec, layer, "Whiteouts"), but for those that hide nothing in the
// base. Directories above a change are in the layer, with the attributes that the base has. Devices and fifos are kept,
// sockets are not. Of extended attributes those are kept that [FromDir] keeps. A name that starts with ".wh." cannot be in an
// image and is an error.
//
// What belongs to the caller belongs to root in the layer; everything else has the owner that the file system says,
// unless Owner knows better. FromUpper must be able to read dir: as its owner, as root, or in the user namespace whose
// root wrote it. Permissions that keep the owner from reading are lifted meanwhile.
func FromUpper(ctx context.Context, st *store.Store, dir string, o UpperOptions) (Descriptor, error) {
	d, err := fromUpper(ctx, st, dir, o)
	if err != nil {
		return Descriptor{}, fmt.Errorf("make a layer of what was changed: %w", err)
	}
	return d, nil
}

func fromUpper(ctx context.Context, st *store.Store, dir string, o UpperOptions) (_ Descriptor, err error) {
	w, err := NewWriter(ctx, st, o.Options)
	if err != nil {
		return Descriptor{}, err
	}
	defer w.Abort()
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Descriptor{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	u := newUpperReader(ctx, root, o)
	u.modTime = w.opts.ModTime
	defer u.restore()
	if err := u.scanRoot(); err != nil {
		return Descriptor{}, err
	}
	if err := u.compareFiles(); err != nil {
		return Descriptor{}, err
	}
	u.dateWritten()
	if err := u.write(w); err != nil {
		return Descriptor{}, err
	}
	return w.Close()
}
