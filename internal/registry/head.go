package registry

import (
	"context"
	"fmt"
	"net/http"

	"sconce.dev/sconce/internal/store"
)

// Head returns the digest of the manifest called reference, a tag or a digest. found is false when the registry says that there is none,
// which is never said of one that does not answer, or refuses to.
func (r *Repository) Head(ctx context.Context, reference string) (d store.Digest, found bool, err error) {
	url, err := r.URL(ctx, "manifests/"+reference)
	if err != nil {
		return "", false, fmt.Errorf("ask %s for %s: %w", r.Name(), reference, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return "", false, err
	}
	req.Header.Set("Accept", manifestTypes)
	resp, err := r.Do(req, http.StatusOK, http.StatusNotFound)
	if err != nil {
		return "", false, fmt.Errorf("ask %s for %s: %w", r.Name(), reference, err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return "", false, nil
	}
	if d, err = store.ParseDigest(resp.Header.Get("Docker-Content-Digest")); err == nil {
		return d, true, nil
	}
	data, _, err := r.Manifest(ctx, reference) // the header is only recommended (distribution-spec, "Pulling manifests")
	return store.DigestOf(data), err == nil, err
}
