package conda

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/entrypoint"
)

// NewPatcher is for tests.
func NewPatcher(w io.Writer, mode, placeholder, prefix string) io.WriteCloser {
	return newPatcher(w, mode, placeholder, prefix)
}

// SipHash is for tests.
var SipHash = sipHash

// ParseEntryPoint is for tests.
func ParseEntryPoint(s string) error {
	_, err := entrypoint.Parse(s)
	return err
}

// Unpacked is a file of a package, for tests.
type Unpacked struct {
	Path, Link, SHA256 string
	Content            []byte
	Mode               uint32
}

// Unpack unpacks an archive into a directory.
func Unpack(ctx context.Context, r io.ReaderAt, size int64, p Package, t Target, dir string) ([]Unpacked, error) {
	a, err := openArchive(r, size, p.File)
	if err != nil {
		return nil, err
	}
	return unpackInto(ctx, a, p, t, dir)
}

// UnpackWithin is [Unpack] of an archive that may unpack to limit bytes.
func UnpackWithin(ctx context.Context, r io.ReaderAt, size int64, p Package, t Target, dir string, limit int64) ([]Unpacked, error) {
	a, err := openArchive(r, size, p.File)
	if err != nil {
		return nil, err
	}
	a.limit = limit
	return unpackInto(ctx, a, p, t, dir)
}

// UnpackedLimit is for tests.
var UnpackedLimit = unpackedLimit

// The limits, for tests.
const (
	MaxMembers  = maxMembers
	MaxMetadata = maxMetadata
)

// WalkMany walks through a tar of the same header n times.
func WalkMany(ctx context.Context, header []byte, n int) (visited int, err error) {
	a := &archive{name: "x-1-0.conda", limit: maxUnpacked, parts: map[string]func() (io.ReadCloser, error){"pkg": func() (io.ReadCloser, error) {
		return io.NopCloser(io.LimitReader(&again{data: header}, int64(n*len(header)))), nil
	}}}
	err = a.walk(ctx, "pkg", func(*tar.Header, io.Reader) error { visited++; return nil })
	return visited, err
}

// again reads the same bytes without an end.
type again struct {
	data []byte
	at   int
}

func (r *again) Read(p []byte) (int, error) {
	n := copy(p, r.data[r.at:])
	r.at = (r.at + n) % len(r.data)
	return n, nil
}

// UnpackParts unpacks the two tars of an archive.
func UnpackParts(ctx context.Context, info, pkg []byte, p Package, t Target, dir string) ([]Unpacked, error) {
	part := func(data []byte) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	}
	a := &archive{name: p.File, limit: maxUnpacked, parts: map[string]func() (io.ReadCloser, error){"info": part(info), "pkg": part(pkg)}}
	return unpackInto(ctx, a, p, t, dir)
}

func unpackInto(ctx context.Context, a *archive, p Package, t Target, dir string) ([]Unpacked, error) {
	defer a.close()
	if err := a.expand(ctx, dir); err != nil {
		return nil, err
	}
	s, err := newSpool(dir, a.limit)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	u, err := unpack(ctx, a, p, t, s, func(int64) {})
	if err != nil {
		return nil, err
	}
	var files []Unpacked
	for _, f := range u.files {
		data, err := s.read(f)
		if err != nil {
			return nil, err
		}
		files = append(files, Unpacked{f.path, f.link, f.sha256, data, f.mode})
	}
	return files, nil
}

// UnpackOnFullDisk unpacks an archive where nothing can be written.
func UnpackOnFullDisk(ctx context.Context, r io.ReaderAt, size int64, p Package, t Target) error {
	a, err := openArchive(r, size, p.File)
	if err != nil {
		return err
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer full.Close()
	_, err = unpack(ctx, a, p, t, &spool{file: full, w: bufio.NewWriterSize(full, 10), limit: 1 << 20}, func(int64) {})
	return err
}

// Clobbers returns where packages of layers are in each other's way. packages is the whole environment.
func Clobbers(packages []Package, manifests []Manifest, prefix string) []Clobber {
	_, clobbers := link(packages, manifests, prefix)
	return clobbers
}

// Distributions returns the Python distributions in layers of packages.
func Distributions(manifests []Manifest) []Distribution {
	var all []Distribution
	for _, m := range manifests {
		for _, p := range m.Packages {
			all = append(all, p.Distributions...)
		}
	}
	slices.SortFunc(all, func(a, b Distribution) int { return strings.Compare(a.Path, b.Path) })
	return all
}
