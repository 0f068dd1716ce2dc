package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// blobs is where the blobs of an image come from.
type blobs interface {
	// bring brings a blob into the store, checked. follow, unless it is nil, is called as [image.Follower] says.
	bring(ctx context.Context, d v1.Descriptor, follow follow) error
}

// follow reads a blob as it arrives.
type follow = func(r io.ReadCloser)

// Limits on documents, in bytes.
const (
	maxManifest = registry.MaxManifest
	maxConfig   = 8 << 20
)

// lazyImage is an image whose manifest is known and whose blobs come when they are asked for. Everything passes through
// the store, so nothing is brought twice.
type lazyImage struct {
	ctx      context.Context // of the open: the methods of v1.Image take none
	st       *store.Store
	manifest []byte
	parsed   *v1.Manifest
	from     blobs
	config   func() ([]byte, error)
}

// lazyView is the whole of v1.Image: partial fills in what follows from the manifest and config.
type lazyView struct {
	v1.Image
	core *lazyImage
}

func newImage(ctx context.Context, st *store.Store, manifest []byte, from blobs) (v1.Image, error) {
	m := &v1.Manifest{}
	if err := json.Unmarshal(manifest, m); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if m.SchemaVersion != 2 {
		return nil, fmt.Errorf("read manifest: schema version %d is not 2", m.SchemaVersion)
	}
	l := &lazyImage{ctx: ctx, st: st, manifest: manifest, parsed: m, from: from}
	l.config = sync.OnceValues(func() ([]byte, error) { return readEnsured(ctx, st, from, m.Config, maxConfig) })
	img, err := partial.CompressedToImage(l)
	if err != nil {
		return nil, err
	}
	return &lazyView{Image: img, core: l}, nil
}

// readEnsured reads a small blob, after bringing it.
func readEnsured(ctx context.Context, st *store.Store, from blobs, d v1.Descriptor, limit int64) ([]byte, error) {
	digest, err := checkDescriptor(d)
	if err != nil {
		return nil, err
	}
	if d.Size > limit {
		return nil, fmt.Errorf("blob %s of %d bytes is larger than the %d expected", d.Digest, d.Size, limit)
	}
	if err := from.bring(ctx, d, nil); err != nil {
		return nil, err
	}
	return st.ReadBlob(digest, limit)
}

// checkDescriptor refuses what cannot be a blob of an image. No blob is empty: the smallest, a config, is "{}".
func checkDescriptor(d v1.Descriptor) (store.Digest, error) {
	digest, err := store.ParseDigest(d.Digest.String())
	if err == nil && d.Size <= 0 {
		err = fmt.Errorf("blob %s: the manifest gives it %d bytes", d.Digest, d.Size)
	}
	return digest, err
}

func (l *lazyImage) RawManifest() ([]byte, error)   { return l.manifest, nil }
func (l *lazyImage) RawConfigFile() ([]byte, error) { return l.config() }

func (l *lazyImage) MediaType() (types.MediaType, error) {
	if l.parsed.MediaType == "" {
		return types.OCIManifestSchema1, nil
	}
	return l.parsed.MediaType, nil
}

func (l *lazyImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for i, d := range l.parsed.Layers {
		if d.Digest == h {
			return &lazyLayer{image: l, desc: d, number: i}, nil
		}
	}
	return nil, fmt.Errorf("the image has no layer %s", h)
}

// Layers implements v1.Image.
func (v *lazyView) Layers() ([]v1.Layer, error) {
	var out []v1.Layer
	for i, d := range v.core.parsed.Layers {
		out = append(out, &lazyLayer{image: v.core, desc: d, number: i})
	}
	return out, nil
}

// LayerByDigest implements v1.Image. The layer can put itself into the store.
func (v *lazyView) LayerByDigest(h v1.Hash) (v1.Layer, error) {
	if h == v.core.parsed.Config.Digest {
		return partial.ConfigLayer(v)
	}
	l, err := v.core.LayerByDigest(h)
	if err != nil {
		return nil, err
	}
	return l.(*lazyLayer), nil
}

// LayerByDiffID implements v1.Image.
func (v *lazyView) LayerByDiffID(h v1.Hash) (v1.Layer, error) {
	d, err := partial.DiffIDToBlob(v, h)
	if err != nil {
		return nil, err
	}
	return v.LayerByDigest(d)
}

