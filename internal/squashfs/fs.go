package squashfs

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// FS returns the file system for the packages that know fs.FS. It implements fs.ReadDirFS, fs.StatFS, fs.ReadFileFS and
// fs.ReadLinkFS; the Sys method of its FileInfos returns a *File. Symlinks lead to what they name inside of the file system.
// Names that are not UTF-8 are accepted.
func (r *Reader) FS() fs.FS { return fileSystem{r} }

type fileSystem struct{ r *Reader }

var (
	_ fs.ReadDirFS  = fileSystem{}
	_ fs.StatFS     = fileSystem{}
	_ fs.ReadFileFS = fileSystem{}
	_ fs.ReadLinkFS = fileSystem{}
)

// find opens the inode of a valid path.
func (s fileSystem) find(op, name string, follow bool) (*File, error) {
	if !fs.ValidPath(strings.ToValidUTF8(name, "x")) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	f, err := s.r.lookup(name, follow)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return f, nil
}

// Open implements fs.FS.
func (s fileSystem) Open(name string) (fs.File, error) {
	f, err := s.find("open", name, true)
	if err != nil {
		return nil, err
	}
	info := fileInfo{path.Base(name), f}
	if f.Type == Dir {
		return &openDir{info: info, path: name}, nil
	}
	return &openFile{Content: f.Content(), info: info}, nil
}

// ReadDir implements fs.ReadDirFS.
func (s fileSystem) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := s.find("readdir", name, true)
	if err != nil {
		return nil, err
	}
	return dirEntries(f, name)
}

func dirEntries(f *File, name string) ([]fs.DirEntry, error) {
	entries, err := f.ReadDir()
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	out := make([]fs.DirEntry, len(entries))
	for i, e := range entries {
		out[i] = dirEntry{e}
	}
	return out, nil
}

// Stat implements fs.StatFS.
func (s fileSystem) Stat(name string) (fs.FileInfo, error) { return s.stat("stat", name, true) }

// Lstat implements fs.ReadLinkFS.
func (s fileSystem) Lstat(name string) (fs.FileInfo, error) { return s.stat("lstat", name, false) }

func (s fileSystem) stat(op, name string, follow bool) (fs.FileInfo, error) {
	f, err := s.find(op, name, follow)
	if err != nil {
		return nil, err
	}
	return fileInfo{path.Base(name), f}, nil
}

// ReadLink implements fs.ReadLinkFS.
func (s fileSystem) ReadLink(name string) (string, error) {
	f, err := s.find("readlink", name, false)
	if err != nil {
		return "", err
	}
	if f.Type != Symlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return f.Target, nil
}

// ReadFile implements fs.ReadFileFS.
func (s fileSystem) ReadFile(name string) ([]byte, error) {
	f, err := s.find("read", name, true)
	if err != nil {
		return nil, err
	}
	var b writeBuffer
	if _, err := f.Content().WriteTo(&b); err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return append([]byte{}, b...), nil
}

// writeBuffer grows with what is written, not with what a size says there is.
type writeBuffer []byte

func (b *writeBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// fileInfo is a File with a name.
type fileInfo struct {
	name string
	f    *File
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.f.Size }
func (i fileInfo) ModTime() time.Time { return i.f.ModTime }
func (i fileInfo) IsDir() bool        { return i.f.Type == Dir }
func (i fileInfo) Sys() any           { return i.f }
func (i fileInfo) Mode() fs.FileMode  { return i.f.FileMode() }
func (i fileInfo) String() string     { return fs.FormatFileInfo(i) }

// FileMode returns the type and the permissions as package fs has them.
func (f *File) FileMode() fs.FileMode {
	m := f.Type.fileMode() | fs.FileMode(f.Mode&0o777)
	for bit, mode := range map[uint16]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if f.Mode&bit != 0 {
			m |= mode
		}
	}
	return m
}

func (t Type) fileMode() fs.FileMode {
	switch t {
	case Dir:
		return fs.ModeDir
	case Symlink:
		return fs.ModeSymlink
	case Block:
		return fs.ModeDevice
	case Char:
		return fs.ModeDevice | fs.ModeCharDevice
	case Fifo:
		return fs.ModeNamedPipe
	case Socket:
		return fs.ModeSocket
	}
	return 0
}

// dirEntry is an Entry as package fs wants it.
type dirEntry struct{ e Entry }

func (d dirEntry) Name() string      { return d.e.Name }
func (d dirEntry) IsDir() bool       { return d.e.Type == Dir }
func (d dirEntry) Type() fs.FileMode { return d.e.Type.fileMode() }
func (d dirEntry) String() string    { return fs.FormatDirEntry(d) }

func (d dirEntry) Info() (fs.FileInfo, error) {
	f, err := d.e.Open()
	if err != nil {
		return nil, err
	}
	return fileInfo{d.e.Name, f}, nil
}

// openFile is an open file that is no directory.
type openFile struct {
	*Content
	info fileInfo
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *openFile) Close() error               { return nil }

// openDir is an open directory.
type openDir struct {
	info fileInfo
	path string
	rest []fs.DirEntry
	read bool
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *openDir) Close() error               { return nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.path, Err: errors.New("is a directory")}
}

// ReadDir implements fs.ReadDirFile.
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if !d.read {
		var err error
		if d.rest, err = dirEntries(d.info.f, d.path); err != nil {
			return nil, err
		}
		d.read = true
	}
	if n > 0 && len(d.rest) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(d.rest) {
		n = len(d.rest)
	}
	out := d.rest[:n:n]
	d.rest = d.rest[n:]
	return out, nil
}
