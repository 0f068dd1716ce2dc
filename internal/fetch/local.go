package fetch

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/progress"
)

// localPath returns the path that an URL means on this machine: of scheme file, or without a scheme.
func localPath(raw string) (string, bool) {
	if filepath.IsAbs(raw) {
		return raw, true
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", false
	}
	switch {
	case u.Scheme == "file" && (u.Host == "" || u.Host == "localhost"):
		return u.Path, u.Path != ""
	case u.Scheme == "" && u.Host == "":
		return raw, raw != ""
	}
	return "", false
}

// copyLocal copies a local file into the store and checks it like a download.
func (c *Client) copyLocal(ctx context.Context, r Request, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("copy %s: %w", r.label(), err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return fmt.Errorf("copy %s: %s is not a regular file", r.label(), path)
	}
	w, err := c.store.NewBlob()
	if err != nil {
		return fmt.Errorf("copy %s: %w", r.label(), err)
	}
	defer w.Close()
	task := progress.Begin(ctx, "copy", r.label(), r.Size)
	return task.End(explain("copy", r, func() error {
		if err := copyContext(ctx, io.MultiWriter(w, task), f); err != nil {
			return err
		}
		if r.Size > 0 && w.Size() != r.Size {
			return &SizeError{want: r.Size, got: w.Size()}
		}
		_, err := w.Commit(r.Digest)
		return err
	}()))
}

// copyContext is io.Copy that ends with ctx.
func copyContext(ctx context.Context, w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(w, ctxio.Reader(ctx, r), make([]byte, copyBuffer))
	return err
}
