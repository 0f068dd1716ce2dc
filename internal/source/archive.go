package source

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// archive is a tar file read in place: where each member's bytes are.
type archive struct {
	f       *os.File
	members map[string]member
}

type member struct {
	offset, size int64
	link         string // of a symlink or hard link: another member
}

// Limits on archives of images.
const (
	maxMembers = 200_000
	maxLinks   = 8 // old versions of docker link a layer that occurs twice
)

// openArchive indexes a tar file. One that is compressed is first unpacked into the store's temporary files, where it
// vanishes when it is no longer open.
func openArchive(ctx context.Context, name string, st *store.Store) (*archive, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	plain, err := isPlainTar(f)
	if err == nil && !plain {
		var unpacked *os.File
		unpacked, err = unpackTemp(ctx, f, st)
		f.Close()
		f = unpacked
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	a := &archive{f: f, members: map[string]member{}}
	if err := a.index(ctx); err != nil {
		f.Close()
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return a, nil
}

// openRegular opens a file, and never a pipe, which would wait.
func openRegular(name string) (*os.File, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return os.Open(name)
}

func unpackTemp(ctx context.Context, f *os.File, st *store.Store) (*os.File, error) {
	dir, err := st.TempDir("archive-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the open file lives on
	out, err := os.Create(filepath.Join(dir, "tar"))
	if err != nil {
		return nil, err
	}
	r, err := layer.Decompress(f)
	if err == nil {
		_, err = io.Copy(out, ctxio.Reader(ctx, r))
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

func (a *archive) index(ctx context.Context) error {
	if _, err := a.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	end, err := a.f.Stat()
	if err != nil {
		return err
	}
	for tr := tar.NewReader(a.f); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d members: %w", len(a.members), err)
		}
		if err := a.add(h, end.Size()); err != nil {
			return err
		}
	}
}

// add notes a member. The tar reader takes whole blocks from the file, so the file stands at the member's content.
func (a *archive) add(h *tar.Header, end int64) error {
	if len(a.members) >= maxMembers {
		return fmt.Errorf("it has more than %d members", maxMembers)
	}
	name := path.Clean(strings.TrimPrefix(h.Name, "/"))
	switch h.Typeflag {
	case tar.TypeReg:
		if sparse(h) {
			return fmt.Errorf("member %q is sparse, which no archive of an image is", name)
		}
		at, err := a.f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if h.Size > end-at {
			return fmt.Errorf("member %q: %w", name, io.ErrUnexpectedEOF)
		}
		a.members[name] = member{offset: at, size: h.Size}
	case tar.TypeSymlink:
		a.members[name] = member{link: path.Join(path.Dir(name), h.Linkname)}
	case tar.TypeLink:
		if to := path.Clean(strings.TrimPrefix(h.Linkname, "/")); to != name { // GNU tar links to itself a file that it is told twice
			a.members[name] = member{link: to}
		}
	}
	return nil
}

func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

func (a *archive) find(name string) (member, error) {
	at := path.Clean(name)
	for range maxLinks {
		m, ok := a.members[at]
		if !ok {
			break
		}
		if m.link == "" {
			return m, nil
		}
		at = m.link
	}
	return member{}, fmt.Errorf("member %q: %w", name, fs.ErrNotExist)
}

// open implements files.
func (a *archive) open(name string) (io.ReadCloser, int64, error) {
	m, err := a.find(name)
	if err != nil {
		return nil, 0, err
	}
	return io.NopCloser(io.NewSectionReader(a.f, m.offset, m.size)), m.size, nil
}
