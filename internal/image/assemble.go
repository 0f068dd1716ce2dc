package image

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Addition is a layer put on top of an image, and what its history says of it.
type Addition struct {
	Layer     layer.Descriptor // without a digest: the step made none, and only the history knows of it
	CreatedBy string           // the step, as a person would write it
	Comment   string
}

// Spec says what an image is made of.
type Spec struct {
	Base      *Image           // nil: from scratch
	Platform  v1.Platform      // zero: the base's
	Additions []Addition       // lowest first
	Edit      func(*v1.Config) // changes the base's configuration; may be nil
	Author    string           // "": the base's

	// StartInterval is that of the configuration's health check, for which v1.HealthConfig has no field (Docker image
	// specification 1.3).
	StartInterval time.Duration

	Created     time.Time         // zero: layer.DefaultModTime
	Annotations map[string]string // of the manifest
}

// Assemble puts an OCI manifest and config together and stores them. The same spec gives the same bytes. The base's history
// is kept, and ours follows it.
func Assemble(ctx context.Context, st *store.Store, s Spec) (*Image, error) {
	im, err := assemble(ctx, st, s)
	if err != nil {
		return nil, fmt.Errorf("assemble image: %w", err)
	}
	return im, nil
}

func assemble(ctx context.Context, st *store.Store, s Spec) (*Image, error) {
	if s.Created.IsZero() {
		s.Created = layer.DefaultModTime
	}
	s.Created = s.Created.UTC().Truncate(time.Second)
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	configBytes, err := encodeConfig(config, s.StartInterval)
	if err != nil {
		return nil, err
	}
	layers, err := s.layers()
	if err != nil {
		return nil, err
	}
	manifestBytes, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        descriptor(types.OCIConfigJSON, store.DigestOf(configBytes), int64(len(configBytes))),
		Layers:        layers,
		Annotations:   s.Annotations,
	})
	if err != nil {
		return nil, err
	}
	// The config first: a manifest in the store whose config is missing would be half an image.
	if _, err := st.PutBlob(configBytes); err != nil {
		return nil, err
	}
	digest, err := st.PutBlob(manifestBytes)
	if err != nil {
		return nil, err
	}
	return load(ctx, st, digest)
}

// encodeConfig encodes a configuration, with the start interval of its health check unless that is 0.
func encodeConfig(c *v1.ConfigFile, startInterval time.Duration) ([]byte, error) {
	if startInterval == 0 || c.Config.Healthcheck == nil {
		return json.Marshal(c)
	}
	type healthcheck struct {
		*v1.HealthConfig
		StartInterval time.Duration
	}
	type config struct {
		v1.Config
		Healthcheck healthcheck
	}
	return json.Marshal(struct {
		*v1.ConfigFile
		Config config `json:"config"`
	}{c, config{c.Config, healthcheck{c.Config.Healthcheck, startInterval}}})
}

func descriptor(t types.MediaType, d store.Digest, size int64) v1.Descriptor {
	return v1.Descriptor{MediaType: t, Digest: hash(d), Size: size}
}

func hash(d store.Digest) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: d.Hex()} }

// layers lists the base's layers, with Docker's media types converted, and the additions.
func (s *Spec) layers() ([]v1.Descriptor, error) {
	layers := []v1.Descriptor{} // "layers" is required, even when empty
	if s.Base != nil {
		for _, d := range s.Base.Layers {
			layers = append(layers, descriptor(layerTypes[types.MediaType(d.MediaType)], d.Digest, d.Size))
		}
	}
	for _, a := range s.Additions {
		if a.Layer.Digest == "" {
			continue
		}
		t, ok := layerTypes[types.MediaType(a.Layer.MediaType)]
		if !ok {
			return nil, fmt.Errorf("layer %s (%s) has the media type %q, which is not one of a layer", a.Layer.Digest.Short(), a.CreatedBy, a.Layer.MediaType)
		}
		for _, d := range []store.Digest{a.Layer.Digest, a.Layer.DiffID} {
			if _, err := store.ParseDigest(string(d)); err != nil {
				return nil, fmt.Errorf("layer of %q: %w", a.CreatedBy, err)
			}
		}
		layers = append(layers, descriptor(t, a.Layer.Digest, a.Layer.Size))
	}
	if len(layers) > maxLayers {
		return nil, fmt.Errorf("%d layers are more than the %d an image may have", len(layers), maxLayers)
	}
	return layers, nil
}

func (s *Spec) config() (*v1.ConfigFile, error) {
	c := &v1.ConfigFile{}
	if s.Base != nil {
		c = s.Base.Config.DeepCopy()
		c.Container = "" // where Docker built the base says nothing about this image
		c.History = completeHistory(c.History, len(s.Base.Layers))
	}
	if s.Platform.OS != "" || s.Platform.Architecture != "" {
		c.OS, c.Architecture, c.Variant = s.Platform.OS, s.Platform.Architecture, s.Platform.Variant
		c.OSVersion, c.OSFeatures = s.Platform.OSVersion, s.Platform.OSFeatures
	}
	if c.OS == "" || c.Architecture == "" {
		return nil, fmt.Errorf("platform %q/%q is incomplete", c.OS, c.Architecture)
	}
	c.Created = v1.Time{Time: s.Created}
	c.Author = cmp.Or(s.Author, c.Author)
	c.RootFS.Type = "layers"
	if c.RootFS.DiffIDs == nil {
		c.RootFS.DiffIDs = []v1.Hash{}
	}
	for _, a := range s.Additions {
		c.History = append(c.History, v1.History{Created: c.Created, CreatedBy: a.CreatedBy, Comment: a.Comment, EmptyLayer: a.Layer.Digest == ""})
		if a.Layer.Digest != "" {
			c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, hash(a.Layer.DiffID))
		}
	}
	if s.Edit != nil {
		// The maps are the caller's to change: DeepCopy has made them this image's own.
		c.Config.Env = append([]string(nil), c.Config.Env...)
		c.Config.Labels = maps.Clone(c.Config.Labels)
		s.Edit(&c.Config)
	}
	return c, nil
}

// completeHistory makes the history name every layer: readers match the two by counting, and an image whose counts
// differ (flattened ones have no history at all) would shift our entries to somebody else's layers.
func completeHistory(h []v1.History, layers int) []v1.History {
	filled := 0
	for _, e := range h {
		if !e.EmptyLayer {
			filled++
		}
	}
	for ; filled < layers; filled++ {
		h = append(h, v1.History{Comment: "layer of the base image without history"})
	}
	for i := len(h) - 1; i >= 0 && filled > layers; i-- {
		if !h[i].EmptyLayer {
			h[i].EmptyLayer = true
			filled--
		}
	}
	return h
}
