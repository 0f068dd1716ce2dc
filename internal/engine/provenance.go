package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/sbom"
	"sconce.dev/sconce/internal/store"
)

// The types of the documents that are attached to images.
const (
	provenanceType = "https://slsa.dev/provenance/v1"
	cycloneDXType  = "https://cyclonedx.org/bom"
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
		if len(r.Steps[i].Files) > maxListed {
			r.Steps[i].Files = nil
		}
	}
	return r
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

// dependency is something that went into an image (in-toto, "ResourceDescriptor").
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
func (s *Session) provenanceOf(r *Recipe, name string, made *Plan) (*provenance, error) {
	state, err := r.ReadLock()
	if err != nil {
		return nil, err
	}
	if !state.Fits() {
		return nil, fmt.Errorf("the lock of %s does not fit it any more", r.Path)
	}
	l, err := r.locked(state.Lock, true)
	if err != nil {
		return nil, err
	}
	p := &provenance{}
	p.Definition.Type = "https://sconce.dev/recipe/v1"
	p.Definition.Parameters = map[string]string{"image": name, "platform": r.Target.Platform, parameterKey: string(made.Image.Key)}
	p.Definition.Internal.Plan = recorded(made)
	p.Definition.Resolved = l.dependencies()
	p.Details.Builder.ID = "https://sconce.dev/sconce"
	p.Details.Builder.Version = map[string]string{"sconce": s.Version}
	return p, nil
}

// dependencies are the base and all packages, as purls (package-url specification) where there are such.
func (l *Locked) dependencies() []dependency {
	all := []dependency{}
	switch b := l.Base; {
	case b.Digest != "":
		all = append(all, from(b.Reference, b.Digest))
	case b.Bootstrap != nil:
		for i := range b.Bootstrap.Packages {
			p := &b.Bootstrap.Packages[i]
			all = append(all, from(sbom.PURL("deb", p.Name, p.Version, url.Values{"arch": {p.Architecture}}), p.SHA256))
		}
	case b.ImageKey != "":
		all = append(all, dependency{URI: b.Recipe})
	}
	if l.System != nil {
		for i := range l.System.Packages {
			p := &l.System.Packages[i]
			all = append(all, from(sbom.PURL("generic", p.Name, p.Version, url.Values{"arch": {p.Architecture}}), p.SHA256))
		}
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
		all = append(all, dependency{URI: sbom.PURL("pypi", c.Name, c.Version, nil)})
	}
	for _, name := range slices.Sorted(maps.Keys(l.Source)) {
		for _, f := range l.Source[name].Files {
			all = append(all, from("pkg:generic/"+name+"?file="+f.Name, f.SHA256))
		}
	}
	return all
}

// Describe attaches to an image, which lies in a repository under its digest, what it was made from and what is in it: signed with key, or
// unsigned without one; with one, also its key and its facts. named is the image in the store, of the plan p; notes are annotations of both.
func (s *Session) Describe(ctx context.Context, repository string, im *image.Image, named string, r *Recipe, p *Plan, sign *attest.PrivateKey, notes map[string]string) error {
	made, err := s.provenanceOf(r, named, p)
	if err != nil {
		return err
	}
	subject, err := s.Open("store:"+named, Wanted{OrOther: true})
	if err != nil {
		return err
	}
	defer subject.Close()
	list, err := s.SBOM(ctx, subject, sbom.CycloneDX)
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
	if err := book.Attach(ctx, im.Digest, SBOM, cycloneDXType, json.RawMessage(list), notes); err != nil {
		return fmt.Errorf("attach the list of packages: %w", err)
	}
	if sign == nil {
		return nil
	}
	if err := attachKey(ctx, book, im.Digest, p.Image.Key); err != nil {
		return err
	}
	return s.AttachFacts(ctx, repository, im, sign)
}
