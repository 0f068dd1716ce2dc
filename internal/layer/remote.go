package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// KnownIndex returns the index of a layer whose blob need not be in the store, or nil when the store does not know the
// index. bring is called when a content is wanted and the blob is not there: it puts the blob into the store, and may be
// called again, by several at once.
func KnownIndex(st *store.Store, d Descriptor, bring func() error) (*Index, error) {
	ix := loadIndex(st, d.Digest)
	if ix == nil {
		return nil, nil
	}
	if err := ix.promised(d); err != nil {
		return nil, fmt.Errorf("read layer %s: %w", d.Digest.Short(), err)
	}
	ix.from = &remoteBlob{storedBlob{st, d.Digest}, bring}
	return ix, nil
}

// Arriving returns the index of a layer that is read while it comes into the store: r gives io.EOF only when the blob is there,
// complete and right. The entries are shown to visit as [Source] does. What it saw and what is returned counts only when there
// is no error.
func Arriving(ctx context.Context, st *store.Store, d Descriptor, r io.Reader, visit Visitor) (*Index, error) {
	task := progress.Begin(ctx, "index", d.Digest.Short(), d.Size)
	from := storedBlob{st, d.Digest}
	r = ctxio.Reader(ctx, io.TeeReader(r, task))
	ix, err := scan(ctx, from, r, visit)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // what a decompressor leaves unread
	}
	if err == nil {
		err = ix.promised(d)
	}
	if err == nil {
		err = ix.record(st, d)
	}
	if task.End(err) != nil {
		return nil, explain("read layer "+d.Digest.Short(), err)
	}
	return ix, nil
}

// remoteBlob is a layer that is brought into the store when it is wanted.
type remoteBlob struct {
	storedBlob
	bring func() error
}

func (b *remoteBlob) open() (blob, error) {
	f, err := b.storedBlob.open()
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := b.bring(); err != nil {
		return nil, err
	}
	return b.storedBlob.open()
}
