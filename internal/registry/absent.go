package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/store"
)

// OpenForWriting returns the repository called name, HOST/PATH, as it is written to: no mirror answers for it. From are other
// repositories of its registry that blobs will be taken from.
func OpenForWriting(name string, o Options) (*Repository, error) {
	config, err := ReadConfig()
	if err != nil {
		return nil, err
	}
	host, path := cutHost(name)
	at, err := config.PushEndpoint(host, path)
	if err != nil {
		return nil, err
	}
	return New(at, o), nil
}

// Resolve returns the digest of the manifest called reference, a tag or a digest, or "" when there is none. Only a registry that
// says so, in the words of the distribution specification, is believed that there is none: whatever else it answers is an error.
// What is there costs one small request.
func (r *Repository) Resolve(ctx context.Context, reference string) (store.Digest, error) {
	d, err := r.HasManifest(ctx, reference)
	if err != nil {
		return "", fmt.Errorf("look for %s of %s: %w", reference, r.Name(), err)
	}
	if d != "" {
		return d, nil
	}
	// The answer to HEAD has no body, and so does not say what is unknown.
	data, _, err := r.Manifest(ctx, reference)
	switch {
	case err == nil:
		return store.DigestOf(data), nil
	case IsAbsent(err):
		return "", nil
	}
	return "", err
}

// The codes of the distribution specification, section "Error codes", for what is not there. Harbor's is the last.
var absentCodes = []string{"MANIFEST_UNKNOWN", "NAME_UNKNOWN", "NOT_FOUND"}

// IsAbsent reports whether an error is a registry's word that it has no such manifest, or no such repository.
func IsAbsent(err error) bool {
	var answer *Error
	if !errors.As(err, &answer) || answer.Code != http.StatusNotFound || len(answer.Codes) == 0 {
		return false
	}
	return !slices.ContainsFunc(answer.Codes, func(code string) bool { return !slices.Contains(absentCodes, code) })
}

// Delete removes a manifest and, with it, all its tags. That it is gone already is no error.
func (r *Repository) Delete(ctx context.Context, d store.Digest) error {
	resp, err := r.send(ctx, http.MethodDelete, "manifests/"+string(d), nil, "", http.StatusAccepted, http.StatusOK, http.StatusNoContent)
	if err == nil {
		resp.Body.Close()
		return nil
	}
	if IsAbsent(err) {
		return nil
	}
	return keepHint(fmt.Errorf("delete %s of %s: %w", d.Short(), r.Name(), hintDelete(err)))
}

// DeleteTag removes a tag that is still there after what it leads to was deleted, as it is in a few registries. That it is gone is no error.
func (r *Repository) DeleteTag(ctx context.Context, tag string) error {
	resp, err := r.send(ctx, http.MethodDelete, "manifests/"+tag, nil, "", http.StatusAccepted, http.StatusOK, http.StatusNoContent)
	if err == nil {
		resp.Body.Close()
		return nil
	}
	if IsAbsent(err) {
		return nil
	}
	return keepHint(fmt.Errorf("delete %s of %s: %w", tag, r.Name(), hintDelete(err)))
}

// DeletesNoTags reports whether an error of [Repository.DeleteTag] or [Repository.Delete] is a registry's word that it does not delete in this
// way, or not for this user.
func DeletesNoTags(err error) bool {
	var status *fetch.StatusError
	if !errors.As(err, &status) {
		return false
	}
	switch status.Code {
	case http.StatusMethodNotAllowed, http.StatusBadRequest, http.StatusNotImplemented:
		return true
	}
	return IsDenied(err)
}

// IsDenied reports whether an error is a registry's word that this user may not do what was asked.
func IsDenied(err error) bool {
	var status *fetch.StatusError
	return errors.As(err, &status) && (status.Code == http.StatusForbidden || status.Code == http.StatusUnauthorized)
}

func hintDelete(err error) error {
	var status *fetch.StatusError
	if errors.As(err, &status) && (status.Code == http.StatusMethodNotAllowed || status.Code == http.StatusBadRequest) {
		return fault.Hint(err, "this registry does not let its users delete: its administrator can allow it, or has rules of its own for what is old")
	}
	return err
}
