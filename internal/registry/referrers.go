package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/store"
)

// Referrer describes an artifact that is about another manifest (distribution-spec, "Listing Referrers").
type Referrer struct {
	MediaType    types.MediaType   `json:"mediaType"`
	Digest       v1.Hash           `json:"digest"`
	Size         int64             `json:"size"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// referrerIndex is an image index whose entries say what they are.
type referrerIndex struct {
	SchemaVersion int64           `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType"`
	Manifests     []Referrer      `json:"manifests"`
}

// FallbackTag is where the list of what is about a manifest is kept in a registry that keeps none itself.
func FallbackTag(subject store.Digest) string { return "sha256-" + subject.Hex() }

// Referrers lists what is about a manifest. In a registry without an API for that, the list is a tag that everybody rewrites, in
// which entries get lost: it is for finding things, never for deciding.
func (r *Repository) Referrers(ctx context.Context, subject store.Digest) ([]Referrer, error) {
	list, err := r.listReferrers(ctx, subject)
	if hasNoAPI(err) {
		list, _, err = r.fallback(ctx, subject)
	}
	return list, err
}

// ListsReferrers reports whether the registry itself keeps the list of what is about a manifest.
func (r *Repository) ListsReferrers(ctx context.Context, subject store.Digest) (bool, error) {
	_, err := r.listReferrers(ctx, subject)
	if hasNoAPI(err) {
		return false, nil
	}
	return err == nil, err
}

// hasNoAPI reports whether a registry's answer means that it lists no referrers: one that does has a list, perhaps empty, for
// every digest.
func hasNoAPI(err error) bool {
	var status *fetch.StatusError
	if !errors.As(err, &status) {
		return false
	}
	switch status.Code {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadRequest, http.StatusNotAcceptable, http.StatusNotImplemented:
		return true
	}
	return false
}

func (r *Repository) listReferrers(ctx context.Context, subject store.Digest) ([]Referrer, error) {
	at, err := r.URL(ctx, "referrers/"+string(subject))
	if err != nil {
		return nil, err
	}
	var all []Referrer
	seen := map[string]bool{}
	for at != "" {
		if seen[at] || len(all) > maxTags {
			return nil, errors.New("the list of referrers does not end")
		}
		seen[at] = true
		page, next, err := r.referrerPage(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("list what is about %s in %s: %w", subject.Short(), r.Name(), err)
		}
		all = append(all, page...)
		at = next
	}
	return all, nil
}

func (r *Repository) referrerPage(ctx context.Context, at string) (list []Referrer, next string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", string(types.OCIImageIndex))
	resp, err := r.Do(req, http.StatusOK)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	var index referrerIndex
	if err := decode(resp.Body, MaxManifest, &index); err != nil {
		return nil, "", err
	}
	next, err = nextPage(req.URL, resp.Header.Get("Link"))
	return index.Manifests, next, err
}

// fallback reads the list that is a tag, and returns its digest as well: "" when there is none.
func (r *Repository) fallback(ctx context.Context, subject store.Digest) ([]Referrer, store.Digest, error) {
	data, _, err := r.Manifest(ctx, FallbackTag(subject))
	if IsAbsent(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	var index referrerIndex
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, "", fmt.Errorf("the list of what is about %s in %s is damaged: %w", subject.Short(), r.Name(), err)
	}
	return index.Manifests, store.DigestOf(data), nil
}

// fallbackTries is how often an entry is put into a list that others write at the same time.
const fallbackTries = 16

// AddReferrer makes an artifact that was sent be found by its subject. A registry with an API for that has seen it already.
// Elsewhere the list is read, written if it is still the same, and read again until the entry is in it. Where the registry knows no conditions
// others may still write it out afterwards.
func (r *Repository) AddReferrer(ctx context.Context, subject store.Digest, entry Referrer) error {
	if api, err := r.ListsReferrers(ctx, subject); api || err != nil {
		return err
	}
	return r.changeFallback(ctx, subject, func(list []Referrer) ([]Referrer, bool) {
		if slices.ContainsFunc(list, func(d Referrer) bool { return d.Digest == entry.Digest }) {
			return nil, false
		}
		return append(list, entry), true
	})
}

