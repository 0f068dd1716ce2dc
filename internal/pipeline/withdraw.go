package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/store"
)

// Withdrawing says how an image is withdrawn. Users are repositories besides those of the pipeline.
type Withdrawing struct {
	promote.Withdrawing
	Sign   string // in place of the pipeline's own key
	DryRun bool
}

// usersOf lists the repositories for users that an image has.
func (i *Image) usersOf() []string { return repositoriesOf([]*Image{{Stable: i.Stable}}) }

// Withdraw withdraws the image of a recipe: the one that its stable tags lead to, else the one under its canonical reference. from is the
// repository that it is promoted from.
func (p *Pipeline) Withdraw(ctx context.Context, s *engine.Session, name string, how Withdrawing) (done *promote.Withdrawn, from string, err error) {
	i, err := p.Image(ctx, s, name)
	if err != nil {
		return nil, "", err
	}
	var found []store.Digest
	for _, ref := range i.Stable {
		digest, there, err := s.Head(ctx, ref)
		if err != nil {
			return nil, "", err
		}
		if there && !slices.Contains(found, digest) {
			found = append(found, digest)
		}
	}
	if len(found) > 1 {
		err := fault.Usage(fmt.Errorf("the stable tags of %s lead to %d images", i.Ref, len(found)))
		return nil, "", fault.Hint(err, "name the one that is meant: "+repositoryOf(i.Stable[0])+"@"+string(found[0]))
	}
	if len(found) == 0 && i.Canonical != "" {
		digest, there, err := s.Head(ctx, i.Canonical)
		if err != nil {
			return nil, "", err
		}
		if there {
			found = append(found, digest)
		}
	}
	from = p.Staging + "/" + i.Name
	if len(found) == 0 {
		err := fault.Usage(fmt.Errorf("no stable tag of %s is there, and it is not built as it is today", i.Ref))
		return nil, "", fault.Hint(err, "name the image by its digest: "+from+"@sha256:…")
	}
	users := i.usersOf()
	if i.PartOf != "" { // users have it as part of that
		index, err := p.Image(ctx, s, i.PartOf)
		if err != nil {
			return nil, "", err
		}
		users = index.usersOf()
	}
	done, err = p.withdraw(ctx, s, from, users, found[0], how)
	return done, from, err
}

// Has reports whether a repository, HOST/PATH, is one of the pipeline's.
func (p *Pipeline) Has(repository string) bool {
	return slices.ContainsFunc(append([]string{p.Staging}, p.Stable...), func(at string) bool { return strings.HasPrefix(repository, at+"/") })
}

// WithdrawFrom withdraws an image of one of the pipeline's repositories from all that have its name.
func (p *Pipeline) WithdrawFrom(ctx context.Context, s *engine.Session, im engine.InRegistry, how Withdrawing) (*promote.Withdrawn, error) {
	name := im.Repository
	for _, at := range append([]string{p.Staging}, p.Stable...) {
		if rest, ok := strings.CutPrefix(im.Repository, at+"/"); ok && len(rest) < len(name) {
			name = rest
		}
	}
	var users []string
	for _, at := range p.Stable {
		users = append(users, at+"/"+name)
	}
	return p.withdraw(ctx, s, p.Staging+"/"+name, users, im.Digest, how)
}

func (p *Pipeline) withdraw(ctx context.Context, s *engine.Session, from string, users []string, image store.Digest, how Withdrawing) (*promote.Withdrawn, error) {
	w := engine.Withdrawing{Withdrawing: how.Withdrawing, DryRun: how.DryRun} // from any branch: it only takes away
	sign := how.Sign
	if sign == "" {
		sign = p.Sign
	}
	var err error
	if w.Key, err = p.keyOr(sign); err != nil {
		return nil, err
	}
	w.From, w.Image = from, image
	w.Users = slices.DeleteFunc(append(users, how.Users...), func(name string) bool { return name == from })
	return s.Withdraw(ctx, w)
}

