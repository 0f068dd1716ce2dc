package imagefs

import (
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

// opaque is the extended attribute of a directory that hides what layers below have in it (Linux,
// Documentation/filesystems/overlayfs.rst).
const opaque = "user.overlay.opaque"

// below is what layers stand on, highest first.
type below []lower

// lower is a layer, or several as one tree, as an overlay sees it.
type lower interface {
	kindAt(p string) kind // what is at a clean path whose parents are directories
}

// kind is what an overlay finds at a path of a layer.
type kind int

const (
	nothing   kind = iota
	other          // a whiteout, or a file that is not a directory: the layers below are not looked at
	openDir        // a directory, together with those of the layers below
	opaqueDir      // a directory that hides those
)

// has reports whether an overlay that puts the directories of a tree over the layers below comes upon something at p there.
func (b below) has(root *image.Node, p string) bool {
	n := root
	for _, dir := range layer.Parents(p) {
		child, err := n.Child(filepath.Base(dir))
		if err != nil || child.Hides == image.EverythingBelow {
			return false
		}
		n, b = child, b.merged(dir)
	}
	return slices.ContainsFunc(b, func(l lower) bool { return l.kindAt(p) != nothing })
}

// merged returns the layers whose directories at a path are put together.
func (b below) merged(dir string) below {
	var with below
	for _, l := range b {
		k := l.kindAt(dir)
		if k == openDir || k == opaqueDir {
			with = append(with, l)
		}
		if k == opaqueDir || k == other {
			break
		}
	}
	return with
}

// unpacked is the directory of a layer that has been unpacked.
type unpacked string

func (u unpacked) kindAt(p string) kind {
	name := filepath.Join(string(u), p)
	var st unix.Stat_t
	switch err := unix.Lstat(name, &st); {
	case err != nil:
		return nothing
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return other
	}
	value := make([]byte, 1)
	if n, err := unix.Lgetxattr(name, opaque, value); err == nil && string(value[:n]) == "y" {
		return opaqueDir
	}
	return openDir
}

// kindAt makes a tree that is served one that others stand on.
func (fs *fileSystem) kindAt(p string) kind {
	n := fs.root
	for name := range strings.SplitSeq(p, "/") {
		child, err := n.Child(name)
		if err != nil {
			return nothing
		}
		n = child
	}
	switch {
	case n.Type != layer.Dir:
		return other
	case n.Hides == image.EverythingBelow:
		return opaqueDir
	}
	return openDir
}
