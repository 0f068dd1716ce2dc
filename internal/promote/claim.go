package promote

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// The media types of a claim, and the annotation that holds it: all claims share their only, empty, blob.
const (
	claimType  = "application/vnd.sconce.claim.v1"
	emptyType  = "application/vnd.oci.empty.v1+json"
	claimField = "dev.sconce.claim"
)

// claimLife is how long a claim counts whose tag does not come: its owner died. Registries answer in seconds, and everything that takes
// long is done before a claim is made.
const claimLife = time.Hour

// state is what a claim says.
type state string

const (
	active    state = "active"
	withdrawn state = "withdrawn"
	deletion  state = "deletion" // of what [Clean] says while it deletes an image
)

// claim says that somebody is about to write a tag.
type claim struct {
	Tag     string       `json:"tag"`
	Targets []string     `json:"targets"` // HOST/PATH of the repositories
	Image   store.Digest `json:"image"`
	State   state        `json:"state"`
	Since   time.Time    `json:"since"`
	Owner   string       `json:"owner"` // of one run; random
}

const (
	claimPrefix = "claim."
	digestPart  = 12  // digits of an image's digest in a tag
	ownerPart   = 8   // digits of an owner
	maxTag      = 128 // characters (distribution-spec, "Pulling manifests")
)

// claimTags is how the tags of all claims to a tag begin.
func claimTags(tag string) string {
	if len(claimPrefix)+len(tag)+1+digestPart+1+ownerPart > maxTag {
		sum := sha256.Sum256([]byte(tag))
		tag = "x-" + hex.EncodeToString(sum[:digestPart])
	}
	return claimPrefix + tag + "."
}

// name is the claim's own tag. The owner is in it: two who promote the same image do not withdraw each other's.
func (c *claim) name() string {
	return claimTags(c.Tag) + c.Image.Hex()[:digestPart] + "." + c.Owner
}

// isClaimTo reports whether a tag is that of a claim to a tag, and of no longer one that begins the same way.
func isClaimTo(name, tag string) bool {
	rest, ok := strings.CutPrefix(name, claimTags(tag))
	return ok && len(rest) == digestPart+1+ownerPart && rest[digestPart] == '.' && strings.Trim(rest, "0123456789abcdef.") == ""
}

// rivals reports whether two claims cannot both come true.
func (c *claim) rivals(other *claim) bool {
	if c.Tag != other.Tag || c.Image == other.Image {
		return false
	}
	return slices.ContainsFunc(c.Targets, func(t string) bool { return slices.Contains(other.Targets, t) })
}

// alive reports whether a claim counts.
func (c *claim) alive(now time.Time) bool {
	return c.State == active && now.Sub(c.Since) < claimLife
}

// claims are the claims in one repository.
type claims struct {
	repo *registry.Repository
	name string // HOST/PATH
	st   *store.Store
	cl   *fetch.Client
}

func newOwner() string {
	b := make([]byte, ownerPart/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// write makes the claim known, or says that it is withdrawn: that needs no right to delete.
func (cs *claims) write(ctx context.Context, c *claim) error {
	_, err := cs.put(ctx, c.name(), claimField, c)
	return err
}

// put writes a document, as an annotation of an artifact, under a tag, and returns the digest of the artifact.
func (cs *claims) put(ctx context.Context, tag, field string, v any) (store.Digest, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	a := &registry.Artifact{Type: claimType, ConfigType: emptyType, Config: []byte("{}"), Annotations: map[string]string{field: string(data)}}
	return registry.PushArtifact(ctx, a, cs.name, tag, registry.PushOptions{Store: cs.st, Fetch: cs.cl})
}

// get reads a document that put has written, and returns the digest of its artifact: "" when it is gone.
func (cs *claims) get(ctx context.Context, tag, field string, v any) (store.Digest, error) {
	data, _, err := cs.repo.Manifest(ctx, tag)
	if registry.IsAbsent(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	a, err := cs.repo.Artifact(ctx, cs.st, data, claimType)
	if err != nil {
		return "", fmt.Errorf("claim %s:%s: %w", cs.name, tag, err)
	}
	if err := json.Unmarshal([]byte(a.Annotations[field]), v); err != nil {
		return "", fmt.Errorf("claim %s:%s is damaged: %w", cs.name, tag, err)
	}
	return store.DigestOf(data), nil
}

// read reads the claim under a tag, and the digest of its artifact; nil when it is gone.
func (cs *claims) read(ctx context.Context, name string) (*claim, store.Digest, error) {
	var c claim
	digest, err := cs.get(ctx, name, claimField, &c)
	if err != nil || digest == "" {
		return nil, "", err
	}
	if _, err := store.ParseDigest(string(c.Image)); err != nil || c.name() != name {
		return nil, "", fmt.Errorf("claim %s:%s is not what its name says", cs.name, name)
	}
	return &c, digest, nil
}

// against returns a claim of somebody else that is alive and cannot come true beside one of mine, or nil.
func (cs *claims) against(ctx context.Context, mine []*claim, now func() time.Time) (*claim, error) {
	tags, err := cs.repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range mine {
		if !slices.Contains(tags, c.name()) {
			return nil, fmt.Errorf("%s does not list the tag %s that was just written: nobody can promote safely there", cs.name, c.name())
		}
		for _, name := range tags {
			if name == c.name() || !isClaimTo(name, c.Tag) {
				continue
			}
			other, _, err := cs.read(ctx, name)
			if err != nil {
				return nil, err
			}
			if other != nil && c.rivals(other) && other.alive(now()) {
				return other, nil
			}
		}
		if deleting, err := cs.deleting(ctx, tags, c.Image, now()); err != nil || deleting {
			return &claim{Tag: c.Tag, Image: c.Image, State: deletion, Since: now()}, err
		}
	}
	return nil, nil
}
