package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/store"
)

// Limits on why an image is to be built.
const (
	maxReasons  = 4  // lines
	maxCompared = 16 // images of which the newest is looked for
)

// explainBuild says what has changed since the image that users have, or, without one, since the newest that was built: which file, package
// or variable.
func (p *Pipeline) explainBuild(ctx context.Context, s *engine.Session, st *Status) error {
	before, err := p.earlier(ctx, s, st)
	if err != nil {
		return err
	}
	if before == "" {
		st.Reasons = []string{"it has not been built yet"}
		return nil
	}
	st.Reasons = []string{"recipe, lock or files are not those of what was built before"}
	if st.Parts != nil {
		return nil
	}
	old, err := s.MadeBy(ctx, repositoryOf(st.Canonical), before)
	if err != nil || old == nil {
		return err
	}
	st.changes = changes(old, st.record, st.Base != nil)
	if len(st.changes) > 0 {
		st.Reasons = st.changes
	}
	return nil
}

// changes are the causes of steps being others than before, without those that only come after such; onImage: what the image stands on is
// told elsewhere.
func changes(old, now *plan.Record, onImage bool) []string {
	why := plan.Compare(old, now)
	var all []string
	for i, t := range now.Steps {
		d, ok := why[i]
		if !ok || d.Upstream || onImage && t.Kind == plan.KindBase {
			continue
		}
		for _, cause := range d.Causes {
			if strings.HasPrefix(cause, plan.StandsOn) || t.Kind == plan.KindImage && cause == plan.OnOther {
				continue
			}
			if line := t.Title + ": " + cause; !slices.Contains(all, line) {
				all = append(all, line)
			}
		}
	}
	if more := len(all) - maxReasons; more > 0 {
		all = append(all[:maxReasons], fmt.Sprintf("and %d more", more))
	}
	return all
}

// earlier returns the image to compare with: "" when there is none.
func (p *Pipeline) earlier(ctx context.Context, s *engine.Session, st *Status) (store.Digest, error) {
	for _, ref := range st.Stable {
		if digest, found, err := s.Head(ctx, ref); found || err != nil {
			return digest, err
		}
	}
	tags, err := p.tags(ctx, s, st)
	if err != nil {
		return "", err
	}
	tags = slices.DeleteFunc(tags, func(tag string) bool {
		key, ok := strings.CutPrefix(tag, st.Version+"-")
		return !ok || len(key) != keyDigits || strings.Trim(key, "0123456789abcdef") != ""
	})
	return p.newest(ctx, s, st, tags)
}

// newest returns the image of the tags that came last, as far as it is known when they did.
func (p *Pipeline) newest(ctx context.Context, s *engine.Session, st *Status, tags []string) (store.Digest, error) {
	repo, err := s.Repository(repositoryOf(st.Canonical))
	if err != nil {
		return "", err
	}
	var newest store.Digest
	var last time.Time
	for _, tag := range tags[:min(len(tags), maxCompared)] {
		digest, found, err := repo.Head(ctx, tag)
		if err != nil {
			return "", err
		}
		if !found {
			continue
		}
		at := time.Time{}
		if len(tags) > 1 {
			if at, err = promote.Created(ctx, repo, digest); err != nil {
				return "", err
			}
		}
		if newest == "" || at.After(last) {
			newest, last = digest, at
		}
	}
	return newest, nil
}