// lazyLayer is one layer.
type lazyLayer struct {
	image  *lazyImage
	desc   v1.Descriptor
	number int
}

func (l *lazyLayer) Digest() (v1.Hash, error)            { return l.desc.Digest, nil }
func (l *lazyLayer) Size() (int64, error)                { return l.desc.Size, nil }
func (l *lazyLayer) MediaType() (types.MediaType, error) { return l.desc.MediaType, nil }
func (l *lazyLayer) Descriptor() (*v1.Descriptor, error) { return &l.desc, nil }

// Follow brings the layer into the store, as [image.Follower] says.
func (l *lazyLayer) Follow(ctx context.Context, read func(io.ReadCloser)) error {
	if _, err := checkDescriptor(l.desc); err != nil {
		return err
	}
	return l.image.from.bring(ctx, l.desc, read)
}

// Compressed implements v1.Layer.
func (l *lazyLayer) Compressed() (io.ReadCloser, error) {
	if err := l.Follow(l.image.ctx, nil); err != nil {
		return nil, err
	}
	return l.image.st.OpenBlob(store.Digest(l.desc.Digest.String()))
}

// Uncompressed implements v1.Layer.
func (l *lazyLayer) Uncompressed() (io.ReadCloser, error) {
	f, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	r, err := layer.Decompress(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &bothCloser{r, f}, nil
}

// DiffID implements v1.Layer.
func (l *lazyLayer) DiffID() (v1.Hash, error) {
	raw, err := l.image.config()
	if err != nil {
		return v1.Hash{}, err
	}
	var config v1.ConfigFile
	if err := json.Unmarshal(raw, &config); err != nil {
		return v1.Hash{}, fmt.Errorf("read config: %w", err)
	}
	if l.number >= len(config.RootFS.DiffIDs) {
		return v1.Hash{}, fmt.Errorf("the config names %d layers, the manifest %d", len(config.RootFS.DiffIDs), len(l.image.parsed.Layers))
	}
	return config.RootFS.DiffIDs[l.number], nil
}

type bothCloser struct {
	io.ReadCloser
	under io.Closer
}

func (b *bothCloser) Close() error { return errors.Join(b.ReadCloser.Close(), b.under.Close()) }

// copyBlob puts the blob that open gives into the store, once however many ask for it, and checks it. follow may be nil.
func copyBlob(ctx context.Context, st *store.Store, d v1.Descriptor, follow follow, open func() (io.ReadCloser, error)) error {
	digest, err := checkDescriptor(d)
	if err != nil || st.HasBlob(digest) {
		return err
	}
	lock, err := st.LockBlob(ctx, "blob "+string(digest), "brings layer "+digest.Short())
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if st.HasBlob(digest) { // another was faster
		return nil
	}
	if d.Size < worthATask {
		return writeBlob(ctx, st, digest, d.Size, nil, open, io.Discard)
	}
	task := progress.Begin(ctx, "copy", digest.Short(), d.Size)
	return task.End(writeBlob(ctx, st, digest, d.Size, follow, open, task))
}

// worthATask is the size in bytes from which a copy on this machine takes long enough to show, and to be followed.
const worthATask = 1 << 20

func writeBlob(ctx context.Context, st *store.Store, digest store.Digest, size int64, follow follow, open func() (io.ReadCloser, error), progress io.Writer) error {
	rc, err := open()
	if err != nil {
		return fmt.Errorf("blob %s: %w", digest, err)
	}
	defer rc.Close()
	w, err := st.NewBlob()
	if err != nil {
		return err
	}
	defer w.Close()
	if follow != nil {
		r, err := w.Follow()
		if err != nil {
			return fmt.Errorf("blob %s: %w", digest, err)
		}
		follow(r)
	}
	n, err := io.Copy(io.MultiWriter(w, progress), io.LimitReader(ctxio.Reader(ctx, rc), size+1))
	switch {
	case err != nil:
		return fmt.Errorf("blob %s: %w", digest, err)
	case n < size:
		return fmt.Errorf("blob %s ends after %d of %d bytes: %w", digest, n, size, io.ErrUnexpectedEOF)
	case n > size:
		return fmt.Errorf("blob %s is longer than the %d bytes the manifest gives it", digest, size)
	}
	_, err = w.Commit(digest)
	return err
}
