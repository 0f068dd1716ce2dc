// Package madetest keeps what tests make of downloads, which takes minutes, for the next run of tests: in .cache of the source tree.
package madetest

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

// Once returns a directory of a kind that make has filled, today or in an earlier run: what is in it follows from the key. It is there
// whole or not at all, and nobody may change it. Besides the directory, make gets one for what is not kept, which every user may enter.
func Once(t testing.TB, kind, key string, make func(ctx context.Context, work, dir string) error) string {
	t.Helper()
	top, err := sourceTree()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, ".cache", kind, fmt.Sprintf("%x", sha256.Sum256([]byte(key)))[:16])
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := filelock.Acquire(t.Context(), dir, "making "+dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	_, err = os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = makeWhole(t.Context(), dir, make)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// makeWhole makes a directory under another name, and renames it when it is full.
func makeWhole(ctx context.Context, dir string, make func(ctx context.Context, work, dir string) error) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "partial-*")
	if err != nil {
		return err
	}
	defer store.RemoveAll(work)
	made := filepath.Join(work, "made")
	if err := errors.Join(os.Chmod(work, 0o755), os.Mkdir(made, 0o755)); err != nil {
		return err
	}
	if err := make(ctx, work, made); err != nil {
		return err
	}
	return os.Rename(made, dir)
}

// Build builds an image of a recipe by the sconce of the source tree, with a store in a directory for what is not kept, and writes it to
// outputs such as "dir:DIR" or a file. Compressing well what is read a few times would take longer than all else: files are not
// compressed, nor kept for another image.
func Build(ctx context.Context, work, recipe string, outs ...string) error {
	top, err := sourceTree()
	if err != nil {
		return err
	}
	sconce := filepath.Join(work, "sconce")
	compile := exec.CommandContext(ctx, "go", "build", "-o", sconce, "./cmd/sconce")
	compile.Dir, compile.Env = top, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("build sconce: %w\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(work, "sconce.toml"), []byte(recipe), 0o644); err != nil {
		return err
	}
	args := []string{"--store", filepath.Join(work, "store"), "build", work, "--no-check", "--compression", "zstd", "--sqsh-compression", "none", "--no-reuse"}
	for _, out := range outs {
		args = append(args, "-o", out)
	}
	said, err := mirrortest.Run(func() *exec.Cmd { return exec.CommandContext(ctx, sconce, args...) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	return nil
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
