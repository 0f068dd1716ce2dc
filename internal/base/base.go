// Package base is what an image is based on: it pins what a recipe's [base] means today, and brings the pinned base into the
// store.
//
// A pinned base is either an image, named by the digest of its manifest, or a distribution's packages, each named by its
// hash (see package bootstrap). Either way, the same [Pinned] is the same base on any machine and at any time.
package base

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

	"sconce.dev/sconce/internal/bootstrap"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// Pinned is a base whose content is decided. Exactly one of Digest, Bootstrap and Recipe is set.
type Pinned struct {
	Reference string            `toml:"reference,omitempty"` // where the image comes from, as the recipe says it
	Name      string            `toml:"name,omitempty"`      // of an image in a registry, in full
	Digest    store.Digest      `toml:"digest,omitempty"`    // of the image's manifest for the platform
	Layers    int               `toml:"layers,omitempty"`    // how many; 0 as long as nobody has looked
	Bootstrap *bootstrap.Pinned `toml:"bootstrap,omitempty"`
	Recipe    string            `toml:"recipe,omitempty"`    // another recipe, as this one names it
	ImageKey  string            `toml:"image-key,omitempty"` // of the image of Recipe, which is the key of its plan; "" where nothing was resolved on it
	Remove    []string          `toml:"remove,omitempty"`    // patterns of files that are taken out
}

// Options says where bases are brought to and by what means.
type Options struct {
	Store   *store.Store
	Fetch   *fetch.Client
	Offline bool
	Reach   reach.Bounds // which files of this machine a base may be that no recipe names, which has bounds of its own

	// Without takes the files out of an image that patterns name. It is there for bases that want it.
	Without func(ctx context.Context, im *image.Image, patterns []string) (*image.Image, error)
}

func (o Options) source(platform v1.Platform) source.Options {
	return source.Options{Store: o.Store, Fetch: o.Fetch, Platform: platform, Offline: o.Offline}
}

// Pin finds out what r's base is today. Names of the store's own images go before those of registries.
func Pin(ctx context.Context, r *recipe.Recipe, platform v1.Platform, o Options) (*Pinned, error) {
	p, err := pin(ctx, r, platform, o)
	if err == nil {
		p.Remove = r.Base.Remove
	}
	return p, err
}

func pin(ctx context.Context, r *recipe.Recipe, platform v1.Platform, o Options) (*Pinned, error) {
	if o.Reach = r.Reach; r.Base.Anywhere {
		o.Reach = reach.Anywhere()
	}
	if r.Base.Recipe != "" {
		return &Pinned{Recipe: r.Base.Recipe, ImageKey: r.Base.Key}, nil
	}
	if b := r.Base.Bootstrap; b != nil {
		keys := make([]string, len(b.Keys))
		for i, file := range b.Keys {
			keys[i] = r.Resolve(file)
		}
		return PinPackages(ctx, Packages{
			Suite: b.Suite, Dnf: b.Dnf, Packages: b.Packages, Mirror: b.Mirror, Sources: b.Sources, Components: b.Components, Variant: b.Variant,
			Keys: keys, Trusted: b.Trusted,
		}, platform, o)
	}
	ref, err := source.ParseIn(r.BaseReference(), o.Store)
	if err != nil {
		return nil, err
	}
	return pinReference(ctx, ref, r.Base.Image, platform, o)
}

// Packages asks for a base from a distribution's packages.
type Packages = bootstrap.Request

// PinPackages finds out which packages a base takes today, for the platform's architecture.
func PinPackages(ctx context.Context, r Packages, platform v1.Platform, o Options) (*Pinned, error) {
	if o.Offline {
		return nil, errors.New("cannot resolve the base's packages with --offline: the mirror has to be asked")
	}
	if err := o.reachPackages(r); err != nil {
		return nil, err
	}
	r.Architecture = platform.Architecture
	p, err := bootstrap.Resolve(ctx, o.Store, o.Fetch, r)
	if err != nil {
		return nil, err
	}
	return &Pinned{Bootstrap: p, Layers: 1}, nil
}

// reachPackages refuses repositories and keys that are files of this machine and outside of bounds.
func (o Options) reachPackages(r Packages) error {
	for _, file := range r.Keys {
		if err := o.Reach.CheckAddress(file, ""); err != nil {
			return err
		}
	}
	for _, text := range slices.Concat([]string{r.Mirror, r.Dnf}, r.Sources) {
		address, _, _ := strings.Cut(strings.TrimSpace(text), " ")
		if !strings.Contains(address, "://") {
			continue // the name of a release
		}
		if err := o.Reach.CheckAddress(address, ""); err != nil {
			return err
		}
	}
	return nil
}

// PinImage finds out what an image reference means today. Names of the store's own images go before those of registries.
func PinImage(ctx context.Context, reference string, platform v1.Platform, o Options) (*Pinned, error) {
	if filepath.IsAbs(reference) { // which is looked into below, to tell what it is
		if err := o.Reach.Check(reference); err != nil {
			return nil, err
		}
	}
	ref, err := source.ParseIn(reference, o.Store)
	// A name without a tag means the latest, and never the only one that happens to be here.
	if err == nil && ref.Transport == source.Store && ref.Tag != store.DefaultTag && store.ShortName(reference) == store.ShortName(ref.Value) {
		ref, err = source.Parse(reference)
	}
	if err != nil {
		return nil, err
	}
	return pinReference(ctx, ref, reference, platform, o)
}

