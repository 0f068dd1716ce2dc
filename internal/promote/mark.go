package promote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// mark says of an image that nobody needs it since a time, or that it is being deleted. It lies beside the image under gc.<image>, and
// gc.<image>.<owner> while somebody deletes it.
type mark struct {
	Image string    `json:"image"` // the first digits of its digest
	Since time.Time `json:"since"`
	Owner string    `json:"owner,omitempty"` // of one run; random. "": it is only not needed
}

const (
	markPrefix = "gc."
	markField  = "dev.sconce.gc"
)

var markForm = lazyregexp.New(`^gc\.([0-9a-f]{12})(?:\.([0-9a-f]{8}))?$`)

func (m *mark) name() string {
	return strings.TrimSuffix(markPrefix+m.Image+"."+m.Owner, ".")
}

// readMark reads the mark under a tag, and the digest of its artifact; nil when it is gone.
func (cs *claims) readMark(ctx context.Context, tag string) (*mark, store.Digest, error) {
	var m mark
	digest, err := cs.get(ctx, tag, markField, &m)
	if err != nil || digest == "" {
		return nil, "", err
	}
	if m.name() != tag {
		return nil, "", fmt.Errorf("%s:%s is not what its name says", cs.name, tag)
	}
	return &m, digest, nil
}

// deleting reports whether tags, of all that the repository has, say that somebody deletes an image now.
func (cs *claims) deleting(ctx context.Context, tags []string, image store.Digest, now time.Time) (bool, error) {
	for _, tag := range tags {
		if !markForm.MatchString(tag) || !strings.HasPrefix(tag, markPrefix+image.Hex()[:digestPart]+".") {
			continue
		}
		m, _, err := cs.readMark(ctx, tag)
		if err != nil {
			return false, err
		}
		if m != nil && m.Owner != "" && now.Sub(m.Since) < claimLife {
			return true, nil
		}
	}
	return false, nil
}

// IsBeingDeleted reports whether somebody deletes an image of a repository, HOST/PATH, now. Who has written a tag of it asks afterwards:
// of two who each write first and look then, at least one sees the other.
func IsBeingDeleted(ctx context.Context, repository string, image store.Digest, st *store.Store, cl *fetch.Client) (bool, error) {
	repo, err := registry.OpenForWriting(repository, registry.Options{Fetch: cl})
	if err != nil {
		return false, err
	}
	tags, err := repo.Tags(ctx)
	if err != nil {
		return false, err
	}
	slices.Sort(tags)
	cs := &claims{repo, repository, st, cl}
	return cs.deleting(ctx, tags, image, time.Now())
}
