package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Visitor is called for an entry of a layer, as [Source] says. open gives the content of a regular file, once.
type Visitor = func(e IndexEntry, open func() (io.ReadCloser, error)) error

// forward is an uncompressed tar that is read from front to back.
type forward interface {
	io.Reader
	// skip passes over n bytes, at little cost. It need not notice that there are fewer: the next Read does.
	skip(n int64) error
}

// visitError is what a visitor returned, on its way to whoever passed the visitor: no word of ours explains it.
type visitError struct{ error }

func (e visitError) Unwrap() error { return e.error }

// explain says what was done when err came up, unless that is a visitor's.
func explain(doing string, err error) error {
	var v visitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &v):
		return v.error
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// show calls visit for an entry with the given content, which is readable until visit returns.
func show(from backing, e IndexEntry, visit Visitor, content func() (io.Reader, error)) error {
	var given *lent
	err := visit(e, func() (io.ReadCloser, error) {
		if e.Type != Regular {
			return nil, fmt.Errorf("open %s: it is not a regular file", quotePath(e.Path))
		}
		if given != nil {
			return nil, fmt.Errorf("open %s: it can be read only once", quotePath(e.Path))
		}
		given = &lent{from: from, path: e.Path}
		r, err := content()
		if err != nil {
			return nil, given.explain(err)
		}
		given.r = r
		return given, nil
	})
	if given != nil {
		given.r = nil
	}
	if err != nil {
		return visitError{err}
	}
	return nil
}

// lent is the content of the entry that is being visited.
type lent struct {
	r    io.Reader // nil when the visit is over
	from backing
	path string
}

func (l *lent) Read(p []byte) (int, error) {
	if l.r == nil {
		return 0, os.ErrClosed
	}
	n, err := l.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = l.explain(err)
	}
	return n, err
}

func (l *lent) explain(err error) error {
	return fmt.Errorf("read %s of %s: %w", quotePath(l.path), l.from, err)
}

func (l *lent) Close() error {
	l.r = nil
	return nil
}

// readEntries reads a tar to its end and shows each entry to visit, unless that is nil.
func readEntries(ctx context.Context, from backing, tr *tarReader, visit Visitor) ([]IndexEntry, error) {
	var entries []IndexEntry
	for {
		e, err := tr.next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
		if visit == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := show(from, e, visit, func() (io.Reader, error) { return tr, nil }); err != nil {
			return nil, err
		}
	}
}

// visit shows the entries of a layer whose index is known, and reads their contents from front to back.
func (ix *Index) visit(ctx context.Context, visit Visitor) error {
	w := indexWalk{ix: ix, ctx: ctx}
	defer w.close()
	for i := range ix.Entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := ix.Entries[i]
		if err := show(ix.from, e, visit, func() (io.Reader, error) { return w.content(e) }); err != nil {
			return err
		}
	}
	return nil
}

// indexWalk is where the reading of contents stands. Nothing is opened before a content is wanted.
type indexWalk struct {
	ix  *Index
	ctx context.Context
	tar interface {
		forward
		io.Closer
	}
	pos int64

	// A run of files with holes: the place of the first header, how many of them were entered, and what unfolds them.
	runAt   int64
	runLen  int
	unfolds *tarReader
}

func (w *indexWalk) close() {
	if w.tar != nil {
		w.tar.Close()
	}
}

func (w *indexWalk) Read(p []byte) (int, error) {
	n, err := w.tar.Read(p)
	w.pos += int64(n)
	return n, err
}

func (w *indexWalk) skip(n int64) error {
	w.pos += n
	return w.tar.skip(n)
}

func (w *indexWalk) content(e IndexEntry) (io.Reader, error) {
	if e.Size == 0 {
		return io.LimitReader(w, 0), nil
	}
	if w.tar == nil {
		var err error
		if w.tar, err = w.ix.readForward(w.ctx); err != nil {
			return nil, err
		}
	}
	if e.Sparse > 0 {
		return w.unfold(e)
	}
	w.unfolds = nil
	if e.Offset > w.ix.RawSize-e.Size {
		return nil, errBeyondEnd
	}
	return &announced{w, e.Size}, w.moveTo(e.Offset)
}

// moveTo goes forward to an offset.
func (w *indexWalk) moveTo(at int64) error {
	if at < w.pos {
		return errors.New("the layer index is damaged: its entries are not in the order of the tar")
	}
	return w.skip(at - w.pos)
}

// unfold reads a file with holes. The tar reader that has unfolded the one before it goes on.
func (w *indexWalk) unfold(e IndexEntry) (io.Reader, error) {
	if w.unfolds == nil || w.runAt != e.Offset {
		if err := w.moveTo(e.Offset); err != nil {
			return nil, err
		}
		w.unfolds, w.runAt, w.runLen = newTarReader(w), e.Offset, 0
	}
	for w.runLen < e.Sparse {
		if _, err := w.unfolds.next(); err != nil {
			return nil, unexpected(err)
		}
		w.runLen++
	}
	return &announced{w.unfolds, e.Size}, nil
}

// announced reads as many bytes as were announced.
type announced struct {
	r    io.Reader
	left int64
}

func (a *announced) Read(p []byte) (int, error) {
	if a.left == 0 {
		return 0, io.EOF
	}
	n, err := a.r.Read(p[:min(int64(len(p)), a.left)])
	a.left -= int64(n)
	if a.left > 0 && errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// readForward starts to read the uncompressed tar from its beginning.
func (ix *Index) readForward(ctx context.Context) (interface {
	forward
	io.Closer
}, error,
) {
	b, err := ix.from.open()
	if err != nil {
		return nil, err
	}
	switch {
	case ix.format == formatTar:
		return readInPlace(b), nil
	case ix.chunks != nil:
		return newChunkAhead(ix, b), nil
	}
	tar, err := decompressAhead(ctx, b, nil)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return closesToo{tar, b}, nil
}

// closesToo is an aheadTar together with what it reads.
type closesToo struct {
	*aheadTar
	b io.Closer
}

func (c closesToo) Close() error { return errors.Join(c.aheadTar.Close(), c.b.Close()) }
