package image

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Outline is an image of which only the manifest and the config must be in the store. A layer is brought when something in
// it is wanted that the store does not know.
type Outline struct {
	Image *Image // its layers may not be in the store

	st  *store.Store
	img v1.Image

	mu  sync.Mutex
	err error // the first of those that kept a layer from coming
}

// ReadOutline copies the manifest and the config of an image into the store.
func ReadOutline(ctx context.Context, st *store.Store, img v1.Image) (*Outline, error) {
	manifest, err := img.RawManifest()
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	digest := store.DigestOf(manifest)
	o := &Outline{st: st, img: img}
	if _, err = importDocuments(st, img, manifest); err == nil {
		_, err = st.PutBlob(manifest)
	}
	if err == nil {
		o.Image, err = describe(st, digest)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("read image %s: %w", digest.Short(), err)
	}
	return o, nil
}

// Visit is called for an entry of the layer with a number, 0 the lowest, as [layer.Source] calls it.
type Visit func(number int, e layer.IndexEntry, open func() (io.ReadCloser, error)) error

// maxBrought is how many layers are on their way at once. Whoever brings them may allow fewer.
const maxBrought = 8

// Tree merges the layers, and brings those of which the store does not know what they hold. These are read from beginning
// to end as soon as they are there, and visit, unless it is nil, is called for their entries: side by side for several
// layers, in the order of the tar for each. Others are brought while ctx lasts, when a content in them is opened.
func (o *Outline) Tree(ctx context.Context, visit Visit) (*Tree, error) {
	indexes := make([]*layer.Index, len(o.Image.Layers))
	reading := make(chan struct{}, runtime.GOMAXPROCS(0))
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(maxBrought)
	for i, d := range o.Image.Layers {
		// What is opened in the tree comes after the group has ended.
		ix, err := layer.KnownIndex(o.st, d, o.bringer(ctx, i))
		if err != nil {
			return nil, err
		}
		if ix != nil {
			indexes[i] = ix
			continue
		}
		group.Go(func() (err error) {
			if err = o.bringer(working, i)(); err != nil {
				return err
			}
			reading <- struct{}{}
			defer func() { <-reading }()
			indexes[i], err = o.read(working, i, visit)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return mergeIndexes(indexes, o.Image.Layers)
}

// read reads a layer that is in the store.
func (o *Outline) read(ctx context.Context, number int, visit Visit) (*layer.Index, error) {
	d := o.Image.Layers[number]
	if visit == nil {
		return layer.OpenIndex(ctx, o.st, d)
	}
	l := layer.Stored(o.st, d)
	err := l.Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error { return visit(number, e, open) })
	if err != nil {
		return nil, err
	}
	return l.Index(ctx)
}

// bringer returns what brings a layer into the store. What fails once is not tried again: thousands of files may be asked for.
func (o *Outline) bringer(ctx context.Context, number int) func() error {
	return sync.OnceValue(func() error {
		d := o.Image.Layers[number]
		var err error
		if !o.st.HasBlob(d.Digest) {
			err = importLayer(ctx, o.st, o.img, o.Image.Manifest.Layers[number])
		}
		if err == nil {
			err = checkSize(o.st, d)
		}
		if err == nil {
			return nil
		}
		err = fmt.Errorf("layer %d: %w", number+1, err)
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
		return err
	})
}

// Err returns why a layer did not come. What was found out about the image is then not to be believed: to whoever reads them,
// files that cannot be read are damaged ones.
func (o *Outline) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
