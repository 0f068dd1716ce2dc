package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// Import copies an image into the store: the manifest and config as they are, and every layer that is not there yet,
// at most jobs at a time, each checked against its digest.
func Import(ctx context.Context, st *store.Store, img v1.Image, jobs int) (*Image, error) {
	manifest, err := img.RawManifest()
	if err != nil {
		return nil, fmt.Errorf("import image: %w", err)
	}
	digest := store.DigestOf(manifest)
	if err := importBlobs(ctx, st, img, manifest, jobs); err != nil {
		return nil, fmt.Errorf("import image %s: %w", digest.Short(), err)
	}
	return Load(ctx, st, digest)
}

func importBlobs(ctx context.Context, st *store.Store, img v1.Image, manifest []byte, jobs int) error {
	m, err := importDocuments(st, img, manifest)
	if err != nil {
		return err
	}
	if err := fetch.CheckRoom(st, blobsOf(m)); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(jobs, 1))
	seen := map[v1.Hash]bool{}
	for i, d := range m.Layers {
		if seen[d.Digest] || st.HasBlob(blobDigest(d)) {
			continue
		}
		seen[d.Digest] = true
		group.Go(func() error {
			if err := importLayer(ctx, st, img, d, nil); err != nil {
				return fmt.Errorf("layer %d: %w", i+1, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	_, err = st.PutBlob(manifest)
	return err
}

// importDocuments copies the config of an image that can be had, and reads its manifest.
func importDocuments(st *store.Store, img v1.Image, manifest []byte) (v1.Manifest, error) {
	if len(manifest) > maxManifest {
		return v1.Manifest{}, fmt.Errorf("the manifest has %d bytes; at most %d are accepted", len(manifest), maxManifest)
	}
	m, err := parseManifest(manifest)
	if err != nil {
		return m, err
	}
	// Layers that cannot be had are found before others are downloaded.
	for i, d := range m.Layers {
		if err := checkLayerType(d); err != nil {
			return m, fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	if err := importConfig(st, img, m.Config); err != nil {
		return m, fmt.Errorf("config: %w", err)
	}
	return m, nil
}

func importConfig(st *store.Store, img v1.Image, d v1.Descriptor) error {
	if st.HasBlob(blobDigest(d)) {
		return nil
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	if got := store.DigestOf(config); got != blobDigest(d) {
		return &store.MismatchError{Want: blobDigest(d), Got: got, Size: int64(len(config))}
	}
	return copyBlob(st, d, bytes.NewReader(config))
}

// importLayer brings a layer into the store. A [Follower] calls read, which may be nil.
func importLayer(ctx context.Context, st *store.Store, img v1.Image, d v1.Descriptor, read func(io.ReadCloser)) error {
	l, err := img.LayerByDigest(d.Digest)
	if err != nil {
		return err
	}
	if f, ok := l.(Follower); ok {
		if err := f.Follow(ctx, read); err != nil {
			return err
		}
		if !st.HasBlob(blobDigest(d)) {
			return fmt.Errorf("blob %s did not arrive in the store", d.Digest)
		}
		return nil
	}
	lock, err := st.LockBlob(ctx, "blob "+d.Digest.String(), "brings layer "+blobDigest(d).Short())
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if st.HasBlob(blobDigest(d)) { // another process was faster
		return nil
	}
	task := progress.Begin(ctx, "copy", blobDigest(d).Short(), d.Size)
	return task.End(copyLayer(ctx, st, l, d, task))
}

func copyLayer(ctx context.Context, st *store.Store, l v1.Layer, d v1.Descriptor, progress io.Writer) error {
	rc, err := l.Compressed()
	if err != nil {
		return err
	}
	defer rc.Close()
	return copyBlob(st, d, ctxio.Reader(ctx, io.TeeReader(rc, progress)))
}

// copyBlob stores the blob d, which r must give exactly.
func copyBlob(st *store.Store, d v1.Descriptor, r io.Reader) error {
	w, err := st.NewBlob()
	if err != nil {
		return err
	}
	defer w.Close()
	n, err := io.Copy(w, io.LimitReader(r, d.Size+1))
	if err != nil {
		return err
	}
	if n > d.Size {
		return fmt.Errorf("blob %s is longer than the %d bytes its descriptor says", d.Digest, d.Size)
	}
	_, err = w.Commit(blobDigest(d))
	var mismatch *store.MismatchError
	if errors.As(err, &mismatch) && n < d.Size {
		return fmt.Errorf("blob %s ends after %d of %d bytes: %w", d.Digest, n, d.Size, io.ErrUnexpectedEOF)
	}
	return err
}
