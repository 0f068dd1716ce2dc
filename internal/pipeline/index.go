package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// architectureOf is the part of a platform that names of variants end in: "arm64" of "linux/arm64/v8".
func architectureOf(platform string) string {
	parts := strings.Split(platform, "/")
	return parts[min(1, len(parts)-1)]
}

// findIndexes notes which variants of a recipe are published together: those with [publish] index, by what is left of their names
// without the architecture. The reference of such an index is PATH or PATH:REST.
func (p *Pipeline) findIndexes(path string, variants []string) error {
	for _, v := range variants {
		ref := path + ":" + v
		written, err := recipe.Load(filepath.Join(p.Dir, path) + ":" + v)
		if err != nil {
			return err
		}
		if !written.Publish.Index {
			continue
		}
		r, err := p.load(ref)
		if err != nil {
			return err
		}
		rest, ok := strings.CutSuffix(v, architectureOf(r.Target.Platform))
		if !ok || rest != "" && !strings.HasSuffix(rest, "-") {
			err := fmt.Errorf("%s is for %s, and is to be part of an index: its name does not end in %s", ref, r.Target.Platform, architectureOf(r.Target.Platform))
			return fault.Usage(fault.Hint(err, "call the variants such as small-amd64 and small-arm64, which become small"))
		}
		index := strings.TrimSuffix(path+":"+strings.TrimSuffix(rest, "-"), ":")
		if slices.Contains(p.refs, index) && p.indexes[index] == nil {
			return fault.Usage(fmt.Errorf("%s is an image, and would be an index with %s, too", index, ref))
		}
		if p.indexes[index] == nil {
			p.refs = append(p.refs, index)
		}
		p.indexes[index] = append(p.indexes[index], ref)
	}
	return nil
}

// indexWith is the index that an image is part of; "" for none.
func (p *Pipeline) indexWith(ref string) string {
	for index, parts := range p.indexes {
		if slices.Contains(parts, ref) {
			return index
		}
	}
	return ""
}

// addIndex plans the parts of an index. Its key is made of theirs.
func (b *planner) addIndex(ctx context.Context, ref string) (*Image, error) {
	if known := b.known[ref]; known != nil {
		return known, nil
	}
	i := &Image{Ref: ref}
	_, i.Variant = splitRef(ref)
	sum := sha256.New()
	for _, name := range b.indexes[ref] {
		part, err := b.addRef(ctx, name)
		if err != nil {
			return nil, err
		}
		i.Parts = append(i.Parts, part)
		if part.Problem != nil && i.Problem == nil {
			i.Problem = fmt.Errorf("%s, which is part of it, cannot be planned", part.Ref)
		}
		fmt.Fprintf(sum, "%s %s\n", part.Recipe.Target.Platform, part.Key)
	}
	first := i.Parts[0]
	i.Name, i.Recipe = first.Name, first.Recipe
	i.Version = strings.TrimSuffix(first.Version, architectureOf(first.Recipe.Target.Platform))
	if i.Version = strings.TrimSuffix(i.Version, "-"); i.Version == "" {
		i.Version = recipe.DefaultVersion
	}
	i.Stable, i.Mutable = b.stableOf(i.Recipe, i.Version), b.isMutable(i.Version)
	if i.Problem == nil {
		i.Key = plan.Key(hex.EncodeToString(sum.Sum(nil)))
		i.Canonical = b.canonicalOf(i.Name, i.Version, i.Key)
	}
	b.known[ref] = i
	b.all = append(b.all, i)
	return i, nil
}

// Platforms are what an image runs on.
func (i *Image) Platforms() []string {
	if i.Parts == nil {
		return []string{i.Recipe.Target.Platform}
	}
	var all []string
	for _, part := range i.Parts {
		all = append(all, part.Platforms()...)
	}
	return all
}

// join puts an index together from its parts, which are in its repository, and writes it under its canonical reference. The same parts
// give the same bytes.
func (r *runner) join(ctx context.Context, st *Status) error {
	name, tag := store.SplitImageName(st.Canonical)
	repo, err := registry.OpenForWriting(name, registry.Options{Fetch: r.session.Fetch, Push: true})
	if err != nil {
		return err
	}
	key, err := r.Key()
	if err != nil {
		return err
	}
	trust, err := r.trusted(nil)
	if err != nil {
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	var parts []engine.InRegistry
	for _, part := range st.Parts {
		entry, err := describePart(ctx, r.session, repo, part)
		if err != nil {
			return fmt.Errorf("%s: %w", part.Ref, err)
		}
		index.Manifests = append(index.Manifests, entry)
		found := inRegistry(part.Canonical, store.Digest(entry.Digest.String()))
		if err := r.session.CheckKey(ctx, found, part.Key, trust); err != nil {
			return err
		}
		parts = append(parts, found)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if st.Digest != "" { // there is one already
		if there, err := r.belongs(ctx, st.Image, st.Digest, store.DigestOf(data)); err != nil || there {
			return err
		}
	}
	st.Digest = store.DigestOf(data)
	put := func(reference string) error {
		return repo.PutManifest(ctx, data, string(types.OCIImageIndex), reference)
	}
	im := engine.InRegistry{Repository: name, Tag: tag, Digest: st.Digest}
	return r.untilKept(ctx, st, func() error { // its tag comes last, as that of an image does
		if err := put(string(st.Digest)); err != nil {
			return err
		}
		if err := r.session.DescribeIndex(ctx, im, st.Key, parts, key, createdNow()); err != nil {
			return err
		}
		if err := r.session.AttachOrigin(ctx, name, st.Digest, r.origin(ctx), key); err != nil {
			return err
		}
		return put(tag)
	})
}

// describePart is an index's entry of an image, with the platform that its configuration says.
func describePart(ctx context.Context, s *engine.Session, repo *registry.Repository, part *Image) (v1.Descriptor, error) {
	_, tag := store.SplitImageName(part.Canonical)
	data, mediaType, err := repo.Manifest(ctx, tag)
	if err != nil {
		return v1.Descriptor{}, err
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return v1.Descriptor{}, fmt.Errorf("its manifest is damaged: %w", err)
	}
	digest, err := store.ParseDigest(m.Config.Digest.String())
	if err != nil || m.Config.Size <= 0 || m.Config.Size > registry.MaxConfig {
		return v1.Descriptor{}, errors.New("its manifest is damaged: it has no configuration")
	}
	if err := repo.Blob(ctx, digest, m.Config.Size, part.Name); err != nil {
		return v1.Descriptor{}, err
	}
	text, err := s.Store.ReadBlob(digest, registry.MaxConfig)
	if err != nil {
		return v1.Descriptor{}, err
	}
	var platform v1.Platform
	if err := json.Unmarshal(text, &platform); err != nil {
		return v1.Descriptor{}, fmt.Errorf("its configuration is damaged: %w", err)
	}
	if architectureOf(platform.String()) != architectureOf(part.Recipe.Target.Platform) {
		return v1.Descriptor{}, fmt.Errorf("it is for %s, and its recipe for %s", platform.String(), part.Recipe.Target.Platform)
	}
	hash := v1.Hash{Algorithm: "sha256", Hex: store.DigestOf(data).Hex()}
	return v1.Descriptor{MediaType: types.MediaType(mediaType), Digest: hash, Size: int64(len(data)), Platform: &platform}, nil
}
