package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/store"
)

// What a command changes can be kept: the overlay's upper directory then lies in Options.UpperDir. The sandbox needs mount
// points of its own in the image, which are none of the command's changes. They are made in another overlay of the same
// layers, whose upper directory becomes the highest layer below the command's.
//
//	UpperDir/upper    what the command changes, kept
//	UpperDir/points   mount points, gone at the end
//	UpperDir/work     overlayfs's own, gone at the end
//	UpperDir/images   what is written over files of other images (Options.Mounts), gone at the end
//
// All are on one file system, so that every file in the sandbox has the same device number: programs that stay on one
// file system (tar --one-file-system) would leave out files otherwise.

// Upper is the subdirectory of Options.UpperDir that holds what the command changed.
const Upper = upperName

const pointsName = "points"

// ErrNoUpper is what errors are (errors.Is) when Options.UpperDir is on a file system that cannot hold an overlay's upper
// layer: a network file system, another overlay. The command was not started; it can be, with a directory elsewhere.
var ErrNoUpper = errors.New("the file system cannot hold the upper layer of an overlay")

func noUpper(dir string, err error) *Error {
	e := failed(fmt.Sprintf("keep what the command changes in %s (%s)", dir, host.FileSystemOf(dir).Type), err)
	e.NoUpper = true
	e.Fix = "an overlay's upper layer needs a local file system with extended attributes of users: ext4, xfs, btrfs, or tmpfs since Linux 6.6"
	return e
}

func checkUpper(o Options) error {
	if o.UpperDir == "" {
		return nil
	}
	if o.ReadOnly || o.ScratchDir != "" {
		return fault.Usage(errors.New("the changes of a command can be kept only when it can make some, and in one place"))
	}
	if len(o.Layers) >= MaxLayers { // one more holds the mount points
		return &Error{What: fmt.Sprintf("the image has %d layers; a step can stand on %d", len(o.Layers), MaxLayers-1), Code: codeNotMade}
	}
	return nil
}

// prepareUpper makes the directories in UpperDir.
func (s *session) prepareUpper(dir string) error {
	s.keep = dir
	upper := filepath.Join(dir, upperName)
	err := os.Mkdir(upper, 0o755)
	s.madeUpper = err == nil
	if err == nil {
		err = os.Chmod(upper, 0o755) // whatever the umask
	} else if errors.Is(err, fs.ErrExist) {
		err = nil // a command goes on where another one ended
	}
	for _, name := range []string{workName, pointsName, pointsName + "/" + upperName, pointsName + "/" + workName} {
		if err == nil {
			err = os.Mkdir(filepath.Join(dir, name), 0o755)
		}
	}
	if err != nil {
		return failed("make a directory for what the command changes", err)
	}
	// overlayfs would mount without them, and then fail where a directory takes the place of another one.
	const probe = "user.sconce"
	if err := unix.Setxattr(upper, probe, nil, 0); err != nil {
		return noUpper(dir, err)
	}
	return unix.Removexattr(upper, probe)
}

// discard removes what the sandbox had on disk: all of a scratch directory. In a directory that is kept, what the command
// changed goes only when there was no command, or it was interrupted.
func (s *session) discard() {
	var dirs []string
	if s.scratch != "" {
		dirs = append(dirs, s.scratch)
	}
	if s.keep != "" {
		dirs = append(dirs, filepath.Join(s.keep, workName), filepath.Join(s.keep, pointsName), filepath.Join(s.keep, imagesName))
		if s.madeUpper && (s.failed.Load() || s.cancelled.Load()) {
			dirs = append(dirs, filepath.Join(s.keep, upperName))
		}
	}
	for _, dir := range dirs {
		if err := store.RemoveAll(dir); err != nil && s.ctx != nil {
			progress.Warn(s.ctx, fmt.Sprintf("what the command wrote could not be removed: %v", err), "")
		}
	}
}

// Unpacked says how [Layers] unpacks, for layer.UpperOptions.
func Unpacked() layer.UnpackOptions { return layer.UnpackOptions{Owners: ownsFiles()} }

// Owner returns what a step asked for with Options.Owners, for layer.UpperOptions.
func Owner(owners *rootemu.Owners) func(layer.UpperFile, layer.Ownership) layer.Ownership {
	return func(f layer.UpperFile, o layer.Ownership) layer.Ownership {
		r, ok := owners.Of(f.Upper, f.Path, f.Stat)
		if !ok {
			return o
		}
		ids := r.Owner(rootemu.IDs{UID: o.UID, GID: o.GID})
		o.UID, o.GID = ids.UID, ids.GID
		if r.Device != 0 {
			o.Mode, o.Rdev = o.Mode&^unix.S_IFMT|r.Device, r.Rdev
		}
		return o
	}
}

// layPoints adds the layer that holds the mount points. What cannot be made is left to fillRoot, which says why; some of
// it can be made once other things are mounted.
func (b *builder) layPoints() error {
	points := filepath.Join(fdPath(b.host.scratch), pointsName)
	target := filepath.Join(b.base, "root")
	if err := b.mountOverlay(target, points); err != nil {
		return noUpper(b.spec.Scratch, err)
	}
	root, err := openRoot(target)
	if err != nil {
		return failed("open the root of the image", err)
	}
	b.makePoints(root)
	root.close()
	if err := unix.Unmount(target, 0); err != nil {
		return failed("unmount the overlay of mount points", err)
	}
	fd, err := openPath(filepath.Join(points, upperName))
	if err != nil {
		return failed("open the mount points", err)
	}
	b.host.layers = append(b.host.layers, fd)
	return nil
}

// makePoints makes everything that fillRoot would make in the image.
func (b *builder) makePoints(root inRoot) {
	if b.host.sys >= 0 {
		closePoint(root.dir("/sys"))
	}
	closePoint(root.dir("/proc"))
	closePoint(root.dir("/dev"))
	b.root = root
	_ = b.mountTmp() // which mounts nothing
	if b.spec.Resolv != nil {
		closePoint(root.file("/etc/resolv.conf"))
	}
	if b.spec.Hosts != nil {
		closePoint(root.file("/etc/hosts"))
	}
	for _, dir := range b.spec.Tmpfs {
		closePoint(root.dir(dir))
	}
	for i, bind := range b.spec.Binds {
		if isDir(b.host.binds[i]) {
			closePoint(root.dir(bind.Target))
		} else {
			closePoint(root.file(bind.Target))
		}
	}
	for i := range b.spec.Mounts {
		b.mountPoint(root, i)
	}
	closePoint(root.dir(b.spec.WorkDir))
}

func closePoint(fd int, err error) {
	if err == nil {
		unix.Close(fd)
	}
}
