package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// Clean tells which canonical images nobody needs any more, with what is known of them, and deletes them when remove is set. images are all
// of the pipeline. An image is needed when it is what a recipe makes today, when a stable tag leads to it, when it is one of the newest of its
// variant, and when one that stays is based on it. Others stay for as long as [keep] says, from the first time that they were seen to be of no
// use.
func (p *Pipeline) Clean(ctx context.Context, s *engine.Session, images []*Image, remove bool) ([]promote.Cleaned, error) {
	if remove {
		if err := p.CheckBranch("delete images"); err != nil {
			return nil, err
		}
	}
	c := promote.Cleaning{Tags: map[string]string{}, Keep: -1, Newest: p.Keep.Newest}
	variants := make(map[string][]string) // by repository
	for _, i := range images {
		if i.Problem != nil {
			return nil, fault.Hint(fmt.Errorf("%s: %w", i.Ref, i.Problem), "nothing can be cleaned up as long as it is not known which image this is")
		}
		repository := repositoryOf(i.Canonical)
		if !slices.Contains(c.Repositories, repository) {
			c.Repositories = append(c.Repositories, repository)
		}
		variants[repository] = append(variants[repository], i.Variant)
		c.Tags[i.Canonical] = "it is what " + i.Ref + " makes"
	}
	if p.Keep.Canonical != "" {
		var err error
		if c.Keep, err = units.ParseAge(p.Keep.Canonical); err != nil {
			return nil, fault.Usage(fmt.Errorf("%s: keep.canonical: %w", p.Path, err))
		}
	}
	c.Canonical = func(repository, tag string) (string, bool) { return lineOf(tag, variants[repository]) }
	var err error
	if c.Images, err = p.published(ctx, s, images); err != nil {
		return nil, err
	}
	return promote.Clean(ctx, c, promote.CleanOptions{Store: s.Store, Fetch: s.Fetch, Delete: remove})
}

// canonicalForm is the tag of a canonical image.
var canonicalForm = lazyregexp.New(`^(.+)-[0-9a-f]{24}$`)

// versionOf returns the version in the tag of a canonical image. ok is false for other tags.
func versionOf(tag string) (version string, ok bool) {
	m := canonicalForm.FindStringSubmatch(tag)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// lineOf returns the variant that an image is of by its canonical tag: that at the end of its version, else, in a recipe without variants,
// "". Of a variant that is no more the version is taken for one.
func lineOf(tag string, variants []string) (line string, found bool) {
	version, ok := versionOf(tag)
	if !ok {
		return "", false
	}
	best, known := "", false
	for _, v := range variants {
		if v == "" || isOfVariant(version, v) {
			known = true
			if len(v) > len(best) {
				best = v
			}
		}
	}
	if !known {
		return version, true
	}
	return best, true
}

// isOfVariant reports whether a version is one of a variant's.
func isOfVariant(version, variant string) bool {
	return version == variant || strings.HasSuffix(version, "-"+variant)
}

// published lists the images that stable tags lead to: all tags of all repositories for users, whatever version they are of. A registry that
// does not answer, or lists what it does not have, is an error.
func (p *Pipeline) published(ctx context.Context, s *engine.Session, images []*Image) (map[store.Digest]string, error) {
	var repositories []string
	for _, i := range images {
		for _, ref := range i.Stable {
			if r := repositoryOf(ref); !slices.Contains(repositories, r) {
				repositories = append(repositories, r)
			}
		}
	}
	all := make(map[store.Digest]string)
	for _, name := range repositories {
		if err := publishedIn(ctx, s, name, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// fallbackForm is the tag of a list of what refers to an image.
var fallbackForm = lazyregexp.New(`^sha256-[0-9a-f]{64}$`)

func publishedIn(ctx context.Context, s *engine.Session, name string, all map[store.Digest]string) error {
	repo, err := s.Repository(name)
	if err != nil {
		return err
	}
	tags, err := repo.Tags(ctx)
	if err != nil {
		return err
	}
	tags = slices.DeleteFunc(tags, fallbackForm.MatchString)
	found := make([][]store.Digest, len(tags))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(asksAtOnce)
	for n, tag := range tags {
		g.Go(func() error {
			manifest, listed, err := repo.Reach(inner, tag)
			found[n] = append(listed, store.DigestOf(manifest))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("look what is published: %w", err)
	}
	for n, tag := range tags {
		for _, d := range found[n] {
			all[d] = "published as " + name + ":" + tag
		}
	}
	return nil
}
