package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

// listed are the keys under [[trust]].
func (p *Pipeline) listed() ([]*attest.PublicKey, error) {
	var keys []*attest.PublicKey
	for _, t := range p.Trust {
		key, err := t.Read(p.Dir)
		if err != nil {
			return nil, fmt.Errorf("%s: trust: %w", p.Path, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Key is the key that the pipeline signs with, which comes after those under [[trust]]; nil without one.
func (p *Pipeline) Key() (*attest.PrivateKey, error) {
	return p.keyOr(p.Sign)
}

// keyOr is Key for a private key that is named elsewhere.
func (p *Pipeline) keyOr(sign string) (*attest.PrivateKey, error) {
	before, err := p.listed()
	if err != nil {
		return nil, err
	}
	own, err := engine.SigningKey(sign)
	if err != nil || own == nil {
		return nil, err
	}
	for _, key := range before {
		if key.Revoked() && key.Is(own.Public()) {
			err := fault.Usage(fmt.Errorf("%s: the key that sign names is revoked under [[trust]]", p.Path))
			return nil, fault.Hint(err, "make a new one, and let sign name it: docs/guide/promotion.md, \"A new key, a lost key, a stolen key\"")
		}
	}
	return own.After(before), nil
}

// trusted are keys whose signatures are believed: the pipeline's own, those under [[trust]], and more. Without its private key, which CI systems
// keep from the jobs of branches, those under [[trust]] are enough.
func (p *Pipeline) trusted(more []*attest.PublicKey) ([]*attest.PublicKey, error) {
	before, err := p.listed()
	if err != nil {
		return nil, err
	}
	own, err := p.Key()
	if err != nil {
		if len(before) == 0 {
			return nil, err
		}
		return append(before, more...), nil
	}
	if own == nil {
		return append(before, more...), nil
	}
	return append(own.Trust(), more...), nil
}

// Keys describes the keys that count for the pipeline, the one that it signs with first.
func (p *Pipeline) Keys() []engine.KnownKey {
	all := []engine.KnownKey{}
	if p.Sign != "" {
		k := engine.KnownKey{Key: p.Sign, From: p.Path, Signs: true}
		if own, err := p.Key(); err != nil {
			k.Problem, k.Err = err.Error(), err
		} else {
			k.Fingerprint = own.Public().Fingerprint()
		}
		all = append(all, k)
	}
	for _, t := range p.Trust {
		all = append(all, engine.KnowKey(t, p.Dir, p.Path))
	}
	return all
}

// lookAtSigners tells of verdicts and documents of an image whose keys do not count, and what has to happen. wanted are the verdicts that are
// there.
func (p *Pipeline) lookAtSigners(ctx context.Context, s *engine.Session, st *Status, wanted []Wanted, keys []*attest.PublicKey) error {
	if len(keys) == 0 || st.Digest == "" {
		return nil
	}
	book, err := s.Evidence(repositoryOf(st.Canonical), nil, keys)
	if err != nil {
		return err
	}
	look := func(tag, what string) (bool, error) {
		standing, by, err := book.StandingOf(ctx, tag)
		switch {
		case err != nil:
			return false, err
		case standing == evidence.Stranger:
			st.Reasons = append(st.Reasons, fmt.Sprintf("%s is signed with a key that is not trusted, and names itself %s: only if that is an earlier key of yours, run `sconce pipeline resign` with it", what, by))
		case standing == evidence.Uncounted:
			st.Reasons = append(st.Reasons, fmt.Sprintf("%s is signed with a key that does not count, %s", what, by))
		default:
			return false, nil
		}
		return true, nil
	}
	before := slices.Clone(st.Reasons)
	for _, w := range wanted {
		tag, err := w.Tag()
		if err != nil {
			return err
		}
		found, err := look(tag, fmt.Sprintf("the verdict of test %s on %s", w.Name, w.Cluster))
		if err != nil {
			return err
		}
		if found && st.Action == Fine {
			st.Reasons = slices.Delete(st.Reasons, 0, len(before)) // why it is fine
		}
		if found && st.Action != Stuck {
			st.Action = Test
		}
	}
	if len(wanted) == 0 { // a verdict speaks for what else is signed with its key
		if _, err := look(evidence.AttachmentTags(st.Digest)+engine.Provenance, "its provenance"); err != nil {
			return err
		}
	}
	return nil
}

// Resigned is what was signed again in the repositories of a pipeline.
type Resigned struct {
	DryRun    bool                `json:"dryRun,omitempty"`
	Documents []evidence.Resigned `json:"documents"`
}

// Resign signs with the pipeline's key what the keys under [[trust]] have signed, in the staging repositories of images, and in those for users
// where registries list what is about an image. What it reports with an error has been done.
func (p *Pipeline) Resign(ctx context.Context, s *engine.Session, images []*Image, dryRun bool) (*Resigned, error) {
	all := &Resigned{DryRun: dryRun, Documents: []evidence.Resigned{}}
	if !dryRun {
		if err := p.CheckBranch("sign documents again"); err != nil {
			return all, err
		}
	}
	key, err := p.Key()
	if err != nil {
		return all, err
	}
	if key == nil {
		return all, fault.Usage(fault.Hint(fmt.Errorf("%s names no key to sign with", p.Path), `add sign = "env:SCONCE_KEY"`))
	}
	var staging, stable []string
	add := func(list []string, ref string) []string {
		if name := repositoryOf(ref); name != "" && !slices.Contains(list, name) {
			list = append(list, name)
		}
		return list
	}
	for _, i := range images {
		staging = add(staging, p.Staging+"/"+i.Name+":"+i.Version)
		for _, ref := range i.Stable {
			stable = add(stable, ref)
		}
	}
	for _, name := range staging {
		book, err := s.Evidence(name, key, nil)
		if err != nil {
			return all, err
		}
		done, err := book.Resign(ctx, dryRun)
		all.Documents = append(all.Documents, done...)
		if err != nil {
			return all, err
		}
	}
	for _, name := range stable {
		if slices.Contains(staging, name) {
			continue
		}
		published := make(map[store.Digest]string)
		if err := publishedIn(ctx, s, name, published); err != nil {
			return all, err
		}
		book, err := s.Evidence(name, key, nil)
		if err != nil {
			return all, err
		}
		done, err := book.ResignReferred(ctx, slices.Sorted(maps.Keys(published)), dryRun)
		all.Documents = append(all.Documents, done...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}
