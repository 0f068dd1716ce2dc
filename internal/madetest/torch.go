package madetest

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
)

// TorchRecipe is the recipe of [TorchImage]. Debian has a PyTorch for processors: the wheels that an index has bring CUDA, ten times as much.
const TorchRecipe = `name = "torch"
version = "1"

[base.bootstrap]
suite = "trixie"
variant = "minbase"
packages = ["python3-torch", "python-is-python3", "libtorch-dev", "pybind11-dev", "python3-dev", "python3-setuptools"]
`

// TorchImage returns Debian 13 with its PyTorch, for training on processors, and with the header files of what is compiled against it: a
// .sqsh, and a directory in the OCI image layout with the same, which a store takes as it is. It is made once, by sconce, of 180 MB from
// Debian's mirror, and kept in .cache of the source tree.
func TorchImage(t testing.TB) (sqsh, layout string) {
	t.Helper()
	dir := Once(t, "torch", TorchRecipe+"sqsh, oci", func(ctx context.Context, work, dir string) error {
		if err := Build(ctx, work, TorchRecipe, filepath.Join(dir, "torch.sqsh"), "oci:"+filepath.Join(dir, "layout")+":torch"); err != nil {
			return fmt.Errorf("make an image with PyTorch: %w", err)
		}
		return nil
	})
	return filepath.Join(dir, "torch.sqsh"), filepath.Join(dir, "layout")
}
