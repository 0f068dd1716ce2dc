package source

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// fileLayerVersion is raised when another layer is made of the same file.
const fileLayerVersion = 1

// fileLayer returns the layer that make makes of a file, without making it again while the file stays as it is. what tells apart what is
// made of one file.
func fileLayer(ctx context.Context, st *store.Store, f *os.File, what string, make func(context.Context) (layer.Descriptor, error)) (layer.Descriptor, error) {
	before, err := f.Stat()
	if err != nil {
		return layer.Descriptor{}, err
	}
	unchanged := func(ctx context.Context) (layer.Descriptor, error) {
		d, err := make(ctx)
		if err != nil {
			return d, err
		}
		after, err := f.Stat()
		if err != nil || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) { // a new ctime may be that of a new name
			return d, fault.Hint(fmt.Errorf("%s has changed while it was read", f.Name()), "try again once it is written")
		}
		return d, nil
	}
	stamp := store.StampOf(before)
	if stamp.Age() <= young || !notesChanges(f) {
		return unchanged(ctx)
	}
	o := store.Once[layer.Descriptor]{
		Kind: store.KindFileLayer,
		Key:  store.DigestOf(fmt.Appendf(nil, "%d %q %+v", fileLayerVersion, what, stamp)).Hex(),
		Refs: func(d layer.Descriptor) []store.Digest { return []store.Digest{d.Digest} },
		Does: "reads " + f.Name(),
	}
	d, _, err := o.Do(ctx, st, unchanged)
	return d, err
}

// young is the age of a change at which a file may still change unseen.
var young = store.Racy

// notesChanges reports whether the file system of a file is known to note when one changes.
func notesChanges(f *os.File) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &fs) != nil {
		return false
	}
	return !slices.Contains(imageFileSystems, int64(fs.Type)) //nolint:unconvert // other architectures have other types
}

// imageFileSystems are those that can only be read, and say of each file the time that was given to it: another one in the same place may
// have another file of the same time and size. What FUSE serves is often one of them, or does not know when a file changes.
var imageFileSystems = []int64{unix.SQUASHFS_MAGIC, unix.EROFS_SUPER_MAGIC_V1, unix.ISOFS_SUPER_MAGIC, unix.CRAMFS_MAGIC, unix.FUSE_SUPER_MAGIC}
