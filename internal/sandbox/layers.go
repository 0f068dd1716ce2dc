package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// unpackers bounds how many layers are unpacked at once: each one is a decompressor and a writer of many small files.
const unpackers = 4

// Layers unpacks the layers of an image, given lowest first, and returns the directories for Options.Layers in the same
// order. Each layer is unpacked once and stays in the store.
//
// Ordinary users and root have trees of their own, because only root can give files to their owners.
func Layers(ctx context.Context, st *store.Store, layers []layer.Descriptor) ([]string, error) {
	dirs := make([]string, len(layers))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(unpackers, runtime.GOMAXPROCS(0)))
	for i, d := range layers {
		g.Go(func() (err error) {
			dirs[i], err = unpackOnce(ctx, st, d, ownsFiles())
			return err
		})
	}
	return dirs, g.Wait()
}

// Missing returns those of the layers that [Layers] would unpack now.
func Missing(st *store.Store, layers []layer.Descriptor) []layer.Descriptor {
	owners := ownsFiles()
	return slices.DeleteFunc(slices.Clone(layers), func(d layer.Descriptor) bool {
		name := treeName(d, owners)
		dir, ok := st.FindTree(name)
		if ok && unix.Access(dir, unix.X_OK) != nil {
			_, ok = st.FindTree(ownTreeName(name))
		}
		return ok
	})
}

func unpackOnce(ctx context.Context, st *store.Store, d layer.Descriptor, owners bool) (string, error) {
	unpackTo := func(dir string) error {
		task := progress.Begin(ctx, "unpack", "layer "+d.Digest.Short(), 0)
		return task.End(unpack(ctx, st, d, dir, owners))
	}
	name := treeName(d, owners)
	dir, err := st.Tree(ctx, name, unpackTo)
	if err == nil && unix.Access(dir, unix.X_OK) != nil { // in a store for many: somebody else's, and closed
		dir, err = st.Tree(ctx, ownTreeName(name), unpackTo)
	}
	return filepath.Join(dir, rootDir), err
}

// ownTreeName is the tree of a user who may not read the one that there is.
func ownTreeName(name string) string { return fmt.Sprintf("%s-%d", name, os.Geteuid()) }

func treeName(d layer.Descriptor, owners bool) string {
	id := d.DiffID
	if id == "" { // a descriptor that was never checked against a config
		id = d.Digest
	}
	if owners {
		return fmt.Sprintf("layer-%.32s-r", id.Hex())
	}
	return fmt.Sprintf("layer-%.32s-o", id.Hex())
}

// rootDir holds the layer's root within its tree. The directory above it is closed to others if there are programs with the
// setuid bit, from an image that nobody on this machine has vouched for; root's always is.
const rootDir = "root"

func unpack(ctx context.Context, st *store.Store, d layer.Descriptor, dir string, owners bool) error {
	closeTree := func() error { return os.Chmod(dir, 0o700) }
	if owners {
		if err := closeTree(); err != nil {
			return err
		}
	}
	root := filepath.Join(dir, rootDir)
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	return layer.Unpack(ctx, st, d, root, layer.UnpackOptions{Owners: owners, SetID: closeTree})
}