// DropReferrers has artifacts be found by their subject no longer. In a registry with an API for that they have to be deleted; elsewhere they
// stay, and leave the list as [Repository.AddReferrer] puts them into it.
func (r *Repository) DropReferrers(ctx context.Context, subject store.Digest, artifacts []store.Digest) error {
	if len(artifacts) == 0 {
		return nil
	}
	api, err := r.ListsReferrers(ctx, subject)
	if err != nil {
		return err
	}
	if api {
		for _, d := range artifacts {
			if err := r.Delete(ctx, d); err != nil {
				return err
			}
		}
		return nil
	}
	return r.changeFallback(ctx, subject, func(list []Referrer) ([]Referrer, bool) {
		rest := slices.DeleteFunc(slices.Clone(list), func(d Referrer) bool { return slices.Contains(artifacts, store.Digest(d.Digest.String())) })
		return rest, len(rest) < len(list)
	})
}

// changeFallback changes the list that is a tag until change, which is given what is there, says that there is nothing more to write.
func (r *Repository) changeFallback(ctx context.Context, subject store.Digest, change func([]Referrer) (changed []Referrer, differs bool)) error {
	var before store.Digest
	refused := false
	for try := range fallbackTries {
		if try > 1 { // somebody else wrote: do not meet again
			if err := pause(ctx, rand.N(time.Duration(try)*20*time.Millisecond)); err != nil {
				return err
			}
		}
		list, is, err := r.fallback(ctx, subject)
		if err != nil {
			return err
		}
		changed, differs := change(list)
		if !differs {
			return nil
		}
		data, err := marshalReferrers(changed)
		if err != nil {
			return err
		}
		condition := IfStill(is)
		if refused && is == before { // nobody has written: its entity tags are something else
			condition = Condition{}
		}
		err = r.PutManifestIf(ctx, condition, data, string(types.OCIImageIndex), FallbackTag(subject))
		if refused = IsRefused(err); err != nil && !refused {
			return err
		}
		before = is
	}
	return fmt.Errorf("the list of what is about %s in %s is written by many at once, and is not what it has to be", subject.Short(), r.Name())
}

func marshalReferrers(list []Referrer) ([]byte, error) {
	return json.Marshal(referrerIndex{2, types.OCIImageIndex, append([]Referrer{}, list...)}) // never null
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// PutManifest writes a manifest, whose blobs are there, under a tag or its digest.
func (r *Repository) PutManifest(ctx context.Context, data []byte, mediaType, reference string) error {
	return r.PutManifestIf(ctx, Condition{}, data, mediaType, reference)
}

// PutManifestIf writes a manifest on a condition. That it is not met is an error, where the registry looks.
func (r *Repository) PutManifestIf(ctx context.Context, c Condition, data []byte, mediaType, reference string) error {
	req, err := r.request(ctx, http.MethodPut, "manifests/"+reference, data, mediaType)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if c != (Condition{}) {
		req.Header.Set(c.field, c.value)
	}
	resp, err := r.Do(req, http.StatusCreated, http.StatusOK, http.StatusAccepted)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	resp.Body.Close()
	want := store.DigestOf(data)
	if got := resp.Header.Get("Docker-Content-Digest"); got != "" && got != string(want) {
		return fmt.Errorf("manifest: the registry stored it as %s, not as %s", got, want)
	}
	return nil
}

// send sends a small body to a part of the repository.
func (r *Repository) send(ctx context.Context, method, part string, body []byte, mediaType string, want ...int) (*http.Response, error) {
	req, err := r.request(ctx, method, part, body, mediaType)
	if err != nil {
		return nil, err
	}
	return r.Do(req, want...)
}

func (r *Repository) request(ctx context.Context, method, part string, body []byte, mediaType string) (*http.Request, error) {
	at, err := r.URL(ctx, part)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	return req, nil
}
