package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/host"
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
	return readOutline(ctx, st, img, "read image")
}

// readOutline does so. Errors begin with what it is done for.
func readOutline(ctx context.Context, st *store.Store, img v1.Image, what string) (*Outline, error) {
	manifest, err := img.RawManifest()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
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
		return nil, fmt.Errorf("%s %s: %w", what, digest.Short(), err)
	}
	return o, nil
}

// Follower is a layer that can put itself into the store, and be read as it arrives: one of a registry, which knows how to resume a
// download. read, unless it is nil, is called when the layer begins to arrive, if it does, and again when it begins anew. It returns
// at once, and sees to it that r is closed. r gives io.EOF only when the layer is in the store, complete and right.
type Follower interface {
	Follow(ctx context.Context, read func(r io.ReadCloser)) error
}

// Look is called when the reading of a layer begins, 0 being the lowest, and returns what is to be called for its entries as
// [layer.Source] does. It may begin again, when bytes have turned out wrong: then what was seen before is not to be believed.
type Look func(number int) layer.Visitor

// maxBrought is how many layers are on their way at once. Whoever brings them may allow fewer.
const maxBrought = 8

// What a layer on its way holds, in bytes: its part of the download, what is decompressed ahead, and the window of zstd. All together take
// at most one part in broughtShare of the memory that there is.
const (
	broughtMemory = 16 << 20
	broughtShare  = 8
)

// broughtAtOnce says how many layers are on their way at once where so many bytes may be used.
func broughtAtOnce(available int64) int {
	return int(min(maxBrought, max(2, available/broughtShare/broughtMemory)))
}

// Tree merges the layers, and brings those of which the store does not know what they hold. These are read from beginning
// to end as they arrive, side by side, and shown to look, unless that is nil. Others are brought while ctx lasts, when a
// content in them is opened.
func (o *Outline) Tree(ctx context.Context, look Look) (*Tree, error) {
	indexes, err := o.indexes(ctx, look)
	if err != nil {
		return nil, err
	}
	return mergeIndexes(indexes, o.Image.Layers)
}

// Indexes says what each layer holds, lowest first. Layers of which the store knows it are not brought.
func (o *Outline) Indexes(ctx context.Context) ([]*layer.Index, error) { return o.indexes(ctx, nil) }

func (o *Outline) indexes(ctx context.Context, look Look) ([]*layer.Index, error) {
	if look == nil {
		look = func(int) layer.Visitor { return nil }
	}
	indexes := make([]*layer.Index, len(o.Image.Layers))
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(broughtAtOnce(host.AvailableMemory().Available))
	for i, d := range o.Image.Layers {
		// What is opened in the tree comes after the group has ended.
		ix, err := layer.KnownIndex(o.st, d, o.bringer(ctx, i, nil))
		if err != nil {
			return nil, errors.Join(err, group.Wait())
		}
		if ix != nil {
			indexes[i] = ix
			continue
		}
		group.Go(func() (err error) {
			if indexes[i], err = o.follow(working, i, look); err != nil || indexes[i] != nil {
				return err
			}
			if err = o.bringer(working, i, nil)(); err != nil {
				return err
			}
			indexes[i], err = o.read(working, i, look)
			return err
		})
	}
	return indexes, group.Wait()
}

// Bring sees to it that a layer, 0 being the lowest, is in the store.
func (o *Outline) Bring(ctx context.Context, number int) error { return o.bringer(ctx, number, nil)() }

// read reads a layer that is in the store.
func (o *Outline) read(ctx context.Context, number int, look Look) (*layer.Index, error) {
	d := o.Image.Layers[number]
	visit := look(number)
	if visit == nil {
		return layer.OpenIndex(ctx, o.st, d)
	}
	l := layer.Stored(o.st, d)
	if err := l.Walk(ctx, visit); err != nil {
		return nil, err
	}
	return l.Index(ctx)
}

// follow brings a layer and reads it as it arrives. The index is nil when that cannot be done, or did not succeed: then the
// layer is to be read where it is.
func (o *Outline) follow(ctx context.Context, number int, look Look) (*layer.Index, error) {
	d := o.Image.Layers[number]
	l, err := o.img.LayerByDigest(o.Image.Manifest.Layers[number].Digest)
	if err != nil {
		return nil, nil //nolint:nilerr // bringing it fails in the same way
	}
	f, ok := l.(Follower)
	if !ok || o.st.HasBlob(d.Digest) {
		return nil, nil
	}
	var ix *layer.Index
	reading := make(chan struct{})
	close(reading)
	err = f.Follow(ctx, func(r io.ReadCloser) {
		before, now := reading, make(chan struct{})
		reading = now
		go func() {
			defer close(now)
			defer r.Close()
			<-before
			// When it cannot be read, reading it once more tells why.
			ix, _ = layer.Arriving(ctx, o.st, d, r, look(number))
		}()
	})
	<-reading
	if err != nil {
		return nil, o.failed(number, err)
	}
	return ix, ctx.Err()
}

// bringer returns what brings a layer into the store, with read as [Follower] says. What fails once is not tried again: thousands of
// files may be asked for.
func (o *Outline) bringer(ctx context.Context, number int, read func(io.ReadCloser)) func() error {
	return sync.OnceValue(func() error {
		d := o.Image.Layers[number]
		var err error
		if !o.st.HasBlob(d.Digest) {
			err = importLayer(ctx, o.st, o.img, o.Image.Manifest.Layers[number], read)
		}
		if err == nil {
			err = checkSize(o.st, d)
		}
		if err != nil {
			err = o.failed(number, err)
		}
		return err
	})
}

// failed notes that a layer does not come.
func (o *Outline) failed(number int, err error) error {
	err = fmt.Errorf("layer %d: %w", number+1, err)
	o.fail(err)
	return err
}

// fail notes why layers do not come.
func (o *Outline) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
}

// Err returns why a layer did not come. What was found out about the image is then not to be believed: to whoever reads them,
// files that cannot be read are damaged ones.
func (o *Outline) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
