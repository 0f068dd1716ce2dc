package image

import (
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// V1 returns a view of the image for go-containerregistry. Layers are read from the store when somebody reads them.
func (im *Image) V1(st *store.Store) (v1.Image, error) {
	manifest, err := st.ReadBlob(im.Digest, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("read image %s: %w", im.Digest.Short(), err)
	}
	config, err := st.ReadBlob(blobDigest(im.Manifest.Config), maxConfig)
	if err != nil {
		return nil, fmt.Errorf("read image %s: %w", im.Digest.Short(), err)
	}
	return partial.CompressedToImage(&view{im: im, st: st, manifest: manifest, config: config})
}

// view is what go-containerregistry needs to make the rest of an image.
type view struct {
	im               *Image
	st               *store.Store
	manifest, config []byte
}

func (v *view) RawManifest() ([]byte, error)        { return v.manifest, nil }
func (v *view) RawConfigFile() ([]byte, error)      { return v.config, nil }
func (v *view) MediaType() (types.MediaType, error) { return types.MediaType(v.im.MediaType), nil }
func (v *view) Size() (int64, error)                { return int64(len(v.manifest)), nil }
func (v *view) Digest() (v1.Hash, error)            { return hash(v.im.Digest), nil }
func (v *view) ConfigName() (v1.Hash, error)        { return v.im.Manifest.Config.Digest, nil }
func (v *view) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range v.im.Layers {
		if hash(d.Digest) == h {
			return viewLayer{d, v.st}, nil
		}
	}
	if c := v.im.Manifest.Config; c.Digest == h {
		return viewLayer{layer.Descriptor{Digest: blobDigest(c), Size: c.Size, MediaType: string(c.MediaType)}, v.st}, nil
	}
	return nil, fmt.Errorf("image %s has no blob %s", v.im.Digest.Short(), h)
}

// viewLayer is one blob of an image.
type viewLayer struct {
	d  layer.Descriptor
	st *store.Store
}

func (l viewLayer) Digest() (v1.Hash, error)            { return hash(l.d.Digest), nil }
func (l viewLayer) DiffID() (v1.Hash, error)            { return hash(l.d.DiffID), nil }
func (l viewLayer) Size() (int64, error)                { return l.d.Size, nil }
func (l viewLayer) MediaType() (types.MediaType, error) { return types.MediaType(l.d.MediaType), nil }
func (l viewLayer) Compressed() (io.ReadCloser, error)  { return l.st.OpenBlob(l.d.Digest) }
