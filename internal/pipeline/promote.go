package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// Promote gives an image of the pipeline its stable tags, or those of how.To, when there is evidence for each test of its recipe as it is
// today, and for those of all images of the pipeline that it is based on. how.Trust are keys that are believed besides the pipeline's own.
func (p *Pipeline) Promote(ctx context.Context, s *engine.Session, i *Image, how engine.Promoting) (*promote.Report, error) {
	if i.Problem != nil {
		return nil, i.Problem
	}
	if !how.DryRun {
		if err := p.CheckBranch("promote " + i.Ref); err != nil {
			return nil, err
		}
	}
	if len(how.To) == 0 {
		how.To = i.Stable
	}
	if len(how.To) == 0 {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("nothing says where %s is promoted to", i.Ref), "add stable to "+p.Path+", or [publish] repository to the recipe"))
	}
	var err error
	if how.Trust, err = p.trusted(how.Trust); err != nil {
		return nil, err
	}
	how.Mutable = how.Mutable || i.Mutable
	if how.Untested {
		err := fault.Usage(fmt.Errorf("--untested: %s is an image of a pipeline", i.Ref))
		return nil, fault.Hint(err, hintUntested)
	}
	if err := p.CheckTested([]*Image{i}); err != nil {
		return nil, err
	}
	by := &engine.ByRecipe{Origin: p.origin(ctx)}
	if by.Required, err = p.required(ctx, s, i, how.Trust); err != nil {
		return nil, err
	}
	by.Untested, by.Allowed = p.untested(i)
	if by.Sign, err = p.Key(); err != nil {
		return nil, err
	}
	how.Recipe = by
	im, err := p.current(ctx, s, i, how.Trust)
	if err != nil {
		return nil, err
	}
	if how.Below, err = p.belowOf(ctx, s, i); err != nil {
		return nil, err
	}
	return s.Promote(ctx, im, how)
}

// PromoteFrom promotes an image of a repository by its name. The pipeline's rules hold for its own repositories, from which and to which that may be:
// its branch alone does it, what its key or one of [[trust]] has signed decides, and nothing untested goes.
func (p *Pipeline) PromoteFrom(ctx context.Context, s *engine.Session, im engine.InRegistry, how engine.Promoting) (*promote.Report, error) {
	if !p.Has(im.Repository) && !slices.ContainsFunc(how.To, func(to string) bool { return p.Has(repositoryOf(strings.TrimPrefix(to, "docker://"))) }) {
		return s.Promote(ctx, im, how)
	}
	if !how.DryRun {
		if err := p.CheckBranch("promote " + im.Repository); err != nil {
			return nil, err
		}
	}
	if how.Untested {
		err := fault.Usage(fmt.Errorf("--untested: %s is in a repository of a pipeline", im.Repository))
		return nil, fault.Hint(err, hintUntested)
	}
	var err error
	if how.Trust, err = p.trusted(how.Trust); err != nil {
		return nil, err
	}
	return s.Promote(ctx, im, how)
}

// current returns what is under the canonical reference of an image, and refuses what belongs under another one.
func (p *Pipeline) current(ctx context.Context, s *engine.Session, i *Image, trust []*attest.PublicKey) (engine.InRegistry, error) {
	im, err := s.Find(ctx, i.Canonical)
	if err != nil {
		return im, fault.Hint(fmt.Errorf("%s is not built as it is today: %w", i.Ref, err), "run `sconce pipeline run "+quote.Word(i.Ref)+"` first")
	}
	if err := s.CheckKey(ctx, im, i.Key, trust); err != nil || i.Parts == nil {
		return im, err
	}
	return im, p.checkParts(ctx, s, i, im, trust)
}

// checkParts refuses an index that lists other images than its parts.
func (p *Pipeline) checkParts(ctx context.Context, s *engine.Session, i *Image, im engine.InRegistry, trust []*attest.PublicKey) error {
	repo, err := s.Repository(im.Repository)
	if err != nil {
		return err
	}
	_, listed, err := repo.Reach(ctx, string(im.Digest))
	if err != nil {
		return err
	}
	var parts []store.Digest
	for _, part := range i.Parts {
		found, err := p.current(ctx, s, part, trust)
		if err != nil {
			return err
		}
		parts = append(parts, found.Digest)
	}
	if !slices.Equal(listed, parts) {
		err := fmt.Errorf("%s is not what its name says: it lists other images than those of today", i.Canonical)
		return fault.Hint(err, "somebody has moved the tag, or one of a part of it: find out who, delete it, and run `sconce pipeline run`")
	}
	return nil
}

// hintUntested says how an image is published that is not tested.
const hintUntested = `add a [[test]]; or have it said where others review it, by untested = "allow" in pipeline.toml, or under [publish] of the recipe`

