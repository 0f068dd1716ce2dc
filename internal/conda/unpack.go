package conda

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
)

// file is one file that a package lays down.
type file struct {
	path   string // below the prefix
	kind   layer.Type
	mode   uint32
	link   string // target of a softlink
	size   int64
	sha256 string // of a regular file
	offset int64  // of its content in the spool
	seen   bool   // it was in the archive

	entry    pathEntry // what the package says about it; of generated files, only the path
	recorded string    // the path_type of its record; "" is as in entry
	original string    // the hash of a regular file in the archive
	length   int64     // its size there, in bytes
	modTime  int64     // there, in seconds
	patched  bool      // its content is not the archive's
}

// unpacked is a package whose files are all there.
type unpacked struct {
	pkg       Package
	target    Target
	anyPython bool // it is for any Python
	index     map[string]any
	files     []*file // in the order of a layer
	stale     []*file // sources of a Python whose byte code was left out, as nothing can compile it yet
	spool     *spool
}

// unpacker reads one package.
type unpacker struct {
	a       *archive
	c       *contents
	target  Target
	python  bool             // the package is one for any Python
	files   map[string]*file // by path in the archive; nil for what is left out
	spool   *spool
	buffer  []byte
	counted func(n int64) // told how many bytes were unpacked
}

// unpack reads and checks every file of a package.
func unpack(ctx context.Context, a *archive, p Package, t Target, s *spool, counted func(int64)) (*unpacked, error) {
	c, err := a.readContents(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.checkIdentity(c, p); err != nil {
		return nil, err
	}
	u := unpacker{a: a, c: c, target: t, python: c.noarch() == "python", files: make(map[string]*file, len(c.paths)), spool: s, buffer: make([]byte, copyBuffer), counted: counted}
	if u.python && t.Python.Version == "" {
		return nil, a.bad("", "it is for any Python, and the environment has none")
	}
	places, err := u.lay()
	if err != nil {
		return nil, err
	}
	if err := a.walk(ctx, "pkg", u.member); err != nil {
		return nil, err
	}
	if err := u.complete(); err != nil {
		return nil, err
	}
	if u.python {
		if err := u.addEntryPoints(places); err != nil {
			return nil, err
		}
	}
	out := &unpacked{pkg: p, target: t, anyPython: u.python, index: c.index, spool: s}
	for _, f := range places {
		out.files = append(out.files, f)
	}
	sortFiles(out.files)
	return out, errors.Join(u.checkClashes(out.files), s.flush())
}

func sortFiles(files []*file) {
	slices.SortFunc(files, func(a, b *file) int { return layer.Compare(a.path, b.path) })
}

// lay says where each file goes. It returns the files by that.
func (u *unpacker) lay() (map[string]*file, error) {
	places := make(map[string]*file, len(u.c.paths))
	for _, e := range u.c.paths {
		at, err := u.target.place(e.Path, u.python)
		if err != nil {
			return nil, u.a.blame(e.Path, err)
		}
		if at == "" {
			u.files[e.Path] = nil
			continue
		}
		if other := places[at]; other != nil {
			return nil, u.a.bad(e.Path, "it goes where %s goes", other.entry.Path)
		}
		f := &file{path: at, entry: e}
		if e.Type == typeDirectory {
			f.kind, f.mode, f.seen = layer.Dir, 0o755, true
		}
		places[at], u.files[e.Path] = f, f
	}
	return places, nil
}

// member takes one member of the archive.
func (u *unpacker) member(h *tar.Header, r io.Reader) error {
	f := u.files[h.Name]
	if f == nil {
		return nil // not listed, or left out
	}
	if f.seen && f.kind != layer.Dir {
		return errors.New("it is there twice")
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.regular(f, h, r)
	case tar.TypeSymlink:
		return u.softlink(f, h)
	case tar.TypeLink:
		return u.hardLink(f, h)
	case tar.TypeDir:
		return f.is(layer.Dir, typeDirectory)
	}
	return errors.New("it is a device or another special file, which no package may have")
}

// is notes what kind of file the archive has, which must be what is listed.
func (f *file) is(kind layer.Type, listed string) error {
	if f.entry.Type != "" && f.entry.Type != listed {
		return fmt.Errorf("it is listed as a %s, and is something else in the archive", f.entry.Type)
	}
	f.kind, f.seen = kind, true
	if kind == layer.Dir {
		f.mode = 0o755
	}
	f.entry.Type = listed
	return nil
}

func (u *unpacker) softlink(f *file, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > maxPath || strings.ContainsRune(h.Linkname, 0) {
		return fmt.Errorf("it is a link to %.80q, which is no path", h.Linkname)
	}
	f.link, f.mode = h.Linkname, 0o777
	return f.is(layer.Symlink, typeSoftlink)
}

// permissions are the bits of a mode that a package may set. Nothing in an image runs as somebody else because a package says so.
const permissions = 0o777

func (u *unpacker) regular(f *file, h *tar.Header, r io.Reader) error {
	if f.entry.Size != nil && u.c.listed && h.Size != *f.entry.Size {
		return fmt.Errorf("it has %d bytes, and paths.json says %d", h.Size, *f.entry.Size)
	}
	if err := f.is(layer.Regular, typeHardlink); err != nil {
		return err
	}
	f.mode, f.offset, f.modTime, f.length = uint32(h.Mode)&permissions, u.spool.size, h.ModTime.Unix(), h.Size
	if err := u.content(f, r); err != nil {
		return err
	}
	f.size = u.spool.size - f.offset
	if f.entry.SHA256 != "" && f.original != f.entry.SHA256 {
		return fmt.Errorf("its SHA-256 is %s, and paths.json says %s", f.original, f.entry.SHA256)
	}
	return nil
}

// content writes a file into the spool, with the prefix in its place.
func (u *unpacker) content(f *file, r io.Reader) error {
	was, is := sha256.New(), sha256.New()
	var patch patcher
	w := io.MultiWriter(u.spool, was)
	if f.entry.Placeholder != "" {
		patch = newPatcher(io.MultiWriter(u.spool, is), f.entry.FileMode, f.entry.Placeholder, u.target.Prefix)
		w = io.MultiWriter(was, patch)
	}
	n, err := io.CopyBuffer(onlyWriter{w}, r, u.buffer)
	if err == nil && patch != nil {
		err = patch.Close()
	}
	if err != nil {
		return err
	}
	u.counted(n)
	f.original = hex.EncodeToString(was.Sum(nil))
	f.sha256 = f.original
	if patch != nil && patch.count() > 0 {
		f.sha256 = hex.EncodeToString(is.Sum(nil))
		f.patched = f.sha256 != f.original
	}
	return nil
}

const copyBuffer = 64 << 10

// onlyWriter hides that a writer can read for itself.
type onlyWriter struct{ io.Writer }

// hardLink makes a file of a second name for one that was there before: tars of conda-build have such.
func (u *unpacker) hardLink(f *file, h *tar.Header) error {
	first := u.files[path.Clean(h.Linkname)]
	switch {
	case first == nil || !first.seen || first.kind != layer.Regular || first == f:
		return fmt.Errorf("it is a hard link to %.200q, which is no file of the package before it", h.Linkname)
	case f.entry.SHA256 != "" && f.entry.SHA256 != first.original,
		f.entry.Placeholder != first.entry.Placeholder, f.entry.FileMode != first.entry.FileMode:
		return fmt.Errorf("it is a hard link to %s, and paths.json says of the two what is not the same", first.entry.Path)
	}
	if err := f.is(layer.Regular, typeHardlink); err != nil {
		return err
	}
	f.mode, f.size, f.sha256, f.offset = first.mode, first.size, first.sha256, first.offset
	f.original, f.length, f.modTime, f.patched = first.original, first.length, first.modTime, first.patched
	return nil
}

// complete reports a listed file that was not there.
func (u *unpacker) complete() error {
	for _, e := range u.c.paths {
		if f := u.files[e.Path]; f != nil && !f.seen {
			return u.a.bad(e.Path, "it is listed, and not in the archive")
		}
	}
	return nil
}

// checkClashes refuses a file where another needs a directory.
func (u *unpacker) checkClashes(files []*file) error {
	var last *file
	for _, f := range files {
		if last != nil && below(f.path, last.path) {
			return u.a.bad(f.entry.Path, "it lies below %s, which is no directory", last.path)
		}
		if f.kind != layer.Dir {
			last = f
		}
	}
	return nil
}

// addGenerated puts a file that is made here into the spool.
func (s *spool) addGenerated(at string, mode uint32, recorded string, data []byte) (*file, error) {
	offset, err := s.keep(data)
	sum := sha256.Sum256(data)
	return &file{
		path: at, kind: layer.Regular, mode: mode, size: int64(len(data)), sha256: hex.EncodeToString(sum[:]), offset: offset,
		seen: true, entry: pathEntry{Path: at}, recorded: recorded,
	}, err
}

// read returns the content of a small file.
func (s *spool) read(f *file) ([]byte, error) {
	var b bytes.Buffer
	_, err := io.Copy(&b, s.open(f.offset, f.size))
	return b.Bytes(), err
}
