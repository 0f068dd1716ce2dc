package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/store"
)

// Action is what is to be done next for an image.
type Action string

// The actions, in the order in which an image needs them.
const (
	Lock     Action = "lock"     // its lock does not fit: `sconce lock`, by a person
	Build    Action = "build"    // there is nothing under its canonical reference
	Unsigned Action = "unsigned" // no trusted key has signed that what is there belongs there
	Wait     Action = "wait"     // likewise, and what it is based on has not passed its tests
	Test     Action = "test"     // a test has no verdict
	Untested Action = "untested" // it has no test, or one that is left out, and may not be published so: by a person
	Publish  Action = "publish"  // a stable tag does not lead to it
	Stuck    Action = "stuck"    // a stable tag that is written once leads to another image: by a person
	Fine     Action = "fine"

	Withdrawn Action = "withdrawn" // it, or what it is based on, is withdrawn: by a person
)

// Status is how far an image is, by what registries say.
type Status struct {
	*Image
	Digest  store.Digest // of the canonical image; "" as long as there is none
	Action  Action
	Reasons []string // why, one for each thing that is missing

	tags    []string // of its staging repository; nil: nobody has asked
	changes []string // of an image that is to be built: what of itself has changed
}

// IsToBuild reports whether there is nothing under the image's canonical reference, or nothing that belongs there.
func (st *Status) IsToBuild() bool {
	return st.Action == Build || st.Action == Wait || st.Action == Unsigned
}

// NeedsPerson reports whether no run and no job does what is to be done next.
func (st *Status) NeedsPerson() bool {
	return slices.Contains([]Action{Lock, Unsigned, Untested, Stuck, Withdrawn}, st.Action)
}

// asksAtOnce is how many images registries are asked about side by side.
const asksAtOnce = 8

