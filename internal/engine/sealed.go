package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/venv"
)

// WriteSealed writes a text of [job.Seal] to a file, unless that is one that somebody has edited. written is false where the file is so already.
func WriteSealed(file, text string, force bool) (written bool, err error) {
	old, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case bytes.Equal(old, []byte(text)):
		return false, nil
	case !job.Untouched(string(old)) && !force:
		return false, fault.Hint(edited(file), "--diff shows what would change, --force replaces it")
	}
	if err := atomicfile.Replace(file, []byte(text), 0o644); err != nil {
		return false, fmt.Errorf("write %s: %w", file, err)
	}
	return true, nil
}

func edited(file string) error {
	return fmt.Errorf("%s was edited, or not written by sconce: it is left as it is", file)
}

// VenvHook is the text of the hook by which enroot mounts packed environments.
func VenvHook() string { return job.Seal(venv.Hook) }

// InstallVenvHook writes the hook to where enroot looks for one of this user's. written is false where it is there already.
func InstallVenvHook(force bool) (file string, written bool, err error) {
	if file, err = venv.HookFile(); err != nil {
		return "", false, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return file, false, err
	}
	if written, err = WriteSealed(file, VenvHook(), force); err != nil {
		return file, false, err
	}
	return file, written, os.Chmod(file, 0o755) // enroot leaves out what cannot be executed
}

// RemoveVenvHook removes the hook. removed is false where there is none.
func RemoveVenvHook(force bool) (file string, removed bool, err error) {
	if file, err = venv.HookFile(); err != nil {
		return "", false, err
	}
	old, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file, false, nil
	case err != nil:
		return file, false, err
	case !job.Untouched(string(old)) && !force:
		return file, false, fault.Hint(edited(file), "--force removes it")
	}
	err = os.Remove(file)
	return file, err == nil, err
}
