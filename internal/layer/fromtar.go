package layer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/store"
)

// FromTar makes a layer of the uncompressed tar of a root file system: the same files in the order of [Less], without
// owner names, times later than o.ModTime set to that, and directories that the tar implies added. Of several entries
// with one path the last counts, as when extracting. Memory does not depend on the size of the contents: they wait in a
// temporary file of the store, unless r can be read at random.
func FromTar(ctx context.Context, st *store.Store, r io.Reader, o Options) (Descriptor, error) {
	d, err := fromTar(ctx, st, r, o)
	if err != nil {
		return Descriptor{}, fmt.Errorf("make a layer of a tar: %w", err)
	}
	return d, nil
}

func fromTar(ctx context.Context, st *store.Store, r io.Reader, o Options) (Descriptor, error) {
	w, err := NewWriter(ctx, st, o)
	if err != nil {
		return Descriptor{}, err
	}
	defer w.Abort()
	s, err := newSpool(st, r)
	if err != nil {
		return Descriptor{}, err
	}
	defer s.file.Close()
	g := gathering{latest: map[string]int{}, clamp: w.opts.ModTime, spool: s}
	if err := g.read(ctx, r); err != nil {
		return Descriptor{}, err
	}
	if err := g.write(w); err != nil {
		return Descriptor{}, err
	}
	return w.Close()
}

// gathering is the tar's entries before they are in order.
type gathering struct {
	entries []gathered
	latest  map[string]int // index into entries
	clamp   time.Time
	spool   *spool
}

// gathered is one entry. Its index says when it came.
type gathered struct {
	Entry
	content place
	inode   int // for a regular file: index of the entry that brought its content
}

func (g *gathering) read(ctx context.Context, r io.Reader) error {
	ahead := newAhead(ctxio.Reader(ctx, r), nil)
	defer ahead.Close()
	tr := newTarReader(ahead)
	tr.strict = true
	if err := tr.each(func(e IndexEntry) error { return g.add(e, tr) }); err != nil {
		return err
	}
	if tr.cut() {
		return fmt.Errorf("it ends after %d entries without an end marker: it was cut off, or is no tar", len(g.entries))
	}
	// Whoever writes into a pipe would be killed by a reader who leaves before the padding.
	if _, err := tr.drain(); err != nil {
		return err
	}
	return g.spool.flush()
}

func (g *gathering) add(e IndexEntry, content io.Reader) error {
	n := gathered{Entry: e.Entry, inode: len(g.entries)}
	n.ModTime = clamp(n.ModTime, g.clamp)
	switch e.Type {
	case Regular:
		var err error
		if n.content, err = g.spool.keep(e, content); err != nil {
			return err
		}
	case HardLink:
		i, ok := g.latest[e.Link]
		if !ok || g.entries[i].Type != Regular {
			return fmt.Errorf("it is a hard link to %s, which is no earlier regular file", quotePath(e.Link))
		}
		n = g.entries[i]
		n.Path = e.Path
	}
	g.latest[e.Path] = len(g.entries)
	g.entries = append(g.entries, n)
	return nil
}

// write adds the entries to the layer.
func (g *gathering) write(w *Writer) error {
	order, err := g.order()
	if err != nil {
		return err
	}
	first := map[int]string{} // the smallest path of each file
	for _, i := range order {
		e := g.entries[i].Entry
		if e.Type != Regular {
			if err := w.Add(e, nil); err != nil {
				return err
			}
			continue
		}
		file := g.entries[i].inode
		if target, ok := first[file]; ok {
			e.Type, e.Link, e.Size, e.Xattrs = HardLink, target, 0, nil
			if err := w.Add(e, nil); err != nil {
				return err
			}
			continue
		}
		first[file] = e.Path
		if err := w.Add(e, g.spool.opener(g.entries[i].content)); err != nil {
			return err
		}
	}
	return nil
}

// order returns the entries that count, sorted, as indexes.
func (g *gathering) order() ([]int, error) {
	g.addImplied()
	order := make([]int, 0, len(g.latest))
	for _, i := range g.latest {
		order = append(order, i)
	}
	path := func(i int) string { return g.entries[i].Path }
	slices.SortFunc(order, func(a, b int) int {
		if Less(path(a), path(b)) {
			return -1
		}
		return 1
	})
	kept := order[:0]
	for _, i := range order {
		if len(kept) > 0 {
			// Everything below a path follows it directly.
			last := kept[len(kept)-1]
			if g.entries[last].Type != Dir && isBelow(path(i), path(last)) {
				if last > i {
					continue // a directory that was replaced takes along what it held
				}
				return nil, fmt.Errorf("entry %s lies below %s, which is not a directory", quotePath(path(i)), quotePath(path(last)))
			}
		}
		kept = append(kept, i)
	}
	return kept, nil
}

// addImplied adds the directories that lie above an entry and have none themselves.
func (g *gathering) addImplied() {
	for i := range len(g.entries) {
		for _, dir := range Parents(g.entries[i].Path) {
			if _, ok := g.latest[dir]; ok {
				continue
			}
			g.latest[dir] = len(g.entries)
			g.entries = append(g.entries, gathered{Entry: Entry{Path: dir, Type: Dir, Mode: 0o755}})
		}
	}
}

func clamp(t, latest time.Time) time.Time {
	if t.After(latest) {
		return latest
	}
	return t
}

func unixTime(t unix.Timespec) time.Time { return time.Unix(t.Unix()) }

// spool keeps the contents of files until they are wanted in another order.
type spool struct {
	file *os.File
	out  *bufio.Writer
	size int64

	source io.ReaderAt // the tar itself, when it can be read at random, else nil
	start  int64       // where in source the tar begins
}

// place is where a content lies.
type place struct {
	in       io.ReaderAt
	at, size int64
}

func newSpool(st *store.Store, r io.Reader) (*spool, error) {
	f, err := st.TempFile()
	if err != nil {
		return nil, err
	}
	s := &spool{file: f, out: bufio.NewWriterSize(f, 1<<20)}
	if ra, ok := r.(interface {
		io.ReaderAt
		io.Seeker
	}); ok {
		// A pipe is an *os.File too, but one that cannot say where it stands.
		if at, err := ra.Seek(0, io.SeekCurrent); err == nil {
			s.source, s.start = ra, at
		}
	}
	return s, nil
}

// keep notes where content lies, after copying it unless it can be had from the source again.
func (s *spool) keep(e IndexEntry, content io.Reader) (place, error) {
	if s.source != nil && e.Sparse == 0 {
		return place{s.source, s.start + e.Offset, e.Size}, nil
	}
	n, err := io.Copy(s.out, content)
	if err == nil && n != e.Size {
		err = io.ErrUnexpectedEOF
	}
	p := place{s.file, s.size, e.Size}
	s.size += n
	return p, err
}

func (s *spool) flush() error { return s.out.Flush() }

func (s *spool) opener(p place) Content {
	return func() (io.ReadCloser, error) {
		return io.NopCloser(&sectionReader{r: p.in, at: p.at, left: p.size}), nil
	}
}
