package source

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

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
	state, err := stateOf(f)
	if err != nil {
		return layer.Descriptor{}, err
	}
	unchanged := func(ctx context.Context) (layer.Descriptor, error) {
		d, err := make(ctx)
		if err != nil {
			return d, err
		}
		if now, err := stateOf(f); err != nil || now.Size != state.Size || now.Mtime != state.Mtime { // a new ctime may be that of a new name
			return d, fault.Hint(fmt.Errorf("%s has changed while it was read", f.Name()), "try again once it is written")
		}
		return d, nil
	}
	if !state.known() {
		return unchanged(ctx)
	}
	o := store.Once[layer.Descriptor]{
		Kind: store.KindFileLayer,
		Key:  store.DigestOf(fmt.Appendf(nil, "%d %q %+v", fileLayerVersion, what, state)).Hex(),
		Refs: func(d layer.Descriptor) []store.Digest { return []store.Digest{d.Digest} },
		Does: "reads " + f.Name(),
	}
	d, _, err := o.Do(ctx, st, unchanged)
	return d, err
}

// fileState tells a file from others and from what it was before: nobody but root can change one and keep its ctime. Its device is not
// in it, since that of a file on a server differs between machines, nor its path.
type fileState struct {
	Inode        uint64
	Size         int64 // bytes
	Mtime, Ctime int64 // ns
	Changes      bool  // the file system notes when a file changes
}

func stateOf(f *os.File) (fileState, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return fileState{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return fileState{}, &os.PathError{Op: "statfs", Path: f.Name(), Err: err}
	}
	return fileState{
		Inode: s.Ino, Size: s.Size, Mtime: s.Mtim.Nano(), Ctime: s.Ctim.Nano(),
		Changes: !slices.Contains(imageFileSystems, int64(fs.Type)), //nolint:unconvert // other architectures have other types
	}, nil
}

// imageFileSystems are those that can only be read, and say of each file the time that was given to it: another one in the same place may
// have another file of the same time and size. What FUSE serves is often one of them, or does not know when a file changes.
var imageFileSystems = []int64{unix.SQUASHFS_MAGIC, unix.EROFS_SUPER_MAGIC_V1, unix.ISOFS_SUPER_MAGIC, unix.CRAMFS_MAGIC, unix.FUSE_SUPER_MAGIC}

// young is the age of a change that the clock of a file system may not tell from the next one.
var young = 3 * time.Second

// known reports whether a file that is in this state later will be the same.
func (s fileState) known() bool { return s.Changes && time.Since(time.Unix(0, s.Ctime)) > young }