// untested lists what no test says of an image: that it has none, and those that it, or what it is based on, leaves out. allowed is whether
// it may be published all the same.
func (p *Pipeline) untested(i *Image) (all []string, allowed bool) {
	allowed = true
	for _, part := range i.Parts {
		some, ok := p.untested(part)
		all, allowed = append(all, some...), allowed && ok
	}
	if i.Parts != nil {
		return all, allowed
	}
	for at := i; at != nil; at = at.Base {
		before := len(all)
		if at == i && len(at.Recipe.Tests) == 0 {
			all = append(all, at.Ref+" has no test")
		}
		for _, t := range at.Recipe.Tests {
			if t.Skip != "" {
				all = append(all, fmt.Sprintf("test %s of %s is skipped: %s", t.Title(), at.Ref, t.Skip))
			}
		}
		allowed = allowed && (len(all) == before || cmp.Or(at.Recipe.Publish.Untested, p.Untested) == recipe.Allow)
	}
	return all, allowed
}

// CheckTested refuses to publish images that nothing tests, unless that is allowed.
func (p *Pipeline) CheckTested(images []*Image) error {
	var all []string
	for _, i := range images {
		if reasons, allowed := p.untested(i); !allowed {
			all = append(all, reasons...)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	err := fault.Problem(fmt.Errorf("not tested as it has to be:\n  %s", strings.Join(slices.Compact(all), "\n  ")))
	return fault.Hint(err, hintUntested)
}

// required lists the verdicts that there must be about an image and all that it is based on.
func (p *Pipeline) required(ctx context.Context, s *engine.Session, i *Image, trust []*attest.PublicKey) ([]promote.Required, error) {
	var all []promote.Required
	for _, part := range i.Parts {
		some, err := p.required(ctx, s, part, trust)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	if i.Parts != nil {
		return all, nil
	}
	for at := i; at != nil; at = at.Base {
		if at.Problem != nil {
			return nil, at.Problem
		}
		if len(at.Recipe.Tests) == 0 {
			continue
		}
		im, err := p.current(ctx, s, at, trust)
		if err != nil {
			return nil, err
		}
		tests, err := p.Tests(ctx, at)
		if err != nil {
			return nil, err
		}
		for _, t := range tests {
			all = append(all, promote.Required{
				Key:  evidence.Key{Image: im.Digest, Test: t.Hash, Cluster: t.Cluster},
				Name: path.Base(at.Ref) + " " + t.Test.Title(), Repository: im.Repository,
			})
		}
	}
	return all, nil
}

// Validation is a test that an image has to pass on a cluster.
type Validation struct {
	Test    imagetest.Test
	Cluster string // its profile's name
	Hash    string // see [imagetest.Hash]
}

// Tests lists what an image has to pass, on each of the clusters that the test names, else on those of the pipeline, else on the recipe's
// target. A test that is skipped is told of, and is none.
func (p *Pipeline) Tests(ctx context.Context, i *Image) ([]Validation, error) {
	var all []Validation
	if i.Parts != nil {
		return nil, nil // they are those of its parts
	}
	for _, t := range i.Recipe.Tests {
		if t.Skip != "" {
			progress.Warn(ctx, fmt.Sprintf("%s: test %s is skipped: %s", i.Ref, t.Title(), t.Skip), "")
			continue
		}
		clusters := p.clusters(i, t)
		if len(clusters) == 0 {
			err := fault.Usage(fmt.Errorf("%s: nothing says on which cluster test %s has to pass", i.Ref, t.Title()))
			return nil, fault.Hint(err, `add clusters = ["NAME"] to the test or to `+p.Path)
		}
		for _, name := range clusters {
			found, err := cluster.Find(name, i.Recipe.Dir)
			if err != nil {
				return nil, err
			}
			if found.Profile.Name == "" {
				return nil, errors.New("the profile " + name + " has no name, under which evidence is kept")
			}
			hash, err := imagetest.Hash(i.Recipe.Dir, t, found.Profile)
			if err != nil {
				return nil, fmt.Errorf("%s, test %s: %w", i.Ref, t.Title(), err)
			}
			all = append(all, Validation{t, found.Profile.Name, hash})
		}
	}
	return all, nil
}

// clusters are where a test of an image runs.
func (p *Pipeline) clusters(i *Image, t imagetest.Test) []string {
	switch {
	case len(t.Clusters) > 0:
		return t.Clusters
	case len(p.Clusters) > 0:
		return p.Clusters
	case i.Recipe.Recipe.Target.Cluster != "":
		return []string{i.Recipe.Recipe.Target.Cluster}
	}
	return nil
}
