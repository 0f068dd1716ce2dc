package source

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// Layer makes a layer of the file, once for as long as it stays as it is: every object but sockets, with its owner, time and the extended
// attributes that images carry. The root directory has no entry: its permissions say more about the umask of whoever packed it
// than about the image. It is seen in a directory, dir, whose path has no slash in front; "" is the image's root.
func (c *ClusterFile) Layer(ctx context.Context, st *store.Store, dir string) (layer.Descriptor, error) {
	return fileLayer(ctx, st, c.file, "squashfs "+dir, func(ctx context.Context) (layer.Descriptor, error) {
		return squashfsLayer(ctx, st, c.FS, c.Partition.Size(), dir)
	})
}

// squashfsLayer makes a layer of a squashfs of size bytes, which bound what it may unfold to.
func squashfsLayer(ctx context.Context, st *store.Store, z *squashfs.Reader, size int64, dir string) (layer.Descriptor, error) {
	w, err := layer.NewWriter(ctx, st, layer.Options{ModTime: layer.KeepTimes})
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	l := squashfsReader{w: w, dir: dir, first: map[uint32]string{}, left: maxUnfolded(size)}
	if dir != "" {
		for _, parent := range append(layer.Parents(dir), dir) {
			if err := w.Add(layer.Entry{Path: parent, Type: layer.Dir, Mode: 0o755, ModTime: layer.DefaultModTime}, nil); err != nil {
				return layer.Descriptor{}, err
			}
		}
	}
	if err := z.Walk(l.add); err != nil {
		return layer.Descriptor{}, err
	}
	return w.Close()
}

// squashfsReader adds a squashfs to a layer.
type squashfsReader struct {
	w     *layer.Writer
	dir   string            // that everything goes below; "" is the root
	first map[uint32]string // by inode number, the first path of each file that has several
	left  int64             // bytes that files may still have
}

// maxUnfolded is how many bytes the files of a squashfs of size bytes may have together. Real ones compress to a third; a
// file of zeros takes next to nothing, and a hostile one with many would fill any disk.
func maxUnfolded(size int64) int64 {
	const (
		always = 64 << 30
		ratio  = 100
	)
	return always + ratio*min(size, 1<<50)
}

// layerTypes are the kinds of object that layers hold too.
var layerTypes = map[squashfs.Type]layer.Type{
	squashfs.Dir: layer.Dir, squashfs.Regular: layer.Regular, squashfs.Symlink: layer.Symlink,
	squashfs.Block: layer.Block, squashfs.Char: layer.Char, squashfs.Fifo: layer.Fifo,
}

// add adds what stands at p. Names come in order and each directory before what it holds: that is the order of layer.Less.
func (l *squashfsReader) add(p string, f *squashfs.File) error {
	kind, ok := layerTypes[f.Type]
	if !ok || p == "." {
		return nil // a socket means nothing without the process that listens
	}
	name := path.Base(p)
	switch {
	case strings.HasPrefix(name, layer.WhiteoutMeta):
		if kind == layer.Dir {
			return fs.SkipDir
		}
		return nil // aufs' own, in images that Docker of its days had a hand in
	case strings.HasPrefix(name, layer.WhiteoutPrefix):
		return fault.Hint(fmt.Errorf("%q: in a layer this name would mean that something is removed", p),
			"unpack the file with unsquashfs, remove what has such a name, and use dir:ROOT")
	}
	p = path.Join(l.dir, p)
	e := layer.Entry{
		Path: p, Type: kind, Mode: uint32(f.Mode), UID: int(f.UID), GID: int(f.GID), ModTime: f.ModTime,
		Link: f.Target, Major: f.Major, Minor: f.Minor,
	}
	if kind == layer.Regular && f.Links > 1 {
		if first, ok := l.first[f.Number]; ok {
			e.Type, e.Link = layer.HardLink, first
			return l.w.Add(e, nil)
		}
		l.first[f.Number] = p
	}
	xattrs, err := f.Xattrs()
	if err != nil {
		return fmt.Errorf("%q: %w", p, err)
	}
	e.Xattrs = imageXattrs(xattrs)
	if kind != layer.Regular {
		return l.w.Add(e, nil)
	}
	if l.left -= f.Size; l.left < 0 {
		return fmt.Errorf("%q: its files are larger than a squashfs of this size can honestly hold", p)
	}
	e.Size = f.Size
	return l.w.Add(e, func() (io.ReadCloser, error) { return openAhead(f.Content()), nil })
}

// worthAhead is the size in bytes from which a file is decompressed by several goroutines while it is read.
const worthAhead = 1 << 20

// openAhead reads a file, a large one by the parallel decompression that WriteTo brings.
func openAhead(c *squashfs.Content) io.ReadCloser {
	if c.Size() < worthAhead {
		return io.NopCloser(c)
	}
	r, w := io.Pipe()
	a := &aheadReader{PipeReader: r, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		_, err := c.WriteTo(w)
		w.CloseWithError(err)
	}()
	return a
}

type aheadReader struct {
	*io.PipeReader
	done chan struct{}
}

// Close returns when nothing reads the squashfs any more.
func (a *aheadReader) Close() error {
	err := a.PipeReader.Close()
	<-a.done
	return err
}

// imageXattrs leaves of a file's extended attributes those that belong into an image, as importing a directory does:
// capabilities, and what users set. What overlay notes for itself could lead a mount astray.
func imageXattrs(all map[string]string) map[string]string {
	var kept map[string]string
	for k, v := range all {
		if k != "security.capability" && (!strings.HasPrefix(k, "user.") || strings.HasPrefix(k, "user.overlay.")) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[k] = v
	}
	return kept
}
