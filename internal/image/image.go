// Package image reads, copies and assembles container images whose blobs are in the store, and shows the merged tree
// of their layers.
//
// Images follow the OCI image-spec; Docker's schema 2 differs in media types only and is read as well. What is
// assembled here is always OCI.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Image is an image whose manifest, config and layers are in the store.
type Image struct {
	Digest    store.Digest       // of the manifest
	MediaType string             // of the manifest
	Size      int64              // of the manifest, in bytes
	Manifest  v1.Manifest        // as parsed; the bytes are the blob Digest
	Config    v1.ConfigFile      // as parsed; the bytes are the blob Manifest.Config.Digest
	Layers    []layer.Descriptor // lowest first
}

// Limits on what is read of an image. Registries refuse manifests above 4 MiB (OCI distribution-spec, "Pushing Manifests").
const (
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	maxLayers   = 1024
)

// Load reads the image whose manifest is the blob digest, and checks that its config and all its layers are here. The error
// wraps fs.ErrNotExist when something is not.
func Load(ctx context.Context, st *store.Store, digest store.Digest) (*Image, error) {
	im, err := load(ctx, st, digest)
	if err != nil {
		return nil, fmt.Errorf("read image %s: %w", digest.Short(), err)
	}
	return im, nil
}

func load(ctx context.Context, st *store.Store, digest store.Digest) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	im, err := describe(st, digest)
	if err != nil {
		return nil, err
	}
	for i, d := range im.Layers {
		if err := checkSize(st, d); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	return im, nil
}

// Blobs lists the layers by digest and size, for [fetch.CheckRoom].
func (im *Image) Blobs() []fetch.Request { return blobsOf(im.Manifest) }

func blobsOf(m v1.Manifest) []fetch.Request {
	blobs := make([]fetch.Request, len(m.Layers))
	for i, d := range m.Layers {
		blobs[i] = fetch.Request{Digest: blobDigest(d), Size: d.Size}
	}
	return blobs
}

// checkSize makes sure that a layer is in the store and as large as the manifest says.
func checkSize(st *store.Store, d layer.Descriptor) error {
	size, err := st.BlobSize(d.Digest)
	if err == nil && size != d.Size {
		err = fmt.Errorf("blob %s has %d bytes, the manifest says %d", d.Digest, size, d.Size)
	}
	return err
}

// describe reads the manifest and the config of an image.
func describe(st *store.Store, digest store.Digest) (*Image, error) {
	manifest, err := st.ReadBlob(digest, maxManifest)
	if err != nil {
		return nil, err
	}
	im := &Image{Digest: digest, Size: int64(len(manifest))}
	if im.Manifest, err = parseManifest(manifest); err != nil {
		return nil, err
	}
	im.MediaType = manifestType(im.Manifest)
	config, err := st.ReadBlob(blobDigest(im.Manifest.Config), maxConfig)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := json.Unmarshal(config, &im.Config); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if im.Layers, err = descriptors(im.Manifest, im.Config); err != nil {
		return nil, err
	}
	for i, d := range im.Layers {
		im.Layers[i], _ = layer.Known(st, d)
	}
	return im, nil
}

// Refs returns every blob that the image is based on: manifest, config and layers.
func (im *Image) Refs() []store.Digest {
	refs := []store.Digest{im.Digest, blobDigest(im.Manifest.Config)}
	for _, d := range im.Layers {
		if !slices.Contains(refs, d.Digest) {
			refs = append(refs, d.Digest)
		}
	}
	return refs
}

// Platform returns what the image runs on.
func (im *Image) Platform() v1.Platform {
	c := im.Config
	return v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant, OSVersion: c.OSVersion, OSFeatures: c.OSFeatures}
}

func blobDigest(d v1.Descriptor) store.Digest { return store.Digest(d.Digest.String()) }

func parseManifest(data []byte) (v1.Manifest, error) {
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("manifest: %w", err)
	}
	switch {
	case m.MediaType.IsIndex():
		return m, errors.New("manifest: it is an index of several images; choose one by platform")
	case m.MediaType != "" && m.MediaType != types.OCIManifestSchema1 && m.MediaType != types.DockerManifestSchema2:
		return m, fmt.Errorf("manifest: media type %q is not that of an image", m.MediaType)
	case m.SchemaVersion != 2:
		return m, fmt.Errorf("manifest: schema version %d is not 2", m.SchemaVersion)
	case len(m.Layers) > maxLayers:
		return m, fmt.Errorf("manifest: %d layers are more than the %d accepted", len(m.Layers), maxLayers)
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if err := checkDescriptor(d); err != nil {
			return m, fmt.Errorf("manifest: %w", err)
		}
	}
	if m.Config.MediaType != types.OCIConfigJSON && m.Config.MediaType != types.DockerConfigJSON {
		return m, fmt.Errorf("manifest: it describes %q, not a container image", m.Config.MediaType)
	}
	return m, nil
}

func checkDescriptor(d v1.Descriptor) error {
	if _, err := store.ParseDigest(d.Digest.String()); err != nil {
		return err
	}
	if d.Size < 0 {
		return fmt.Errorf("blob %s: size %d is negative", d.Digest, d.Size)
	}
	return nil
}

// manifestType returns the manifest's media type. OCI allows leaving it out.
func manifestType(m v1.Manifest) string {
	if m.MediaType == "" {
		return string(types.OCIManifestSchema1)
	}
	return string(m.MediaType)
}

// layerTypes maps the media types of layers that can be read to their OCI form.
var layerTypes = map[types.MediaType]types.MediaType{
	types.OCIUncompressedLayer:    types.OCIUncompressedLayer,
	types.OCILayer:                types.OCILayer,
	types.OCILayerZStd:            types.OCILayerZStd,
	types.DockerUncompressedLayer: types.OCIUncompressedLayer,
	types.DockerLayer:             types.OCILayer,
	dockerLayerZstd:               types.OCILayerZStd,
}

const dockerLayerZstd types.MediaType = "application/vnd.docker.image.rootfs.diff.tar.zstd"

// descriptors joins the manifest's list of layers with the config's list of what they unpack to.
func descriptors(m v1.Manifest, c v1.ConfigFile) ([]layer.Descriptor, error) {
	if len(m.Layers) != len(c.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the manifest has %d layers but the config %d", len(m.Layers), len(c.RootFS.DiffIDs))
	}
	layers := make([]layer.Descriptor, len(m.Layers))
	for i, d := range m.Layers {
		if err := checkLayerType(d); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
		diffID, err := store.ParseDigest(c.RootFS.DiffIDs[i].String())
		if err != nil {
			return nil, fmt.Errorf("layer %d: config: %w", i+1, err)
		}
		layers[i] = layer.Descriptor{Digest: blobDigest(d), DiffID: diffID, Size: d.Size, MediaType: string(d.MediaType)}
	}
	return layers, nil
}

func checkLayerType(d v1.Descriptor) error {
	if _, ok := layerTypes[d.MediaType]; ok {
		return nil
	}
	if strings.Contains(string(d.MediaType), "nondistributable") || strings.Contains(string(d.MediaType), "foreign") {
		return fmt.Errorf("%s (%s) may only be fetched from its vendor's address; images with such layers are not supported", d.Digest, d.MediaType)
	}
	return fmt.Errorf("%s has the media type %q, which is not one of a layer", d.Digest, d.MediaType)
}
