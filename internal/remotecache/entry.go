package remotecache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// The media types of an entry.
const (
	artifactType = "application/vnd.sconce.step.v1"
	configType   = "application/vnd.sconce.step.config.v1+json"
	blobType     = "application/octet-stream"
)

// maxValue bounds a value, which stands in the manifest, in bytes.
const maxValue = 1 << 20

// entryName is what an entry is about. It is in the entry too: a tag can be moved by anybody.
type entryName struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`
}

type entryConfig struct {
	entryName
	Value json.RawMessage `json:"value"`
}

// replaces is the annotation of an entry that takes the place of one that could not be used. Without it the two might be the same
// bytes, and then nobody would look whether their blobs are there.
const replaces = "dev.sconce.step.replaces"

// makeEntry returns an entry as it is sent.
func (r *Remote) makeEntry(st *store.Store, tag string, name entryName, v any, blobs []store.Digest) (*registry.Artifact, error) {
	value, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(value) > maxValue {
		return nil, fmt.Errorf("a value of %d bytes: %w", len(value), registry.ErrTooLarge)
	}
	a := &registry.Artifact{Type: artifactType, ConfigType: configType}
	if a.Config, err = json.Marshal(entryConfig{name, value}); err != nil {
		return nil, err
	}
	for _, d := range blobs {
		size, err := st.BlobSize(d)
		if err != nil {
			return nil, err
		}
		a.Blobs = append(a.Blobs, v1.Descriptor{MediaType: blobType, Digest: v1.Hash{Algorithm: "sha256", Hex: d.Hex()}, Size: size})
	}
	manifest, err := a.Manifest()
	if err == nil && r.isDamaged(tag) {
		a.Annotations = map[string]string{replaces: string(store.DigestOf(manifest))}
	}
	return a, err
}

func (r *Remote) send(ctx context.Context, st *store.Store, a *registry.Artifact, tag string) error {
	_, err := registry.PushArtifact(ctx, a, r.ref.Value, tag, registry.PushOptions{
		Store: st, Fetch: r.opts.Fetch, User: r.ref.User, Jobs: r.opts.Jobs, Chunk: r.opts.Chunk,
	})
	return err
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
	a, err := from.Artifact(ctx, st, data, artifactType)
	if err != nil {
		return blame(err)
	}
	if a.ConfigType != configType {
		return fmt.Errorf("the tag leads to something else: a document of type %q", a.ConfigType)
	}
	var config entryConfig
	if err := json.Unmarshal(a.Config, &config); err != nil {
		return fmt.Errorf("its value is damaged: %w", err)
	}
	if config.entryName != name {
		return fmt.Errorf("it is that of %s %s", config.Kind, shorten(config.Key))
	}
	if err := r.blobs(ctx, st, from, a.Blobs, name.Kind+" "+shorten(name.Key)); err != nil {
		return err
	}
	// Last, so that v is not touched by an entry that cannot be used.
	if err := json.Unmarshal(config.Value, v); err != nil {
		return fmt.Errorf("its value is damaged: %w", err)
	}
	return nil
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