func pinReference(ctx context.Context, ref source.Ref, written string, platform v1.Platform, o Options) (*Pinned, error) {
	if path := ref.Path(); path != "" {
		if err := o.Reach.Check(path); err != nil {
			return nil, err
		}
	}
	_, digest, err := source.Resolve(ctx, ref, o.source(platform))
	if err != nil {
		return nil, fmt.Errorf("resolve base %s: %w", written, source.Explain(err, written, ref, o.Store))
	}
	p := &Pinned{Reference: written, Digest: digest}
	if ref.Transport == source.Docker {
		p.Name = strings.TrimPrefix(source.Ref{Transport: ref.Transport, Value: ref.Value, Tag: ref.Tag}.String(), "docker://")
	}
	return p, nil
}

// Key identifies the base's content: equal keys, equal bases.
func (p *Pinned) Key() string {
	content := struct {
		Version   int
		Digest    store.Digest
		Bootstrap *bootstrap.Pinned
		ImageKey  string   `json:",omitempty"` // the keys of bases without these are what they were before there were any
		Remove    []string `json:",omitempty"`
	}{bootstrap.Version, p.Digest, identity(p.Bootstrap), p.ImageKey, p.Remove}
	data, err := json.Marshal(content)
	if err != nil {
		panic(err) // plain strings and numbers always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// identity drops what makes no other base: where packages are downloaded from, and how a time is spelled.
func identity(p *bootstrap.Pinned) *bootstrap.Pinned {
	if p == nil {
		return nil
	}
	q := *p
	q.Epoch = p.Epoch.UTC()
	q.Packages = make([]bootstrap.Package, len(p.Packages))
	for i, pkg := range p.Packages {
		pkg.URL = ""
		q.Packages[i] = pkg
	}
	return &q
}

// Config reads the configuration of the base, an image, without its layers where those need not be read for it.
func (p *Pinned) Config(ctx context.Context, platform v1.Platform, o Options) (*v1.ConfigFile, error) {
	if im, err := image.Load(ctx, o.Store, p.Digest); err == nil {
		return &im.Config, nil
	}
	ref, err := source.ParseIn(p.Reference, o.Store)
	if err != nil {
		return nil, err
	}
	if ref, err = source.Pin(ref, p.Digest); err != nil {
		return nil, err
	}
	outline, err := source.Outline(ctx, ref, o.source(platform))
	if err != nil {
		return nil, p.explain(err)
	}
	return &outline.Image.Config, nil
}

// Image brings the base into the store. reference resolves an image that is not there yet: it is the recipe's reference
// with paths made absolute.
//
// The image of a recipe is there already: whoever asks for what is based on it has it made first.
func (p *Pinned) Image(ctx context.Context, reference string, platform v1.Platform, o Options) (*image.Image, error) {
	if len(p.Remove) == 0 {
		return p.whole(ctx, reference, platform, o)
	}
	once := store.Once[store.Digest]{Kind: store.KindBase, Key: p.Key(), Does: "takes files out of the base " + p.Title()}
	im, _, err := image.Once(ctx, o.Store, once, func(ctx context.Context) (*image.Image, error) {
		im, err := p.whole(ctx, reference, platform, o)
		if err != nil {
			return nil, err
		}
		return o.Without(ctx, im, p.Remove)
	})
	return im, err
}

// Title is what people call the base.
func (p *Pinned) Title() string {
	if p.Bootstrap != nil {
		return p.Bootstrap.Suite
	}
	return p.Recipe + p.Reference
}

// built is the image of the recipe that the base is.
func (p *Pinned) built(ctx context.Context, o Options) (*image.Image, error) {
	var digest store.Digest
	found, err := o.Store.GetRecord(store.KindImageStep, p.ImageKey, &digest)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("base %s: its image is not in the store", p.Recipe)
	}
	return image.Load(ctx, o.Store, digest)
}

// whole is Image before anything is taken out.
func (p *Pinned) whole(ctx context.Context, reference string, platform v1.Platform, o Options) (*image.Image, error) {
	switch {
	case p.Bootstrap != nil:
		whole := *p
		whole.Remove = nil
		return whole.bootstrapped(ctx, platform, o)
	case p.Recipe != "":
		return p.built(ctx, o)
	}
	if im, err := image.Load(ctx, o.Store, p.Digest); err == nil {
		return im, nil
	}
	ref, err := source.ParseIn(reference, o.Store)
	if err != nil {
		return nil, err
	}
	pinned, err := source.Pin(ref, p.Digest)
	if err != nil {
		return nil, err
	}
	im, err := source.Import(ctx, pinned, o.source(platform))
	if err != nil {
		return nil, p.explain(err)
	}
	return im, nil
}

// explain says of which base err is, and what to do about one that has changed since it was locked.
func (p *Pinned) explain(err error) error {
	var changed *source.ChangedError
	is := errors.As(err, &changed)
	err = fmt.Errorf("base %s: %w", p.Reference, err)
	if is {
		return fault.Hint(err, "`sconce lock --upgrade` takes the new one")
	}
	return err
}

func (p *Pinned) bootstrapped(ctx context.Context, platform v1.Platform, o Options) (*image.Image, error) {
	once := store.Once[store.Digest]{Kind: store.KindBootstrap, Key: p.Key(), Does: "makes the base " + p.Reference}
	im, _, err := image.Once(ctx, o.Store, once, func(ctx context.Context) (*image.Image, error) {
		d, err := bootstrap.Build(ctx, o.Store, o.Fetch, p.Bootstrap, layer.Options{})
		if err != nil {
			return nil, err
		}
		return image.Assemble(ctx, o.Store, image.Spec{
			Platform:  platform,
			Created:   p.Bootstrap.Epoch,
			Additions: []image.Addition{{Layer: d, CreatedBy: "bootstrap " + p.Bootstrap.Suite}},
			Edit: func(c *v1.Config) {
				c.Env = []string{"PATH=" + searchpath.Default}
				c.Cmd = []string{"/bin/bash"}
			},
		})
	})
	return im, err
}
