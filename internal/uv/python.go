package uv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"sconce.dev/sconce/internal/child"
)

// Understands reports whether uv takes a program for a Python.
func Understands(ctx context.Context, program, python string) bool {
	_, err := output(ctx, program, "python", "find", "--no-config", python)
	return err == nil
}

// BringPython has uv bring a Python of a minor version, from where the user's configuration says, and returns its program. One that uv has
// brought before is taken.
func BringPython(ctx context.Context, program, minor string) (string, error) {
	if _, err := output(ctx, program, "python", "install", minor); err != nil {
		return "", fmt.Errorf("uv could not bring a Python %s: %w", minor, err)
	}
	path, err := output(ctx, program, "python", "find", "--managed-python", "--system", minor)
	if err == nil && !filepath.IsAbs(path) {
		err = fmt.Errorf("it is at %q", path)
	}
	if err != nil {
		return "", fmt.Errorf("uv does not find the Python %s that it brought: %w", minor, err)
	}
	return path, nil
}

// output runs a command of uv's where no file of anybody's is, and returns what it prints.
func output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout strings.Builder
	var said child.Tail
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", append(Environment(os.Environ()), "NO_COLOR=1", "UV_NO_PROGRESS=1"), &stdout, &said
	err := child.Group(cmd, syscall.SIGKILL)
	if text := strings.TrimSpace(said.String()); err != nil && text != "" {
		err = errors.New(text)
	}
	return strings.TrimSpace(stdout.String()), err
}