// placesOf are an image of the pipeline, and what it is based on or is made of, where somebody may have written that they are withdrawn. digests has
// those that are there, by Image.Ref.
func (p *Pipeline) placesOf(i *Image, digests map[string]store.Digest) (own promote.Place, below []promote.Place) {
	place := func(i *Image, how string) promote.Place {
		at := append([]string{repositoryOf(i.Canonical)}, i.usersOf()...)
		return promote.Place{Name: i.Ref, Image: digests[i.Ref], Repositories: slices.Compact(at), How: how}
	}
	add := func(i *Image, how string) {
		if digests[i.Ref] != "" {
			below = append(below, place(i, how))
		}
	}
	for _, part := range i.Parts {
		add(part, "is made of")
		for at := part.Base; at != nil; at = at.Base {
			add(at, "is based on")
		}
	}
	for at := i.Base; at != nil; at = at.Base {
		add(at, "is based on")
	}
	return place(i, ""), below
}

// belowOf finds what an image of the pipeline is based on or is made of, for promotion.
func (p *Pipeline) belowOf(ctx context.Context, s *engine.Session, i *Image) ([]promote.Place, error) {
	digests := make(map[string]store.Digest)
	var find func(i *Image) error
	find = func(i *Image) error {
		for _, below := range i.Below() {
			if below.Canonical == "" || digests[below.Ref] != "" {
				continue
			}
			digest, _, err := s.Head(ctx, below.Canonical)
			if err != nil {
				return err
			}
			digests[below.Ref] = digest
			if err := find(below); err != nil {
				return err
			}
		}
		return nil
	}
	if err := find(i); err != nil {
		return nil, err
	}
	_, below := p.placesOf(i, digests)
	return below, nil
}

// lookAtWithdrawals marks images that are withdrawn, or that stand on one that is.
func (p *Pipeline) lookAtWithdrawals(ctx context.Context, s *engine.Session, all []*Status, keys []*attest.PublicKey) error {
	digests := make(map[string]store.Digest)
	for _, st := range all {
		digests[st.Image.Ref] = st.Digest
	}
	found := make([]error, len(all))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(asksAtOnce)
	for n, st := range all {
		own, _ := p.placesOf(st.Image, digests)
		if st.tags != nil && own.Image != "" && !slices.Contains(st.tags, evidence.AttachmentTags(own.Image)+evidence.Withdrawn) {
			own.Repositories = own.Repositories[1:] // there is none in staging
		}
		if own.Image == "" || len(own.Repositories) == 0 {
			continue
		}
		g.Go(func() error {
			found[n] = s.WithdrawnAmong(inner, own, nil, keys)
			var withdrawn *evidence.WithdrawnError
			if found[n] != nil && !errors.As(found[n], &withdrawn) {
				return found[n]
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	notes := make(map[string]*evidence.WithdrawnError)
	for n, st := range all {
		var withdrawn *evidence.WithdrawnError
		if errors.As(found[n], &withdrawn) {
			notes[st.Image.Ref] = withdrawn
		}
	}
	for _, st := range all {
		st.blameWithdrawn(notes)
	}
	return nil
}

// blameWithdrawn says of an image that it is withdrawn, or what it is based on.
func (st *Status) blameWithdrawn(notes map[string]*evidence.WithdrawnError) {
	if w := notes[st.Image.Ref]; w != nil {
		reasons := []string{"it is withdrawn: " + w.Note.Because}
		if w.Note.Doubtful {
			reasons = append(reasons, st.Reasons...) // they may tell of a key that was changed
		}
		st.Action, st.Reasons = Withdrawn, reasons
		return
	}
	var reasons []string
	add := func(i *Image, how string) {
		if w := notes[i.Ref]; w != nil {
			reasons = append(reasons, fmt.Sprintf("it %s %s, which is withdrawn: %s", how, i.Ref, w.Note.Because))
		}
	}
	var stack func(i *Image)
	stack = func(i *Image) {
		for _, part := range i.Parts {
			add(part, "is made of")
			stack(part)
		}
		if i.Base != nil {
			add(i.Base, "is based on")
			stack(i.Base)
		}
	}
	stack(st.Image)
	switch {
	case len(reasons) == 0:
	case st.IsToBuild():
		st.Action, st.Reasons = Wait, reasons
	case st.Action != Lock:
		st.Action, st.Reasons = Withdrawn, reasons
	}
}
