package source

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// remote is a repository, at all the places it may be pulled from: mirrors first.
type remote struct {
	opts  Options
	repos []*registry.Repository
	good  atomic.Int32 // which of repos answered last
}

func openRegistry(ctx context.Context, ref Ref, o Options) (v1.Image, error) {
	config, err := registry.ReadConfig()
	if err != nil {
		return nil, err
	}
	endpoints, err := config.Endpoints(ref.host(), ref.Repository(), ref.Digest != "")
	if err != nil {
		return nil, err
	}
	r := &remote{opts: o}
	for _, at := range endpoints {
		r.repos = append(r.repos, registry.New(at, registry.Options{Fetch: o.Fetch, User: ref.User}))
	}
	data, err := r.top(ctx, ref)
	if err != nil {
		return nil, err
	}
	doc, err := readDocument(data)
	if err != nil {
		return nil, err
	}
	if doc.isIndex() {
		c := &chooser{want: o.wanted(), read: r.read}
		if data, err = c.choose(ctx, doc.Manifests); err != nil {
			return nil, err
		}
	}
	return newImage(ctx, o.Store, data, r)
}

// top reads what the reference means: by digest when it has one, which needs no network for what the store has.
func (r *remote) top(ctx context.Context, ref Ref) ([]byte, error) {
	if ref.Digest != "" {
		return r.manifest(ctx, ref.Digest)
	}
	return r.ask(ctx, ref.Tag)
}

func (r *remote) manifest(ctx context.Context, d store.Digest) ([]byte, error) {
	if r.opts.Store.HasBlob(d) {
		return r.opts.Store.ReadBlob(d, maxManifest)
	}
	return r.ask(ctx, string(d))
}

// ask reads a manifest from the first place that has it, and keeps it.
func (r *remote) ask(ctx context.Context, reference string) ([]byte, error) {
	var data []byte
	err := r.each(ctx, func(repo *registry.Repository) (err error) {
		data, _, err = repo.Manifest(ctx, reference)
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = r.opts.Store.PutBlob(data)
	return data, err
}

// each tries the places in order, the one that was good last time first. The error is that of the last, the registry
// itself; what mirrors say is only a warning.
func (r *remote) each(ctx context.Context, try func(*registry.Repository) error) error {
	var err error
	first := int(r.good.Load())
	order := append([]int{first}, slices.DeleteFunc(indices(len(r.repos)), func(i int) bool { return i == first })...)
	for n, i := range order {
		if err = try(r.repos[i]); err == nil {
			r.good.Store(int32(i))
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if n < len(order)-1 {
			progress.Warn(ctx, fmt.Sprintf("mirror %s: %v", r.repos[i].Host(), err), "the next place is tried")
		}
	}
	return err
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// read implements chooser.read.
func (r *remote) read(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	digest, err := store.ParseDigest(d.Digest.String())
	if err != nil {
		return nil, err
	}
	if d.MediaType.IsConfig() {
		return readEnsured(ctx, r.opts.Store, r, d, maxConfig)
	}
	return r.manifest(ctx, digest)
}

// bring implements blobs.
func (r *remote) bring(ctx context.Context, d v1.Descriptor, follow follow) error {
	digest, err := checkDescriptor(d)
	if err != nil || r.opts.Store.HasBlob(digest) {
		return err
	}
	label := digest.Short()
	if d.MediaType.IsConfig() {
		label = "config " + label
	}
	return r.each(ctx, func(repo *registry.Repository) error {
		if err := repo.FollowBlob(ctx, digest, d.Size, label, follow); err != nil {
			return err
		}
		return registry.RememberOrigin(r.opts.Store, digest, repo.Name())
	})
}
