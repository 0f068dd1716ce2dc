package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// chooser finds the image for a platform in an index, which may hold other indexes.
type chooser struct {
	want v1.Platform
	any  bool // the caller named no platform: a single image is taken, whatever it is for
	// read gives a manifest, index or config, checked against its digest.
	read func(ctx context.Context, d v1.Descriptor) ([]byte, error)
}

// Limits on indexes: deeper or wider ones are no images of several platforms but an attack.
const (
	maxIndexDepth   = 4
	maxIndexEntries = 1000
)

// candidate is an image in an index.
type candidate struct {
	desc     v1.Descriptor
	platform v1.Platform
}

// errTooDeep is the answer to an index in an index in an index…
var errTooDeep = errors.New("the index holds too many indexes or entries")

// choose returns the manifest of the image wanted.
func (c *chooser) choose(ctx context.Context, entries []v1.Descriptor) ([]byte, error) {
	all, err := c.candidates(ctx, entries, 0)
	if err != nil {
		return nil, err
	}
	if len(all) == 1 && c.any {
		return c.read(ctx, all[0].desc)
	}
	var found []candidate
	failure := &PlatformError{Want: c.want}
	for _, one := range all {
		failure.Have = append(failure.Have, one.platform)
		if matches(one.platform, c.want) {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, failure
	}
	return c.read(ctx, found[0].desc) // the first is the one preferred (image-spec, image-index)
}

// candidates lists the images of an index, each once.
func (c *chooser) candidates(ctx context.Context, entries []v1.Descriptor, depth int) ([]candidate, error) {
	if depth > maxIndexDepth || len(entries) > maxIndexEntries {
		return nil, errTooDeep
	}
	var out []candidate
	seen := map[v1.Hash]bool{}
	for _, d := range entries {
		if seen[d.Digest] || attestation(d) {
			continue
		}
		seen[d.Digest] = true
		more, err := c.expand(ctx, d, depth)
		if err != nil {
			return nil, err
		}
		if out = append(out, more...); len(out) > maxIndexEntries {
			return nil, errTooDeep
		}
	}
	return out, nil
}

// attestation recognises entries that describe another image instead of being one.
func attestation(d v1.Descriptor) bool {
	if d.Platform != nil && (d.Platform.OS == "unknown" || d.Platform.Architecture == "unknown") {
		return true
	}
	return d.Annotations["vnd.docker.reference.type"] != ""
}

func (c *chooser) expand(ctx context.Context, d v1.Descriptor, depth int) ([]candidate, error) {
	if known(d.Platform) && !d.MediaType.IsIndex() {
		return []candidate{{d, *d.Platform}}, checkPlatform(*d.Platform)
	}
	data, err := c.read(ctx, d)
	if err != nil {
		return nil, err
	}
	doc, err := readDocument(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Digest, err)
	}
	if doc.isIndex() {
		return c.candidates(ctx, doc.Manifests, depth+1)
	}
	if doc.Config == nil || !doc.Config.MediaType.IsConfig() { // an artifact that is no image
		return nil, nil
	}
	platform, err := c.platformOf(ctx, *doc.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Digest, err)
	}
	return []candidate{{d, platform}}, checkPlatform(platform)
}

// platformOf asks an image's config, where the index says nothing.
func (c *chooser) platformOf(ctx context.Context, d v1.Descriptor) (v1.Platform, error) {
	data, err := c.read(ctx, d)
	if err != nil {
		return v1.Platform{}, err
	}
	var p v1.Platform
	if err := json.Unmarshal(data, &p); err != nil {
		return v1.Platform{}, fmt.Errorf("read config: %w", err)
	}
	return p, nil
}

// document is what an index and a manifest have in common.
type document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType"`
	Manifests     []v1.Descriptor `json:"manifests"`
	Config        *v1.Descriptor  `json:"config"`
}

func readDocument(data []byte) (*document, error) {
	doc := &document{}
	if err := json.Unmarshal(data, doc); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if doc.SchemaVersion == 1 {
		return nil, errors.New("the image has a manifest of schema 1, which was given up in 2019: push it again with a current tool")
	}
	if doc.SchemaVersion != 2 {
		return nil, fmt.Errorf("read manifest: schema version %d is not 2", doc.SchemaVersion)
	}
	return doc, nil
}

// isIndex tells an index from a manifest. OCI allows either to leave out its media type.
func (d *document) isIndex() bool {
	return d.MediaType.IsIndex() || (d.MediaType == "" && d.Config == nil && d.Manifests != nil)
}
