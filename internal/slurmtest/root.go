package slurmtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/store"
)

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
	return madeOnce(t, rootRecipe+fmt.Sprint(added, points), func(ctx context.Context, b builder, dir string) error {
		root := filepath.Join(dir, "root")
		if err := b.build(ctx, rootRecipe, "dir:"+root); err != nil {
			return fmt.Errorf("make the root of the Slurm cluster: %w", err)
		}
		return complete(root)
	}, "root")
}

// torchRecipe is an image with PyTorch for processors, which Debian has: the wheels that an index has bring CUDA, ten times as much.
const torchRecipe = `name = "torch"
version = "1"

[base]
bootstrap = { suite = "trixie", variant = "minbase", packages = ["python3-torch", "python-is-python3"] }
`

// TorchImage returns a .sqsh of Debian's PyTorch, for training on processors. It is made as [RootDir] is.
func TorchImage(t testing.TB) string {
	t.Helper()
	return madeOnce(t, torchRecipe, func(ctx context.Context, b builder, dir string) error {
		if err := b.build(ctx, torchRecipe, filepath.Join(dir, "torch.sqsh")); err != nil {
			return fmt.Errorf("make an image with PyTorch: %w", err)
		}
		return nil
	}, "torch.sqsh")
}

// madeOnce returns the path of a file in a directory that make has filled, today or in an earlier run of tests: what is made follows from
// the key. The directory is there whole or not at all.
func madeOnce(t testing.TB, key string, make func(ctx context.Context, b builder, dir string) error, file string) string {
	t.Helper()
	top, err := sourceTree()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, ".cache", "slurm", fmt.Sprintf("%x", sha256.Sum256([]byte(key)))[:16])
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := filelock.Acquire(t.Context(), dir, "making "+file+" for the Slurm cluster", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	_, err = os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = makeWhole(t.Context(), top, dir, make)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, file)
}

// makeWhole makes a directory under another name, and renames it when it is full.
func makeWhole(ctx context.Context, top, dir string, make func(ctx context.Context, b builder, dir string) error) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "partial-*")
	if err != nil {
		return err
	}
	defer store.RemoveAll(work)
	made := filepath.Join(work, "made")
	if err := errors.Join(os.Chmod(work, 0o755), os.Mkdir(made, 0o755)); err != nil {
		return err
	}
	if err := make(ctx, builder{top, work}, made); err != nil {
		return err
	}
	return os.Rename(made, dir)
}

// builder builds images by the sconce of the source tree, in a directory with a store of its own.
type builder struct{ top, work string }

func (b builder) build(ctx context.Context, recipe, out string) error {
	sconce := filepath.Join(b.work, "sconce")
	compile := exec.CommandContext(ctx, "go", "build", "-o", sconce, "./cmd/sconce")
	compile.Dir, compile.Env = b.top, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("build sconce: %w\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(b.work, "sconce.toml"), []byte(recipe), 0o644); err != nil {
		return err
	}
	said, err := mirrortest.Run(func() *exec.Cmd {
		return exec.CommandContext(ctx, sconce, "--store", filepath.Join(b.work, "store"), "build", b.work, "--no-check", "-o", out)
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	return nil
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

// sourceTree is where go.mod is, above the directory that tests run in.
func sourceTree() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no go.mod above the working directory")
}