// Look asks registries how far images are, in their order. A registry that does not answer, or refuses to, is an error: nothing is ever
// taken to be missing that may be there.
func (p *Pipeline) Look(ctx context.Context, s *engine.Session, images []*Image) ([]*Status, error) {
	if err := s.AskTogether(repositoriesOf(images)); err != nil {
		return nil, err
	}
	trust, err := p.lookingBy(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]*Status, len(images))
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(asksAtOnce)
	for n, i := range images {
		all[n] = &Status{Image: i, Action: Fine}
		g.Go(func() error { return p.look(ctx, s, all[n], trust) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, st := range all {
		st.blame(all)
	}
	return all, p.lookAtWithdrawals(outer, s, all, trust)
}

// blame says of an image when what it is based on is the reason that it is to be built, or has something to do first.
func (st *Status) blame(all []*Status) {
	if st.Parts != nil {
		st.blameParts(all)
	}
	below := st.below(all)
	if below == nil {
		return
	}
	switch {
	case st.Action == Build && below.Action == Unsigned:
		st.Action = Wait
		st.Reasons = below.heldUp()
	case st.Action == Build && below.IsToBuild():
		st.Action = below.Action
		st.Reasons = append(slices.Clone(st.changes), "what it is based on, "+st.Base.Ref+", is to be built")
	case st.Action == Build && (below.Action == Test || below.Action == Stuck):
		st.Action = Wait
		st.Reasons = below.heldUp()
	case st.Action == Publish && below.Action == Test:
		st.Reasons = append(st.Reasons, below.heldUp()...)
	}
}

// below is the status of what an image is based on; nil: it is based on no image of the pipeline, or on none that was asked about.
func (st *Status) below(all []*Status) *Status {
	i := slices.IndexFunc(all, func(other *Status) bool { return st.Base != nil && other.Image.Ref == st.Base.Ref })
	if i < 0 {
		return nil
	}
	return all[i]
}

// heldUp is why what is based on an image waits.
func (st *Status) heldUp() []string {
	var reasons []string
	for _, reason := range st.Reasons {
		reasons = append(reasons, "it waits for "+st.Ref+": "+reason)
	}
	return reasons
}

// blameParts says of an index what is due to its parts. One that is not there is put together before they are tested.
func (st *Status) blameParts(all []*Status) {
	first := []Action{Build, Unsigned, Wait, Test}
	if st.Action == Build {
		first = first[:3]
	}
	for _, action := range first {
		var reasons []string
		for _, other := range all {
			if other.Image.PartOf == st.Image.Ref && other.Action == action {
				reasons = append(reasons, fmt.Sprintf("%s, which is part of it, has something to do first: %s", other.Image.Ref, action))
			}
		}
		if len(reasons) > 0 {
			st.Action, st.Reasons = action, reasons
			return
		}
	}
}

func (p *Pipeline) look(ctx context.Context, s *engine.Session, st *Status, trust []*attest.PublicKey) error {
	if st.Problem != nil {
		st.Action, st.Reasons = Lock, []string{firstLine(st.Problem)}
		return nil //nolint:nilerr // noted in the status
	}
	digest, found, err := s.Head(ctx, st.Canonical)
	if err != nil {
		return fmt.Errorf("%s: %w", st.Ref, err)
	}
	if !found {
		st.Action = Build
		return p.explainBuild(ctx, s, st)
	}
	st.Digest = digest
	var strange *engine.StrangeError
	if err := s.CheckKey(ctx, inRegistry(st.Canonical, digest), st.Key, trust); errors.As(err, &strange) {
		st.Action, st.Reasons = Unsigned, []string{strange.Error()}
		return p.lookAtSigners(ctx, s, st, nil, trust) // a key that was changed is why, most often
	} else if err != nil {
		return fmt.Errorf("%s: %w", st.Ref, err)
	}
	wanted, err := p.lookAtTests(ctx, s, st)
	if err == nil && st.Action == Fine {
		err = lookAtStable(ctx, s, st)
	}
	if err == nil && (st.Action == Publish || st.Action == Fine) {
		err = p.lookAtVerdicts(ctx, s, st, wanted, trust)
	}
	if st.Action == Fine && err == nil {
		st.Reasons = []string{fineReason(st.Image)}
	}
	if err == nil {
		err = p.lookAtSigners(ctx, s, st, wanted, trust)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", st.Ref, err)
	}
	return nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSuffix(line, ":")
}

func fineReason(i *Image) string {
	if i.PartOf != "" {
		return "it is built, and published as part of " + i.PartOf
	}
	if len(i.Stable) == 0 {
		return "it is built, and published nowhere"
	}
	return "published as " + strings.Join(i.Stable, ", ")
}

// repositoryOf is the repository of a reference, HOST/PATH:TAG.
func repositoryOf(ref string) string {
	name, _ := store.SplitImageName(ref)
	return name
}

// repositoriesOf lists where images are and are to be, each once.
func repositoriesOf(images []*Image) []string {
	var names []string
	for _, i := range images {
		for _, ref := range append([]string{i.Canonical}, i.Stable...) {
			if name := repositoryOf(ref); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

func (p *Pipeline) tags(ctx context.Context, s *engine.Session, st *Status) ([]string, error) {
	repo, err := s.Repository(repositoryOf(st.Canonical))
	if err != nil {
		return nil, err
	}
	return repo.Tags(ctx)
}

// lookAtTests looks for a verdict of each test under its hash of today, and returns which there should be.
func (p *Pipeline) lookAtTests(ctx context.Context, s *engine.Session, st *Status) ([]Wanted, error) {
	wanted, err := p.Verdicts(st.Image, st.Digest)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	tags, err := p.tags(ctx, s, st)
	if err != nil {
		return nil, err
	}
	st.tags = tags
	for _, w := range wanted {
		tag, err := w.Tag()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(tags, tag) {
			st.Action = Test
			st.Reasons = append(st.Reasons, fmt.Sprintf("test %s has no verdict on %s", w.Name, w.Cluster))
		}
	}
	return wanted, nil
}

// lookAtVerdicts judges the verdicts as promotion does. Where no key is at hand, they are taken at their word.
func (p *Pipeline) lookAtVerdicts(ctx context.Context, s *engine.Session, st *Status, wanted []Wanted, trust []*attest.PublicKey) error {
	if reasons, allowed := p.untested(st.Image); !allowed && len(st.Stable) > 0 {
		st.Action, st.Reasons = Untested, reasons
		return nil
	}
	if len(trust) == 0 || len(wanted) == 0 {
		return lookAtWords(ctx, s, st, wanted)
	}
	d := promote.Demand{Image: st.Digest, From: repositoryOf(st.Canonical), Recipe: true}
	for _, w := range wanted {
		d.Required = append(d.Required, promote.Required{Key: w.Key, Name: "test " + w.Name})
	}
	found, err := s.Judge(ctx, d, trust)
	if err != nil || len(found.Problems) == 0 {
		return err
	}
	st.Action, st.Reasons = Test, nil
	for _, v := range found.Verdicts {
		switch {
		case v.Result == evidence.Failed:
			st.Reasons = append(st.Reasons, hasFailed(v.Test, v.Cluster))
		case v.Problem != "":
			st.Reasons = append(st.Reasons, fmt.Sprintf("%s on %s: %s", v.Test, v.Cluster, v.Problem))
		}
	}
	return nil
}

func hasFailed(test, cluster string) string { return fmt.Sprintf("%s has failed on %s", test, cluster) }

// lookAtWords looks for tests that have failed, by what verdicts say, whoever has written them.
func lookAtWords(ctx context.Context, s *engine.Session, st *Status, wanted []Wanted) error {
	book, err := s.Evidence(repositoryOf(st.Canonical), nil, nil)
	if err != nil {
		return err
	}
	var failed []string
	for _, w := range wanted {
		said, err := book.Says(ctx, w.Key)
		if err != nil {
			return err
		}
		if said == evidence.Failed {
			failed = append(failed, hasFailed("test "+w.Name, w.Cluster))
		}
	}
	if len(failed) > 0 {
		st.Action, st.Reasons = Test, failed
	}
	return nil
}

// Wanted is a verdict that an image needs.
type Wanted struct {
	evidence.Key
	Name string // of the test
}

// Verdicts lists the verdicts that the image of a digest needs: of each test that is not skipped, on each of its clusters.
func (p *Pipeline) Verdicts(i *Image, digest store.Digest) ([]Wanted, error) {
	var all []Wanted
	if i.Parts != nil {
		return nil, nil // they are those of its parts
	}
	for _, t := range i.Recipe.Tests {
		if t.Skip != "" {
			continue
		}
		for _, name := range p.clusters(i, t) {
			found, err := cluster.Find(name, i.Recipe.Dir)
			if err != nil {
				return nil, err
			}
			hash, err := imagetest.Hash(i.Recipe.Dir, t, found.Profile)
			if err != nil {
				return nil, fmt.Errorf("test %s: %w", t.Title(), err)
			}
			all = append(all, Wanted{evidence.Key{Image: digest, Test: hash, Cluster: name}, t.Title()})
		}
	}
	return all, nil
}

// lookAtStable compares the stable tags with the image.
func lookAtStable(ctx context.Context, s *engine.Session, st *Status) error {
	for _, ref := range st.Stable {
		digest, found, err := s.Head(ctx, ref)
		switch {
		case err != nil:
			return err
		case !found:
			st.need(Publish, ref+" is not there")
		case digest != st.Digest && st.Mutable:
			st.need(Publish, ref+" is an earlier image")
		case digest != st.Digest:
			st.need(Stuck, ref+" is another image, and is written once: give this one another version")
		}
	}
	return nil
}

// need notes what is missing. Being stuck goes before being published.
func (st *Status) need(action Action, reason string) {
	if st.Action != Stuck {
		st.Action = action
	}
	st.Reasons = append(st.Reasons, reason)
}
