package sandbox

import (
	"context"
	"os"
	"path/filepath"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Adopt spares [Layers] the unpacking of d, which layer.FromUpper has just made of upper, an upper directory in the store: that
// becomes the unpacked layer. Whatever the outcome, upper is of no use afterwards, and what is left of it the caller's to
// remove. After an error the layer is unpacked when it is wanted, like any other.
func Adopt(ctx context.Context, st *store.Store, d layer.Descriptor, upper string) error {
	owners := ownsFiles()
	_, err := st.QuickTree(ctx, treeName(d, owners), func(dir string) error {
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
		root := filepath.Join(dir, rootDir)
		if err := os.Rename(upper, root); err != nil {
			return err
		}
		return layer.Adopt(ctx, st, d, root, layer.UnpackOptions{Owners: owners})
	})
	return err
}
