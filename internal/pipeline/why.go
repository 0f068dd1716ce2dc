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

// explainBuild says what has changed since the image that users have, or, without one, since the newest that was built, of this version
// or else of another: which file, package or variable.
func (p *Pipeline) explainBuild(ctx context.Context, s *engine.Session, st *Status) error {
	before, err := p.earlier(ctx, s, st)
	if err != nil {
		return err
	}
	if before.digest == "" {
		st.Reasons = []string{"it has not been built yet"}
		return nil
	}
	st.Reasons = []string{"recipe, lock or files are not those of what was built before"}
	if before.version != "" {
		st.Reasons = []string{"it is a new version, and has not been built yet"}
	}
	if st.Parts != nil {
		return nil
	}
	old, err := s.MadeBy(ctx, repositoryOf(st.Canonical), before.digest)
	if err != nil || old == nil {
		return err
	}
	if st.changes = changes(old, st.record, st.Base != nil); len(st.changes) == 0 {
		return nil
	}
	if before.version != "" {
		st.changes = append([]string{"it is a new version; what follows has changed since " + before.version}, st.changes...)
	}
	st.Reasons = st.changes
	return nil
}

// changes are the causes of steps being others than before, without those that only come after such; onImage: what the image is based on is
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

// built is an image that an image of today is compared with.
type built struct {
	digest  store.Digest // "": there is none
	version string       // if it is another one than today's
}

// earlier returns the image to compare with.
func (p *Pipeline) earlier(ctx context.Context, s *engine.Session, st *Status) (built, error) {
	for _, ref := range st.Stable {
		if digest, found, err := s.Head(ctx, ref); found || err != nil {
			return built{digest: digest}, err
		}
	}
	tags, err := p.tags(ctx, s, st)
	if err != nil {
		return built{}, err
	}
	var same, others []string
	for _, tag := range tags {
		switch version, ok := versionOf(tag); {
		case !ok:
		case version == st.Version:
			same = append(same, tag)
		case st.Variant == "" || isOfVariant(version, st.Variant):
			others = append(others, tag)
		}
	}
	if digest, _, err := p.newest(ctx, s, st, same); digest != "" || err != nil {
		return built{digest: digest}, err
	}
	digest, tag, err := p.newest(ctx, s, st, others)
	version, _ := versionOf(tag)
	return built{digest, version}, err
}

// newest returns the image of the tags that came last, as far as it is known when they did, and its tag. Of many, the last in the order
// of tags are looked at, which is most often that of versions.
func (p *Pipeline) newest(ctx context.Context, s *engine.Session, st *Status, tags []string) (newest store.Digest, of string, err error) {
	repo, err := s.Repository(repositoryOf(st.Canonical))
	if err != nil {
		return "", "", err
	}
	slices.Sort(tags)
	var last time.Time
	for _, tag := range tags[max(0, len(tags)-maxCompared):] {
		digest, found, err := repo.Head(ctx, tag)
		if err != nil {
			return "", "", err
		}
		if !found {
			continue
		}
		at := time.Time{}
		if len(tags) > 1 {
			if at, err = promote.Created(ctx, repo, digest); err != nil {
				return "", "", err
			}
		}
		if newest == "" || at.After(last) {
			newest, of, last = digest, tag, at
		}
	}
	return newest, of, nil
}
