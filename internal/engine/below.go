package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// maxBelow bounds how many recipes stand on each other.
const maxBelow = 16

// loadBelow loads the recipe that r is based on, if it is one. way are the recipes on the way here, of which none may come again.
func (r *Recipe) loadBelow(way []string) error {
	ref := r.BaseRecipe()
	if ref == "" {
		return nil
	}
	below, err := recipe.Load(ref)
	if err != nil {
		return fmt.Errorf("%s: base.recipe: %w", r.Path, err)
	}
	own := idOf(below)
	way = append(slices.Clip(way), own)
	if i := slices.Index(way, own); i < len(way)-1 {
		return fault.Usage(fmt.Errorf("%s: recipes stand on each other in a circle: %s", r.Path, strings.Join(way[i:], " → ")))
	}
	if len(way) > maxBelow {
		return fault.Usage(fmt.Errorf("%s: more than %d recipes stand on each other: %s", r.Path, maxBelow, strings.Join(way, " → ")))
	}
	if below.Target.AnyPlatform {
		below.Target.Platform = r.pinned.Target.Platform
	}
	if r.Below, err = withTargetOn(below, way, cmp.Or(r.outside, outsideOf(r.Dir, below.Dir))); err != nil {
		return err
	}
	if has, wants := r.Below.pinned.Target.Platform, r.pinned.Target.Platform; has != wants {
		err := fmt.Errorf("%s is for %s, and the recipe that it is based on, %s, for %s", r.Path, wants, r.Base.Recipe, has)
		return fault.Usage(fault.Hint(err, "give both the same [target]: cluster, or platform"))
	}
	return nil
}

// outsideOf is what the directory of a recipe, below, lies outside of, to which one in dir has led: the repository of that. It is "" when
// it lies within.
func outsideOf(dir, below string) string {
	top := repositoryOf(resolved(dir))
	if rel, err := filepath.Rel(top, resolved(below)); err == nil && filepath.IsLocal(rel) {
		return ""
	}
	return top
}

// repositoryOf is the nearest directory with a .git that dir is in, else with a pipeline; without either it is the one above dir, for recipes
// beside each other. A home is none: not all that somebody has is one repository.
func repositoryOf(dir string) string {
	home, _ := os.UserHomeDir()
	home = resolved(home)
	for _, mark := range []string{".git", recipe.PipelineFile} {
		for at := dir; at != "/" && at != home; at = filepath.Dir(at) {
			if _, err := os.Lstat(filepath.Join(at, mark)); err == nil {
				return at
			}
		}
	}
	return filepath.Dir(dir)
}

// resolved is a path without links, where it is there.
func resolved(path string) string {
	if found, err := filepath.EvalSymlinks(path); err == nil {
		return found
	}
	return path
}

// checkWrites refuses to write a lock where neither a recipe nor its repository was named by the user.
func (r *Recipe) checkWrites() error {
	if r.outside == "" {
		return nil
	}
	return fault.Problem(fault.Hint(fmt.Errorf("%s has no lock that fits, and lies outside of %s, whose recipes lead to it: nothing is written there", r.Path, r.outside),
		"lock it by its own name: sconce lock "+quote.Word(r.Ref())))
}

// idOf tells recipes and their variants apart.
func idOf(r *recipe.Recipe) string {
	id := r.Resolve(baseFile(r.Path))
	if r.Variant != "" {
		id += ":" + r.Variant
	}
	return id
}

