package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/store"
)

// Artifact is something in a registry that is no image (OCI image-spec, manifest.md, "Guidelines for Artifact Usage"): a small
// document of a type of its own, and blobs.
type Artifact struct {
	Type        string // what it is: artifactType of its manifest
	ConfigType  string // media type of Config
	Config      []byte // the document, in bytes at most MaxConfig
	Annotations map[string]string
	Blobs       []v1.Descriptor
	Subject     *v1.Descriptor // the manifest that this one is about, by which referrers are found; nil: none
}

// Limits on artifacts.
const (
	MaxConfig    = 1<<20 + 1<<10 // bytes of the document, which stands in the manifest too
	MaxBlobs     = 1024
	maxBlobBytes = 4 << 40
)

// ErrTooLarge is the error of an artifact beyond these limits.
var ErrTooLarge = errors.New("it is larger than an artifact can be")

// emptyType is the media type of what stands for the blobs of an artifact without any: some registries want at least one
// (image-spec, manifest.md, "Guidance for an Empty Descriptor").
const emptyType = "application/vnd.oci.empty.v1+json"

var emptyBlob = []byte("{}")

// artifactManifest is an OCI manifest with the fields that go-containerregistry's does not have.
type artifactManifest struct {
	SchemaVersion int64             `json:"schemaVersion"`
	MediaType     types.MediaType   `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        v1.Descriptor     `json:"config"`
	Layers        []v1.Descriptor   `json:"layers"`
	Subject       *v1.Descriptor    `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

func describe(mediaType string, data []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: types.MediaType(mediaType), Digest: hashOf(store.DigestOf(data)), Size: int64(len(data))}
}

func hashOf(d store.Digest) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: d.Hex()} }

// Manifest returns the artifact's manifest. Equal artifacts have equal ones.
func (a *Artifact) Manifest() ([]byte, error) {
	if len(a.Config) > MaxConfig || len(a.Blobs) > MaxBlobs {
		return nil, fmt.Errorf("%d bytes with %d blobs: %w", len(a.Config), len(a.Blobs), ErrTooLarge)
	}
	m := artifactManifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: a.Type, Config: describe(a.ConfigType, a.Config),
		Layers: a.Blobs, Subject: a.Subject, Annotations: a.Annotations,
	}
	m.Config.Data = a.Config
	if len(m.Layers) == 0 {
		m.Layers = []v1.Descriptor{describe(emptyType, emptyBlob)}
	}
	data, err := json.Marshal(m)
	if err == nil && len(data) > MaxManifest {
		err = ErrTooLarge
	}
	return data, err
}

// PushArtifact sends a to the repository called name, HOST/PATH, as [Push] does, and returns the digest of its manifest. Its
// blobs are in the store of o.
func PushArtifact(ctx context.Context, a *Artifact, name, tag string, o PushOptions) (store.Digest, error) {
	manifest, err := a.Manifest()
	if err != nil {
		return "", err
	}
	c := Content{MediaType: string(types.OCIManifestSchema1)}
	for _, d := range a.Blobs {
		b := Blob{Digest: store.Digest(d.Digest.String()), Size: d.Size}
		if !slices.Contains(c.Blobs, b) {
			c.Blobs = append(c.Blobs, b)
		}
	}
	small := [][]byte{a.Config}
	if len(a.Blobs) == 0 {
		small = append(small, emptyBlob)
	}
	for _, data := range small {
		b, err := putBlob(o.Store, data)
		if err != nil {
			return "", err
		}
		if !slices.Contains(c.Blobs, b) {
			c.Blobs = append(c.Blobs, b)
		}
	}
	if c.Manifest, err = putBlob(o.Store, manifest); err != nil {
		return "", err
	}
	return c.Manifest.Digest, Push(ctx, c, name, tag, o)
}

func putBlob(st *store.Store, data []byte) (Blob, error) {
	d, err := st.PutBlob(data)
	return Blob{Digest: d, Size: int64(len(data))}, err
}

// parseArtifact reads a manifest and checks that what it says can be: digests are digests and sizes are sizes. It also returns where
// the document is, which may not be in the manifest.
func parseArtifact(manifest []byte) (*Artifact, v1.Descriptor, error) {
	var m artifactManifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, v1.Descriptor{}, fmt.Errorf("its manifest is damaged: %w", err)
	}
	if len(m.Layers) > MaxBlobs || m.Config.Size > MaxConfig {
		return nil, v1.Descriptor{}, ErrTooLarge
	}
	m.Layers = slices.DeleteFunc(m.Layers, func(d v1.Descriptor) bool { return d.MediaType == emptyType })
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if _, err := store.ParseDigest(d.Digest.String()); err != nil {
			return nil, v1.Descriptor{}, fmt.Errorf("its manifest is damaged: %w", err)
		}
		if d.Size <= 0 || d.Size > maxBlobBytes {
			return nil, v1.Descriptor{}, fmt.Errorf("its manifest is damaged: a blob of %d bytes", d.Size)
		}
	}
	a := &Artifact{Type: m.ArtifactType, ConfigType: string(m.Config.MediaType), Annotations: m.Annotations, Blobs: m.Layers, Subject: m.Subject}
	return a, m.Config, nil
}

// Artifact reads an artifact of a type from its manifest, which came from the repository, its document included: from the manifest,
// or as a blob of st. Its blobs are not brought, see [Repository.Blob].
func (r *Repository) Artifact(ctx context.Context, st *store.Store, manifest []byte, wanted string) (*Artifact, error) {
	a, config, err := parseArtifact(manifest)
	if err != nil {
		return nil, err
	}
	if a.Type != wanted {
		return nil, fmt.Errorf("the tag leads to something else: artifact type %q", a.Type)
	}
	digest := store.Digest(config.Digest.String())
	if len(config.Data) > 0 {
		if got := store.DigestOf(config.Data); got != digest {
			return nil, &store.MismatchError{Want: digest, Got: got, Size: int64(len(config.Data))}
		}
		a.Config = config.Data
		return a, nil
	}
	if err := r.Blob(ctx, digest, config.Size, a.Type); err != nil {
		return nil, err
	}
	a.Config, err = st.ReadBlob(digest, MaxConfig)
	return a, err
}
