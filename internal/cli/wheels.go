package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// copyWheels copies wheels of the store to dir, which is made when missing, and returns the files. A file of the name that is
// there already is replaced.
func (a *app) copyWheels(ctx context.Context, dir string, wheels []python.Item) ([]string, error) {
	st, err := a.store(ctx)
	if err != nil {
		return nil, err
	}
	if len(wheels) == 0 {
		a.say("no package was compiled: there is nothing to copy to %s", dir)
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var files []string
	for _, w := range wheels {
		file := filepath.Join(dir, filepath.Base(w.File))
		if err := copyBlob(st, w.Digest, file); err != nil {
			return files, fmt.Errorf("copy the wheel of %s: %w", w.Name, err)
		}
		files = append(files, file)
		a.say("wrote %s", file)
	}
	return files, nil
}

// copyBlob writes a blob to a file, whole or not at all.
func copyBlob(st *store.Store, d store.Digest, file string) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".wheel-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	whole := filepath.Join(dir, filepath.Base(file))
	if err := st.CopyBlob(d, whole); err != nil {
		return err
	}
	if err := os.Chmod(whole, 0o644); err != nil {
		return err
	}
	return os.Rename(whole, file)
}
