package registry

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/store"
)

// Transfer makes a repository, HOST/PATH, hold the manifest d of another as that one does, byte for byte, under its digest alone: no
// tag is touched. An index comes with what it lists. Blobs that are there stay, a repository of the same registry has them mounted,
// and only the others go through the store of o. It returns the manifest, to be given a tag with [Repository.PutManifest].
func Transfer(ctx context.Context, from *Repository, d store.Digest, to string, o PushOptions) (Manifest, error) {
	m, err := transfer(ctx, from, d, to, o, 0)
	if err != nil {
		return Manifest{}, keepHint(fmt.Errorf("copy %s from %s to %s: %w", d.Short(), from.Name(), to, err))
	}
	return m, nil
}

// Manifest is a manifest's bytes and what they are.
type Manifest struct {
	Data      []byte
	MediaType string
}

// Limits on what is copied.
const (
	maxTransferDepth = 4    // indexes in indexes
	maxTransferList  = 4096 // entries of an index, or blobs of a manifest
)

// contents are the fields of manifests and indexes that say what belongs to them.
type contents struct {
	MediaType types.MediaType `json:"mediaType"`
	Config    *v1.Descriptor  `json:"config"`
	Layers    []v1.Descriptor `json:"layers"`
	Manifests []v1.Descriptor `json:"manifests"`
}

// isIndex reports whether a manifest is a list of others.
func isIndex(mediaType string) bool {
	return mediaType == string(types.OCIImageIndex) || mediaType == string(types.DockerManifestList)
}

func transfer(ctx context.Context, from *Repository, d store.Digest, to string, o PushOptions, depth int) (Manifest, error) {
	data, mediaType, err := from.Manifest(ctx, string(d))
	if err != nil {
		return Manifest{}, err
	}
	var c contents
	if err := json.Unmarshal(data, &c); err != nil {
		return Manifest{}, fmt.Errorf("manifest %s is damaged: %w", d.Short(), err)
	}
	if c.MediaType != "" {
		mediaType = string(c.MediaType) // some registries call everything one thing
	}
	m := Manifest{data, mediaType}
	if depth > maxTransferDepth || len(c.Manifests) > maxTransferList || len(c.Layers) > maxTransferList {
		return Manifest{}, fmt.Errorf("manifest %s lists more than an image does", d.Short())
	}
	for _, child := range c.Manifests {
		digest, err := store.ParseDigest(child.Digest.String())
		if err != nil {
			return Manifest{}, fmt.Errorf("manifest %s is damaged: %w", d.Short(), err)
		}
		if _, err := transfer(ctx, from, digest, to, o, depth+1); err != nil {
			return Manifest{}, err
		}
	}
	return m, transferOne(ctx, from, m, c, to, o)
}

// transferOne copies one manifest and its blobs; what an index lists is there.
func transferOne(ctx context.Context, from *Repository, m Manifest, c contents, to string, o PushOptions) error {
	content := Content{MediaType: m.MediaType}
	blobs := c.Layers
	if c.Config != nil {
		blobs = append([]v1.Descriptor{*c.Config}, blobs...)
	}
	if isIndex(m.MediaType) {
		blobs = nil
	}
	seen := map[store.Digest]bool{}
	for _, b := range blobs {
		digest, err := store.ParseDigest(b.Digest.String())
		if err != nil || b.Size < 0 || b.Size > maxBlobBytes {
			return fmt.Errorf("its manifest is damaged: blob %s of %d bytes", b.Digest, b.Size)
		}
		if !seen[digest] && len(b.URLs) == 0 { // what has its own address is not the registry's
			content.Blobs = append(content.Blobs, Blob{digest, b.Size})
		}
		seen[digest] = true
	}
	manifest, err := putBlob(o.Store, m.Data)
	if err != nil {
		return err
	}
	content.Manifest = manifest
	p, err := newPusher(content, to, "", o)
	if err != nil {
		return err
	}
	p.takeFrom(from)
	_, err = p.push(ctx)
	return err
}

// takeFrom has the pusher take blobs from another repository: by a mount within a registry, else through the store.
func (p *pusher) takeFrom(from *Repository) {
	if from.at.Host == p.repo.at.Host && from.at.Path != p.repo.at.Path {
		p.repo = New(p.repo.at, Options{Fetch: p.opts.Fetch, Push: true, From: []string{from.at.Path}, User: p.opts.User})
		for _, b := range p.content.Blobs {
			p.from[b.Digest] = from.at.Path
		}
	}
	p.bring = func(ctx context.Context, b Blob) error {
		if p.opts.Store.HasBlob(b.Digest) {
			return nil
		}
		return from.Blob(ctx, b.Digest, b.Size, b.Digest.Short())
	}
}
