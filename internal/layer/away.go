package layer

import (
	"errors"
	"fmt"
	"io/fs"

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
	ix.from = &awayBlob{storedBlob{st, d.Digest}, bring}
	return ix, nil
}

// awayBlob is a layer that is brought into the store when it is wanted.
type awayBlob struct {
	storedBlob
	bring func() error
}

func (b *awayBlob) open() (blob, error) {
	f, err := b.storedBlob.open()
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := b.bring(); err != nil {
		return nil, err
	}
	return b.storedBlob.open()
}
