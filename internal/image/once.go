package image

import (
	"context"

	"sconce.dev/sconce/internal/store"
)

// Once returns the image that do makes, made once under o's kind and key; see [store.Once]. found says that it was there.
func Once(ctx context.Context, st *store.Store, o store.Once[store.Digest], do func(ctx context.Context) (*Image, error)) (im *Image, found bool, err error) {
	o.Refs = func(store.Digest) []store.Digest { return im.Refs() }
	digest, found, err := o.Do(ctx, st, func(ctx context.Context) (store.Digest, error) {
		if im, err = do(ctx); err != nil {
			return "", err
		}
		return im.Digest, nil
	})
	if err != nil || !found {
		return im, false, err
	}
	im, err = Load(ctx, st, digest)
	return im, true, err
}