func baseFile(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// planBelow plans the image that r is based on, when that is a recipe's, and lets r know its key. nil: there is none.
func (s *Session) planBelow(ctx context.Context, r *Recipe, o PlanOptions) (*Plan, error) {
	if r.Below == nil {
		return nil, nil
	}
	p, err := s.Plan(ctx, r.Below, PlanOptions{Locked: o.Locked, Anywhere: o.Anywhere, Canonical: o.Canonical, Trust: o.Trust})
	if err != nil {
		return nil, fmt.Errorf("base.recipe of %s: %w", r.Path, err)
	}
	r.pinned.Base.Key = string(p.Image.Key)
	return p, nil
}

// PlanBelow finds out what the image is that r is based on, so that its lock can be compared with it.
func (s *Session) PlanBelow(ctx context.Context, r *Recipe, canonical func(*Recipe, plan.Key) string) error {
	below, err := s.planBelow(ctx, r, PlanOptions{Locked: true, Canonical: canonical})
	if below != nil {
		below.Close()
	}
	return err
}

// Bring has the image of a plan in the store: it is there, or is in the registry under its canonical reference, or it is built.
func (s *Session) Bring(ctx context.Context, p *Plan, o BuildOptions) (*image.Image, error) {
	looks := []func(context.Context, *Plan) (*image.Image, error){s.Made, s.pullCanonical}
	if p.everywhere { // what others test and take is that of the registry
		slices.Reverse(looks)
	}
	for _, look := range looks {
		if im, err := look(ctx, p); im != nil || err != nil {
			return im, err
		}
	}
	b, err := s.Build(ctx, p, BuildOptions{Secrets: o.Secrets, SSH: o.SSH, Pass: o.Pass, Host: o.Host, HostNetwork: o.HostNetwork, OnFailure: o.OnFailure})
	if err != nil {
		return nil, fmt.Errorf("build %s, which others stand on: %w", p.Name, err)
	}
	return b.Image, nil
}

// Made returns the image of a plan when the store has it, else nil.
func (s *Session) Made(ctx context.Context, p *Plan) (*image.Image, error) {
	var digest store.Digest
	found, err := s.Store.GetRecord(store.KindImageStep, string(p.Image.Key), &digest)
	if err != nil || !found {
		return nil, err
	}
	im, err := image.Load(ctx, s.Store, digest)
	if err != nil {
		return nil, nil //nolint:nilerr // a record of what is gone is none
	}
	return im, nil
}

// pullCanonical takes the image of a plan from where whoever built it has put it, nil when it is not there.
func (s *Session) pullCanonical(ctx context.Context, p *Plan) (*image.Image, error) {
	if p.Canonical == "" || s.Offline {
		return nil, nil
	}
	digest, found, err := s.Head(ctx, p.Canonical)
	if err != nil && !p.everywhere && ctx.Err() == nil {
		progress.Warn(ctx, fmt.Sprintf("%s is built here, as its registry cannot be asked: %v", p.Name, err), "")
		return nil, nil
	}
	if err != nil || !found {
		return nil, err
	}
	name, tag := store.SplitImageName(p.Canonical)
	err = s.CheckKey(ctx, InRegistry{name, tag, digest}, p.Image.Key, p.trust)
	var strange *StrangeError
	if errors.As(err, &strange) && !p.everywhere {
		progress.Warn(ctx, fmt.Sprintf("%s is built here: %v", p.Name, strange), strange.Hint())
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	subject, err := s.Open(dockerPrefix+name+"@"+string(digest), Wanted{Platform: p.Platform})
	if err != nil {
		return nil, err
	}
	defer subject.Close()
	im, err := subject.Import(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Store.PutRecord(store.KindImageStep, string(p.Image.Key), im.Refs(), im.Digest); err != nil {
		return nil, err
	}
	_, err = s.Name(im, p.Name)
	return im, err
}

// Head asks a registry for the digest of a reference, HOST/NAME:TAG. A registry that does not answer, or refuses to, is an error.
func (s *Session) Head(ctx context.Context, ref string) (d store.Digest, found bool, err error) {
	name, tag := store.SplitImageName(strings.TrimPrefix(ref, dockerPrefix))
	repo, err := s.Repository(name)
	if err != nil {
		return "", false, err
	}
	return repo.Head(ctx, tag)
}

// Repository is a repository, HOST/PATH, on the server that is written to. A session keeps one of each, with what was found out about
// the server.
func (s *Session) Repository(name string) (*registry.Repository, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if repo := s.repos[name]; repo != nil {
		return repo, nil
	}
	o := registry.Options{Fetch: s.Fetch}
	host, _, _ := strings.Cut(name, "/")
	for _, other := range s.repos {
		if other.Host() == host {
			o.Beside = other
			break
		}
	}
	repo, err := registry.OpenForWriting(name, o)
	if err != nil {
		return nil, err
	}
	if s.repos == nil {
		s.repos = make(map[string]*registry.Repository)
	}
	s.repos[name] = repo
	return repo, nil
}

// AskTogether says which repositories, HOST/PATH, are about to be asked: those of a server that wants tokens have some in common.
func (s *Session) AskTogether(names []string) error {
	var repos []*registry.Repository
	for _, name := range names {
		repo, err := s.Repository(name)
		if err != nil {
			return err
		}
		repos = append(repos, repo)
	}
	registry.AskTogether(repos)
	return nil
}

// checkAnywhere refuses to build on this machine what would come out otherwise than on one of the image's own kind.
func (p *Plan) checkAnywhere() error {
	if !p.anywhere || runsHere(p.Platform.String()) {
		return nil
	}
	return fault.Hint(fmt.Errorf("%s is for %s, and its byte code is compiled by its own Python", p.Name, p.Platform.String()),
		"build it on a machine of that kind, or set bytecode = false under [python]")
}
