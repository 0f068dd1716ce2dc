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
	"sconce.dev/sconce/internal/store"
)

// rootRecipe is the root file system of the cluster: Debian's Slurm, Python for what jobs run, and the header files of plug-ins.
const rootRecipe = `name = "slurm"
version = "1"

[base]
bootstrap = { suite = "trixie", variant = "minbase", packages = [
	"munge", "slurmctld", "slurmd", "slurm-client", "libslurm-dev", "iproute2", "python3-minimal", "libpython3-stdlib",
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
	top, err := sourceTree()
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("%x", sha256.Sum256([]byte(rootRecipe+fmt.Sprint(added, points))))[:16]
	dir := filepath.Join(top, ".cache", "slurm", key)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := filelock.Acquire(t.Context(), dir, "making the root of the Slurm cluster", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if _, err := os.Stat(dir); err == nil {
		return filepath.Join(dir, "root")
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := makeRoot(t.Context(), top, dir); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "root")
}

// makeRoot makes the directory dir with the root file system in it, whole or not at all.
func makeRoot(ctx context.Context, top, dir string) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "partial-*")
	if err != nil {
		return err
	}
	defer store.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	sconce := filepath.Join(work, "sconce")
	build := exec.CommandContext(ctx, "go", "build", "-o", sconce, "./cmd/sconce")
	build.Dir, build.Env = top, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build sconce: %w\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(work, "sconce.toml"), []byte(rootRecipe), 0o644); err != nil {
		return err
	}
	made := filepath.Join(work, "made")
	if err := os.Mkdir(made, 0o755); err != nil {
		return err
	}
	root := filepath.Join(made, "root")
	bootstrap := exec.CommandContext(ctx, sconce, "--store", filepath.Join(work, "store"), "build", work, "--no-check", "-o", "dir:"+root)
	if out, err := bootstrap.CombinedOutput(); err != nil {
		return fmt.Errorf("make the root of the Slurm cluster: %w\n%s", err, out)
	}
	if err := complete(root); err != nil {
		return err
	}
	return os.Rename(made, dir)
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

// needs leaves the test out without a program, or fails where everything must be there.
func needs(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	if os.Getenv("SCONCE_REQUIRE_TOOLS") != "" {
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
}
