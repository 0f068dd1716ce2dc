package stepcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// The media types of an entry.
const (
	artifactType = "application/vnd.sconce.step.v1"
	configType   = "application/vnd.sconce.step.config.v1+json"
	blobType     = "application/octet-stream"
	emptyType    = "application/vnd.oci.empty.v1+json" // OCI image-spec, manifest.md, "Guidance for an Empty Descriptor"
)

// emptyBlob stands for the blobs of an entry without any: some registries want at least one.
var emptyBlob = []byte("{}")

// Limits on entries.
const (
	maxValue = 1 << 20 // bytes of a value, which stands in the manifest
	maxBlobs = 1024
	maxSize  = 4 << 40 // bytes of a blob
)

var errTooLarge = errors.New("it is larger than an entry can be")

// entryName is what an entry is about. It is in the entry too: a tag can be moved by anybody.
type entryName struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`
}

type entryConfig struct {
	entryName
	Value json.RawMessage `json:"value"`
}

// manifest is an OCI manifest with the field that go-containerregistry's does not have.
type manifest struct {
	SchemaVersion int64             `json:"schemaVersion"`
	MediaType     types.MediaType   `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        v1.Descriptor     `json:"config"`
	Layers        []v1.Descriptor   `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// replaces is the annotation of an entry that takes the place of one that could not be used. Without it the two might be the same
// bytes, and then nobody would look whether their blobs are there.
const replaces = "dev.sconce.step.replaces"

// makeEntry puts the small blobs of an entry into the store and returns it in the form in which images are pushed.
func (r *Remote) makeEntry(st *store.Store, tag string, name entryName, v any, blobs []store.Digest) (*image.Image, error) {
	value, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(value) > maxValue || len(blobs) > maxBlobs {
		return nil, fmt.Errorf("%d bytes with %d blobs: %w", len(value), len(blobs), errTooLarge)
	}
	m := manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: artifactType}
	config, err := json.Marshal(entryConfig{name, value})
	if err != nil {
		return nil, err
	}
	if m.Config, err = putSmall(st, configType, config); err != nil {
		return nil, err
	}
	m.Config.Data = config
	for _, d := range blobs {
		size, err := st.BlobSize(d)
		if err != nil {
			return nil, err
		}
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: blobType, Digest: hashOf(d), Size: size})
	}
	if len(m.Layers) == 0 {
		empty, err := putSmall(st, emptyType, emptyBlob)
		if err != nil {
			return nil, err
		}
		m.Layers = append(m.Layers, empty)
	}
	if r.isDamaged(tag) {
		whole, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		m.Annotations = map[string]string{replaces: string(store.DigestOf(whole))}
	}
	return m.image(st)
}

func putSmall(st *store.Store, mediaType types.MediaType, data []byte) (v1.Descriptor, error) {
	d, err := st.PutBlob(data)
	return v1.Descriptor{MediaType: mediaType, Digest: hashOf(d), Size: int64(len(data))}, err
}

func hashOf(d store.Digest) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: d.Hex()} }

// image gives the manifest to package export, which looks at an image's blobs and not at what they are.
func (m *manifest) image(st *store.Store) (*image.Image, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(data) > registry.MaxManifest {
		return nil, errTooLarge
	}
	digest, err := st.PutBlob(data)
	if err != nil {
		return nil, err
	}
	im := &image.Image{Digest: digest, MediaType: string(m.MediaType), Size: int64(len(data))}
	im.Manifest.Config = m.Config
	for _, l := range m.Layers {
		im.Layers = append(im.Layers, layer.Descriptor{Digest: store.Digest(l.Digest.String()), Size: l.Size})
	}
	return im, nil
}

func (r *Remote) send(ctx context.Context, st *store.Store, im *image.Image, tag string) error {
	to := r.ref
	to.Tag = tag
	return export.Push(ctx, im, to.String(), export.PushOptions{Store: st, Fetch: r.opts.Fetch, Jobs: r.opts.Jobs, Chunk: r.opts.Chunk})
}

// parseManifest checks that a manifest is that of an entry.
func parseManifest(data []byte) (manifest, error) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("its manifest is damaged: %w", err)
	}
	if m.ArtifactType != artifactType || m.Config.MediaType != configType {
		return m, fmt.Errorf("the tag leads to something else: artifact type %q", m.ArtifactType)
	}
	if len(m.Layers) > maxBlobs || m.Config.Size > maxValue+maxBlobs {
		return m, errTooLarge
	}
	m.Layers = slices.DeleteFunc(m.Layers, func(d v1.Descriptor) bool { return d.MediaType == emptyType })
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if _, err := store.ParseDigest(d.Digest.String()); err != nil {
			return m, fmt.Errorf("its manifest is damaged: %w", err)
		}
		if d.Size <= 0 || d.Size > maxSize {
			return m, fmt.Errorf("its manifest is damaged: a blob of %d bytes", d.Size)
		}
	}
	return m, nil
}

// take reads an entry and brings its blobs.
func (r *Remote) take(ctx context.Context, st *store.Store, from *registry.Repository, data []byte, name entryName, v any) (bool, error) {
	t, err := tag(name.Kind, name.Key)
	if err != nil {
		return false, err
	}
	err = r.fill(ctx, st, from, data, name, v)
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	}
	var down downError
	if errors.As(err, &down) {
		return false, r.switchOff(reading, down.error)
	}
	return false, fault.Hint(r.damage(t, err), "the step runs here, and the entry is written anew where that is allowed")
}

// shorten is what a person sees of a key.
func shorten(key string) string { return key[:min(len(key), 12)] }

// downError says that the registry stopped working while an entry was read.
type downError struct{ error }

func (e downError) Unwrap() error { return e.error }

func (r *Remote) fill(ctx context.Context, st *store.Store, from *registry.Repository, data []byte, name entryName, v any) error {
	m, err := parseManifest(data)
	if err != nil {
		return err
	}
	raw, err := r.config(ctx, st, from, m.Config)
	if err != nil {
		return err
	}
	var config entryConfig
	if err := json.Unmarshal(raw, &config); err != nil {
		return fmt.Errorf("its value is damaged: %w", err)
	}
	if config.entryName != name {
		return fmt.Errorf("it is that of %s %s", config.Kind, shorten(config.Key))
	}
	if err := r.blobs(ctx, st, from, m.Layers, name.Kind+" "+shorten(name.Key)); err != nil {
		return err
	}
	// Last, so that v is not touched by an entry that cannot be used.
	if err := json.Unmarshal(config.Value, v); err != nil {
		return fmt.Errorf("its value is damaged: %w", err)
	}
	return nil
}

// config returns the entry's own document, which the manifest usually holds.
func (r *Remote) config(ctx context.Context, st *store.Store, from *registry.Repository, d v1.Descriptor) ([]byte, error) {
	digest := store.Digest(d.Digest.String())
	if len(d.Data) > 0 {
		if got := store.DigestOf(d.Data); got != digest {
			return nil, &store.MismatchError{Want: digest, Got: got, Size: int64(len(d.Data))}
		}
		return d.Data, nil
	}
	if err := r.blob(ctx, st, from, d, "cache entry"); err != nil {
		return nil, err
	}
	return st.ReadBlob(digest, maxValue+maxBlobs)
}

// blobs brings what the store lacks, as many at once as the client does.
func (r *Remote) blobs(ctx context.Context, st *store.Store, from *registry.Repository, list []v1.Descriptor, label string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.opts.Fetch.Jobs())
	for _, d := range list {
		g.Go(func() error { return r.blob(ctx, st, from, d, label) })
	}
	return g.Wait()
}

func (r *Remote) blob(ctx context.Context, st *store.Store, from *registry.Repository, d v1.Descriptor, label string) error {
	digest := store.Digest(d.Digest.String())
	if size, err := st.BlobSize(digest); err == nil {
		return checkSize(digest, d.Size, size)
	}
	if err := from.Blob(ctx, digest, d.Size, label); err != nil {
		return blame(err)
	}
	return registry.RememberOrigin(st, digest, from.Name())
}

func checkSize(d store.Digest, want, got int64) error {
	if want != got {
		return fmt.Errorf("its manifest is damaged: blob %s has %d bytes and not %d", d.Short(), got, want)
	}
	return nil
}

// blame tells an entry that is wrong from a registry that does not answer, or not any more.
func blame(err error) error {
	var status *fetch.StatusError
	var network net.Error
	switch {
	case notFound(err):
		return err
	case errors.As(err, &status), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return downError{err}
	}
	return err
}
