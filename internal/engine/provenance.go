package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/sbom"
	"sconce.dev/sconce/internal/store"
)

// The types of the documents that are attached to images.
const (
	provenanceType = "https://slsa.dev/provenance/v1"
	cycloneDXType  = "https://cyclonedx.org/bom"
	spdxType       = "https://spdx.dev/Document"
)

// provenance says what an image was made from (SLSA, "Provenance" v1). There is no time and no machine in it: the same image has the
// same one.
type provenance struct {
	Definition struct {
		Type       string            `json:"buildType"`
		Parameters map[string]string `json:"externalParameters"`
		Internal   steps             `json:"internalParameters"`
		Resolved   []dependency      `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	Details struct {
		Builder struct {
			ID      string            `json:"id"`
			Version map[string]string `json:"version"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// parameterKey is the parameter that is the key of the image's plan.
const parameterKey = "key"

func (p *provenance) key() plan.Key { return plan.Key(p.Definition.Parameters[parameterKey]) }

// steps are what made the image, by which a later plan tells what has changed.
type steps struct {
	Plan *plan.Record `json:"plan"`
}

// maxListed bounds how many files of a step are listed one by one: the step's key stands for all of them.
const maxListed = 2000

// recorded is a plan's record as provenance has it.
func recorded(p *Plan) *plan.Record {
	r := p.Record()
	for i := range r.Steps {
		r.Steps[i].Seconds = 0
		r.Steps[i].Place = p.Recipe.fromDir(r.Steps[i].Place)
		if len(r.Steps[i].Files) > maxListed {
			r.Steps[i].Files = nil
		}
	}
	return r
}

// fromDir makes a path of this machine, of a file and what follows it, one from the recipe's directory on, as others have it.
func (r *Recipe) fromDir(path string) string {
	dir, err := filepath.Abs(r.Dir)
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return filepath.Base(path)
	}
	return rel
}

// MadeBy returns the plan that an image was made by, as its provenance in a repository says, or nil when it says none. No signature is
// looked at: it is for telling people what has changed, and for nothing else.
func (s *Session) MadeBy(ctx context.Context, repository string, image store.Digest) (*plan.Record, error) {
	book, err := s.Evidence(repository, nil, nil)
	if err != nil {
		return nil, err
	}
	text, err := book.Peek(ctx, image, Provenance)
	if err != nil || text == nil {
		return nil, err
	}
	var p provenance
	if json.Unmarshal(text, &p) != nil {
		return nil, nil //nolint:nilerr // of another form: it says nothing
	}
	return p.Definition.Internal.Plan, nil
}

// dependency is something that went into an image (in-toto, "ResourceDescriptor"), with its digests by their names in in-toto's "DigestSet".
type dependency struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

func from(uri string, d store.Digest) dependency {
	if d == "" {
		return dependency{URI: uri}
	}
	return dependency{uri, map[string]string{"sha256": d.Hex()}}
}

// provenanceOf tells what a recipe's lock has decided.
func (s *Session) provenanceOf(ctx context.Context, r *Recipe, name string, made *Plan) (*provenance, error) {
	state, err := r.ReadLock()
	if err != nil {
		return nil, err
	}
	if !state.Fits() {
		return nil, fmt.Errorf("the lock of %s does not fit it any more", r.Path)
	}
	l, err := r.pinnedBy(state.Lock)
	if err != nil {
		return nil, err
	}
	p := s.builder()
	p.Definition.Type = "https://sconce.dev/recipe/v1"
	p.Definition.Parameters = map[string]string{"image": name, "platform": r.Target.Platform, parameterKey: string(made.Image.Key)}
	p.Definition.Internal.Plan = recorded(made)
	below, err := s.below(ctx, made)
	if err != nil {
		return nil, err
	}
	p.Definition.Resolved = l.dependencies(below)
	return p, nil
}

// below is the image that a plan's recipe is based on, as far as it is known: where others take it from and what that is, else what the store
// has.
func (s *Session) below(ctx context.Context, p *Plan) (dependency, error) {
	if p.Below == nil {
		return dependency{}, nil
	}
	if ref := p.Below.Canonical; ref != "" {
		if digest, found, err := s.Head(ctx, ref); found || err != nil {
			return from(ref, digest), err
		}
	}
	im, err := s.Made(ctx, p.Below)
	if im == nil {
		return dependency{URI: p.Recipe.fromDir(p.Recipe.BaseRecipe())}, err
	}
	return from(p.Recipe.fromDir(p.Recipe.BaseRecipe()), im.Digest), err
}

// dependencies are the base, all packages and sources, and what is there only while something is built, as purls (package-url specification)
// where there are such. below is the base that is another recipe.
func (l *Locked) dependencies(below dependency) []dependency {
	all := []dependency{}
	switch b := l.Base; {
	case b.Digest != "":
		all = append(all, from(b.Reference, b.Digest))
	case b.Bootstrap != nil:
		kind := cmp.Or(b.Bootstrap.Manager, "deb")
		for i := range b.Bootstrap.Packages {
			p := &b.Bootstrap.Packages[i]
			all = append(all, from(sbom.PURL(kind, p.Name, p.Version, url.Values{"arch": {p.Architecture}}), p.SHA256))
		}
	case b.Recipe != "":
		all = append(all, below)
	}
	all = append(all, ofSystem(l.System)...)
	for _, name := range slices.Sorted(maps.Keys(l.Component)) {
		all = append(all, ofSystem(l.Component[name].System)...)
	}
	for i := range l.Conda.Packages {
		p := &l.Conda.Packages[i]
		all = append(all, from(sbom.PURL("conda", p.Name, p.Version, url.Values{"build": {p.Build}, "subdir": {p.Subdir}}), p.SHA256))
	}
	for i := range l.Wheels {
		w := &l.Wheels[i]
		all = append(all, from(sbom.PURL("pypi", w.Name, w.Version, nil), w.Digest))
	}
	for i := range l.Compiles {
		c := &l.Compiles[i]
		all = append(all, ofCompiled(c.Name, c.Version, c.Source))
		for _, w := range c.Requires {
			all = append(all, from(sbom.PURL("pypi", w.Name, w.Version, nil), w.Digest))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Source)) {
		for _, f := range l.Source[name].Files {
			all = append(all, from("pkg:generic/"+name+"?file="+f.Name, f.SHA256))
		}
	}
	seen := make(map[dependencyID]bool) // components may be built with the same packages
	return slices.DeleteFunc(all, func(d dependency) bool {
		id := dependencyID{d.URI, d.Digest["sha256"]}
		again := seen[id]
		seen[id] = true
		return again
	})
}

type dependencyID struct{ uri, sha256 string }

func ofSystem(pinned *ospackages.Pinned) []dependency {
	if pinned == nil {
		return nil
	}
	var all []dependency
	for i := range pinned.Packages {
		p := &pinned.Packages[i]
		all = append(all, from(sbom.PURL("generic", p.Name, p.Version, url.Values{"arch": {p.Architecture}}), p.SHA256))
	}
	return all
}

// ofCompiled is a package that is built, by its archive or commit. A directory has neither: its content is in the plan's key.
func ofCompiled(name, version string, src python.Source) dependency {
	d := from(sbom.PURL("pypi", name, version, nil), src.Digest)
	if src.Kind == python.SourceGit {
		d.Digest = map[string]string{"gitCommit": src.Commit}
	}
	return d
}

// indexBuild is the build type of an index, whose parameters are its name and its key, and whose dependencies are its images.
const indexBuild = "https://sconce.dev/index/v1"

// DescribeIndex says beside an index which images it was put together from, by the references that they have. Notes are as in
// [evidence.Book.Attach]. There is no time and no machine in it.
func (s *Session) DescribeIndex(ctx context.Context, im InRegistry, key plan.Key, images []InRegistry, sign *attest.PrivateKey, notes map[string]string) error {
	p := s.builder()
	p.Definition.Type = indexBuild
	p.Definition.Parameters = map[string]string{"image": im.Repository + ":" + im.Tag, parameterKey: string(key)}
	for _, i := range images {
		p.Definition.Resolved = append(p.Definition.Resolved, from(i.Repository+":"+i.Tag, i.Digest))
	}
	book, err := s.Evidence(im.Repository, sign, nil)
	if err != nil {
		return err
	}
	if err := book.Attach(ctx, im.Digest, Provenance, provenanceType, p, notes); err != nil {
		return fmt.Errorf("attach the provenance: %w", err)
	}
	if sign == nil {
		return nil
	}
	return attachKey(ctx, book, im.Digest, key)
}

// Origin is where something that is signed was done.
type Origin = evidence.Origin

// originType is the type of the document that says of an image where it was built. It is none of its provenance, which is the same for the
// same image.
const originType = "https://sconce.dev/origin/v1"

// AttachOrigin says where an image was built, signed.
func (s *Session) AttachOrigin(ctx context.Context, repository string, image store.Digest, o *Origin, sign *attest.PrivateKey) error {
	if sign == nil || o == nil {
		return nil
	}
	book, err := s.Evidence(repository, sign, nil)
	if err == nil {
		err = book.Attach(ctx, image, OriginKind, originType, o, nil)
	}
	if err != nil {
		return fmt.Errorf("attach the origin: %w", err)
	}
	return nil
}

// builder is a provenance that says who has made something, and not yet what.
func (s *Session) builder() *provenance {
	p := &provenance{}
	p.Details.Builder.ID = "https://sconce.dev/sconce"
	p.Details.Builder.Version = map[string]string{"sconce": s.Version}
	return p
}

// Describe attaches to an image, which lies in a repository under its digest, what it was made from and what is in it: signed with key, or
// unsigned without one; with one, also its key and its facts. named is the image in the store, of the plan p; notes are annotations of both.
func (s *Session) Describe(ctx context.Context, repository string, im *image.Image, named string, r *Recipe, p *Plan, sign *attest.PrivateKey, notes map[string]string) error {
	made, err := s.provenanceOf(ctx, r, named, p)
	if err != nil {
		return err
	}
	subject, err := s.Open("store:"+named, Wanted{OrOther: true})
	if err != nil {
		return err
	}
	defer subject.Close()
	lists, err := s.sboms(ctx, subject, sbom.CycloneDX, sbom.SPDX)
	if err != nil {
		return err
	}
	book, err := s.Evidence(repository, sign, nil)
	if err != nil {
		return err
	}
	if err := book.Attach(ctx, im.Digest, Provenance, provenanceType, made, notes); err != nil {
		return fmt.Errorf("attach the provenance: %w", err)
	}
	for i, of := range []struct{ kind, documentType string }{{SBOM, cycloneDXType}, {SPDX, spdxType}} {
		if err := book.Attach(ctx, im.Digest, of.kind, of.documentType, json.RawMessage(lists[i]), notes); err != nil {
			return fmt.Errorf("attach the list of packages: %w", err)
		}
	}
	if sign == nil {
		return nil
	}
	if err := attachKey(ctx, book, im.Digest, p.Image.Key); err != nil {
		return err
	}
	return s.AttachFacts(ctx, repository, im, sign)
}
