package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Change gives a regular file of a layer another content of the same size.
type Change struct {
	Entry   IndexEntry                    // not one that is stored with holes
	Content func(old io.Reader) io.Reader // the new content, which may be made of the old one while that is read
}

// Rewrite makes a layer like d with other contents in some files. Everything else of the tar is copied byte by byte: the order
// of the entries, their headers, whiteouts, links, and what no entry speaks of. The result depends on d, the changes and
// o.Compression alone.
//
// Without an o.Compression the layer is compressed as d is; with gzip, when d comes from elsewhere and is not compressed, or by
// xz. Chunks in which nothing changes are not compressed again.
func Rewrite(ctx context.Context, st *store.Store, d Descriptor, changes []Change, o Options) (Descriptor, error) {
	return rewriteLayer(ctx, st, d, func(ix *Index, task *progress.Task) (Descriptor, error) {
		return ix.rewrite(ctx, st, changes, o, task)
	})
}

// rewriteLayer opens the layer that how makes another one of, and tells how far that is.
func rewriteLayer(ctx context.Context, st *store.Store, d Descriptor, how func(*Index, *progress.Task) (Descriptor, error)) (Descriptor, error) {
	ix, err := OpenIndex(ctx, st, d)
	if err != nil {
		return Descriptor{}, err
	}
	task := progress.Begin(ctx, "rewrite", d.Digest.Short(), ix.RawSize)
	made, err := how(ix, task)
	if task.End(err) != nil {
		return Descriptor{}, fmt.Errorf("rewrite layer %s: %w", d.Digest.Short(), err)
	}
	return made, nil
}

func (ix *Index) rewrite(ctx context.Context, st *store.Store, changes []Change, o Options, task *progress.Task) (Descriptor, error) {
	return ix.rewriteWith(ctx, st, o, task, func(r *rewriting) ([]IndexEntry, error) { return ix.Entries, r.run(changes) })
}

// rewriteWith makes a layer of what run copies of this one. run returns its entries.
func (ix *Index) rewriteWith(ctx context.Context, st *store.Store, o Options, task *progress.Task, run func(*rewriting) ([]IndexEntry, error)) (Descriptor, error) {
	if o.Compression == "" {
		o.Compression = ix.compression()
	}
	w, err := NewWriter(ctx, st, o)
	if err != nil {
		return Descriptor{}, err
	}
	defer w.Abort()
	packed, err := ix.from.open()
	if err != nil {
		return Descriptor{}, err
	}
	defer packed.Close()
	tar, err := ix.readForward(ctx)
	if err != nil {
		return Descriptor{}, err
	}
	defer tar.Close()
	r := rewriting{ctx: ctx, ix: ix, w: w, tar: tar, packed: packed, task: task}
	entries, err := run(&r)
	if err != nil {
		return Descriptor{}, err
	}
	w.ended = true
	defer w.blob.Close()
	if err := errors.Join(w.chunks.close(), ctx.Err()); err != nil {
		return Descriptor{}, err
	}
	w.entries = entries
	return w.commit()
}

// compression is how a layer is compressed that takes the place of this one.
func (ix *Index) compression() Compression {
	switch {
	case ix.format == formatZstd:
		return Zstd
	case ix.format == formatTar && ix.chunks != nil:
		return None
	}
	return Gzip
}

// rewriting is the copying of a layer's tar.
type rewriting struct {
	ctx    context.Context // of the one call of Rewrite
	ix     *Index
	w      *Writer
	tar    io.Reader // the old one, at pos
	pos    int64
	packed io.ReaderAt // the old blob, open until the chunks are closed
	task   *progress.Task
}

func (r *rewriting) run(changes []Change) error {
	changes = slices.SortedFunc(slices.Values(changes), func(a, b Change) int { return cmp.Compare(a.Entry.Offset, b.Entry.Offset) })
	for _, c := range changes {
		e := c.Entry
		if e.Type != Regular || e.Sparse != 0 || e.Offset < r.pos || e.Size > r.ix.RawSize-e.Offset {
			return fmt.Errorf("%s: its content has no place of its own in the layer", quotePath(e.Path))
		}
		if err := r.copyTo(e.Offset); err != nil {
			return err
		}
		if err := r.change(c); err != nil {
			return fmt.Errorf("%s: %w", quotePath(e.Path), err)
		}
	}
	if err := r.copyTo(r.ix.RawSize); err != nil {
		return err
	}
	return atEnd(r.tar) // where checksums are compared
}

// copyTo copies what lies before an offset.
func (r *rewriting) copyTo(end int64) error {
	for r.pos < end {
		to, stream := r.spliceable(end)
		var err error
		if size := to - r.pos; stream.Open != nil {
			err = r.w.chunks.splice(r.ctx, r.old(size), size, stream, true)
		} else {
			err = r.w.chunks.readExactly(r.ctx, r.old(size), size)
		}
		if err != nil {
			return err
		}
		r.advance(to)
	}
	return nil
}

func (r *rewriting) change(c Change) error {
	old := r.old(c.Entry.Size)
	if err := r.w.chunks.readExactly(r.ctx, c.Content(old), c.Entry.Size); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, old); err != nil { // what the new content has no need of
		return err
	}
	r.advance(c.Entry.Offset + c.Entry.Size)
	return nil
}

func (r *rewriting) advance(to int64) {
	r.task.Add(to - r.pos)
	r.pos = to
}

// old reads the next bytes of the old tar.
func (r *rewriting) old(size int64) io.Reader { return &announced{r.tar, size} }

// spliceable returns how far to copy in one go, at most to end, and when these bytes are a chunk that can be passed on as it is, the
// chunk.
func (r *rewriting) spliceable(end int64) (int64, Deflated) {
	if r.ix.chunks == nil || r.ix.format == formatTar || r.ix.format != formatOf(r.w.opts.Compression) {
		return end, Deflated{}
	}
	number := r.ix.chunkAt(r.pos)
	if number < 0 {
		return end, Deflated{}
	}
	from, to := r.ix.chunks[number], r.ix.chunks[number+1]
	if r.pos != from.raw || to.raw > end {
		return min(end, to.raw), Deflated{}
	}
	size := to.blob - from.blob
	open := func() (io.Reader, error) { return io.NewSectionReader(r.packed, from.blob, size), nil }
	return to.raw, Deflated{Size: size, Open: open, stored: func() []seekPoint { return r.ix.keptPoints(number) }}
}
