package slurmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/madetest"
)

// kind is the name of what is kept here for the next run of tests.
const kind = "slurm"

// rootRecipe is the root file system of the cluster: Debian's Slurm, Python for what jobs run, the header files of plug-ins, and what
// enroot and Apptainer call to open an image.
const rootRecipe = `name = "slurm"
version = "1"

[base]
bootstrap = { suite = "trixie", variant = "minbase", packages = [
	"munge", "slurmctld", "slurmd", "slurm-client", "libslurm-dev", "iproute2", "python3-minimal", "libpython3-stdlib",
	"squashfs-tools", "squashfuse", "fuse3",
] }
`

// added is what is in no package, by file: who else there is in the cluster, and the file that its names are written over when it starts.
var added = map[string]string{
	"etc/passwd": "alice:x:1000:1000::/home/alice:/bin/bash\n",
	"etc/hosts":  "127.0.0.1 localhost\n",
}

// points are mount points that Debian's packages do not bring.
var points = []string{"shared", "etc/slurm", "var/slurm"}

// RootDir returns the root file system of the cluster, a directory that nobody may write to. It is made once, by sconce, from
// Debian's packages, and kept in .cache of the source tree.
func RootDir(t testing.TB) string {
	t.Helper()
	dir := madetest.Once(t, kind, rootRecipe+fmt.Sprint(added, points), func(ctx context.Context, work, dir string) error {
		root := filepath.Join(dir, "root")
		if err := madetest.Build(ctx, work, rootRecipe, "dir:"+root); err != nil {
			return fmt.Errorf("make the root of the Slurm cluster: %w", err)
		}
		return complete(root)
	})
	return filepath.Join(dir, "root")
}

// complete adds what is not in any package.
func complete(root string) error {
	for _, p := range points {
		if err := os.MkdirAll(filepath.Join(root, p), 0o755); err != nil {
			return err
		}
	}
	for name, text := range added {
		if err := appendTo(filepath.Join(root, name), text); err != nil {
			return err
		}
	}
	return nil
}

func appendTo(file, text string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
