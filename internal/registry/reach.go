package registry

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/store"
)

// Reach reads the manifest called reference, a tag or a digest, and, of an index, finds out which manifests it lists, all the way down. One
// that an index lists and the repository does not have lists nothing more.
func (r *Repository) Reach(ctx context.Context, reference string) (manifest []byte, listed []store.Digest, err error) {
	manifest, _, err = r.Manifest(ctx, reference)
	if err != nil {
		return nil, nil, err
	}
	listed, err = r.listed(ctx, manifest, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("manifest %s of %s: %w", reference, r.Name(), err)
	}
	return manifest, listed, nil
}

func (r *Repository) listed(ctx context.Context, manifest []byte, depth int) ([]store.Digest, error) {
	var m struct {
		Manifests []v1.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if depth > maxTransferDepth || len(m.Manifests) > maxTransferList {
		return nil, fmt.Errorf("it lists more than an image does")
	}
	var all []store.Digest
	for _, child := range m.Manifests {
		d, err := store.ParseDigest(child.Digest.String())
		if err != nil {
			continue // of another algorithm
		}
		all = append(all, d)
		if !isIndex(string(child.MediaType)) {
			continue
		}
		inner, _, err := r.Manifest(ctx, string(d))
		if IsAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		below, err := r.listed(ctx, inner, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	return all, nil
}
