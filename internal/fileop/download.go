package fileop

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// tempFile makes a file for something that arrives. It is open until the layer is made.
func (j *job) tempFile() (*os.File, error) {
	if j.temp == "" {
		dir, err := j.st.TempDir("copy-*")
		if err != nil {
			return nil, err
		}
		j.temp = dir
	}
	f, err := os.CreateTemp(j.temp, "")
	if err == nil {
		j.files = append(j.files, f)
	}
	return f, err
}

// ownName returns the last component of a name, and "" when that is none, which matters only when the destination is a directory.
func ownName(name string) string {
	if name = path.Base(name); name == "." || name == ".." || name == "/" {
		return ""
	}
	return name
}

// maxDownload is the most bytes of a remote file.
const maxDownload = 256 << 30

// download brings a remote file here.
func (j *job) download(u URL, open Open) (picked, error) {
	if open == nil {
		return picked{}, errors.New("remote files cannot be had here")
	}
	r, name, err := open(j.ctx, u)
	if err != nil {
		return picked{}, fmt.Errorf("add %s: %w", fetch.Redact(u.Address), err)
	}
	defer r.Close()
	n, err := j.keep(r, u.Digest)
	if err != nil {
		return picked{}, fmt.Errorf("add %s: %w", fetch.Redact(u.Address), err)
	}
	name = ownName(name)
	n.name, n.Path = name, name
	return picked{node: n, name: name, p: name, arrived: true}, nil
}

// keep writes what arrives to a temporary file.
func (j *job) keep(r io.Reader, want store.Digest) (*node, error) {
	f, err := j.tempFile()
	if err != nil {
		return nil, err
	}
	sum := newSum()
	size, err := io.Copy(io.MultiWriter(f, sum), ctxio.Reader(j.ctx, io.LimitReader(r, maxDownload+1)))
	if err == nil && size > maxDownload {
		err = fmt.Errorf("it has more than %d bytes", int64(maxDownload))
	}
	if err != nil {
		return nil, err
	}
	if got := store.SumDigest(sum); want != "" && got != want {
		return nil, fault.Hint(&store.MismatchError{Want: want, Got: got, Size: size}, "the file has changed, or the checksum is of another one")
	}
	return &node{Entry: layer.Entry{Mode: 0o600, Size: size}, open: func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(f, 0, size)), nil
	}}, nil
}
