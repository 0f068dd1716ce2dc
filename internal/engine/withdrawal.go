package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// The labels that name what an image is based on (OCI image-spec, annotations.md).
const (
	labelBaseName   = "org.opencontainers.image.base.name"
	labelBaseDigest = "org.opencontainers.image.base.digest"
)

// How an image has to do with another one, for [evidence.WithdrawnError].
const (
	standsOn = "is based on"
	lists    = "lists"
)

// maxStack bounds how many images are looked at that an image is based on, one on the other.
const maxStack = 16

// StandsOn lists what an image in a registry is based on, one image below the other, and what an index lists: as far as provenance beside them, or
// their labels, name images in the same registry. With keys, only provenance that one of them has signed is believed.
func (s *Session) StandsOn(ctx context.Context, repository string, image store.Digest, trust []*attest.PublicKey) ([]promote.Place, error) {
	repo, err := s.Repository(repository)
	if err != nil {
		return nil, err
	}
	manifest, listed, err := repo.Reach(ctx, string(image))
	if err != nil {
		return nil, err
	}
	w := &tower{session: s, trust: trust}
	if err := w.addBelow(ctx, repository, manifest); err != nil {
		return nil, err
	}
	for _, d := range listed {
		if !w.add(promote.Place{Name: repository + "@" + d.Short(), Image: d, Repositories: []string{repository}, How: lists}) {
			continue
		}
		one, _, err := repo.Manifest(ctx, string(d))
		if registry.IsAbsent(err) {
			continue
		}
		if err == nil {
			err = w.addBelow(ctx, repository, one)
		}
		if err != nil {
			return nil, err
		}
	}
	return w.all, nil
}

// tower collects images that stand on each other.
type tower struct {
	session *Session
	trust   []*attest.PublicKey
	all     []promote.Place
}

// add adds an image, and reports whether it is new.
func (w *tower) add(p promote.Place) bool {
	if len(w.all) >= maxStack || slices.ContainsFunc(w.all, func(other promote.Place) bool { return other.Image == p.Image }) {
		return false
	}
	w.all = append(w.all, p)
	return true
}

// addBelow adds what the image of a manifest is based on, all the way down.
func (w *tower) addBelow(ctx context.Context, repository string, manifest []byte) error {
	bases, err := w.session.basesOf(ctx, repository, manifest, w.trust)
	if err != nil {
		return err
	}
	for _, base := range bases {
		if !w.add(base) {
			continue
		}
		at := base.Repositories[0]
		repo, err := w.session.Repository(at)
		if err != nil {
			return err
		}
		below, _, err := repo.Manifest(ctx, string(base.Image))
		if registry.IsAbsent(err) || registry.IsDenied(err) {
			continue // nobody says what it stood on, or not to this user
		}
		if err == nil {
			err = w.addBelow(ctx, at, below)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// basesOf is what the image of a manifest is based on, by its provenance and by its own labels: whoever may write beside it can put another
// provenance there, and who has made it other labels into it.
func (s *Session) basesOf(ctx context.Context, repository string, manifest []byte, trust []*attest.PublicKey) ([]promote.Place, error) {
	text, err := s.provenanceBeside(ctx, repository, store.DigestOf(manifest), trust)
	if err != nil {
		return nil, err
	}
	var bases []promote.Place
	var made provenance
	if json.Unmarshal(text, &made) == nil && made.Definition.Type != indexBuild && len(made.Definition.Resolved) > 0 {
		first := made.Definition.Resolved[0]
		if base := baseAt(repository, first.URI, store.Digest("sha256:"+first.Digest["sha256"])); base != nil {
			bases = append(bases, *base)
		}
	}
	base, err := s.labelledBase(ctx, repository, manifest)
	if base != nil {
		bases = append(bases, *base)
	}
	return bases, err
}

// provenanceBeside is the provenance of an image: with keys, what one of them has signed, else whatever is there.
func (s *Session) provenanceBeside(ctx context.Context, repository string, image store.Digest, trust []*attest.PublicKey) (json.RawMessage, error) {
	book, err := s.Evidence(repository, nil, trust)
	if err != nil {
		return nil, err
	}
	if len(trust) == 0 {
		text, err := book.Peek(ctx, image, Provenance)
		if err == nil && text == nil {
			text, err = book.PeekReferred(ctx, image, provenanceType)
		}
		return text, err
	}
	said, err := book.Find(ctx, image, Provenance, provenanceType)
	var others *evidence.MovedError
	if errors.As(err, &others) { // somebody has written over it: its former self may still be listed
		said, err = book.Referring(ctx, image, provenanceType)
	}
	if err != nil || said == nil || said.PredicateType != provenanceType {
		return nil, err
	}
	return said.Predicate, nil
}

// labelledBase is what the image of a manifest is based on by its labels, nil where they name nothing in its registry.
func (s *Session) labelledBase(ctx context.Context, repository string, manifest []byte) (*promote.Place, error) {
	labels, err := s.labelsOf(ctx, repository, manifest)
	if err != nil || labels[labelBaseName] == "" {
		return nil, err
	}
	name, digest := labels[labelBaseName], store.Digest(labels[labelBaseDigest])
	if digest == "" && !strings.Contains(name, "/") { // another recipe's, which lies beside it
		name = repository[:strings.LastIndexByte(repository, '/')+1] + name
	}
	if base := baseAt(repository, name, digest); base != nil || digest != "" {
		return base, nil
	}
	if baseAt(repository, name, store.DigestOf(nil)) == nil { // not of this registry
		return nil, nil
	}
	digest, found, err := s.Head(ctx, name)
	if err == nil && !found {
		digest, err = s.withdrawnTag(ctx, name)
	}
	if registry.IsDenied(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return baseAt(repository, name, digest), nil
}

// withdrawnTag is the image that a tag, HOST/PATH:TAG, led to before it was withdrawn; "" where nothing says so.
func (s *Session) withdrawnTag(ctx context.Context, name string) (store.Digest, error) {
	repository, tag := store.SplitImageName(name)
	book, err := s.Evidence(repository, nil, nil)
	if err != nil {
		return "", err
	}
	n, err := book.NoteOfTag(ctx, tag)
	if n == nil {
		return "", err
	}
	return n.Image, nil
}

// baseAt is a place of an image that is named HOST/NAME[:TAG]; nil where that is no image of the repository's own registry, or has no digest.
func baseAt(repository, name string, digest store.Digest) *promote.Place {
	ref, err := parseRemote(name)
	host, _, _ := strings.Cut(repository, "/")
	if err != nil || !strings.HasPrefix(ref.Value, host+"/") {
		return nil
	}
	if _, err := store.ParseDigest(string(digest)); err != nil {
		return nil
	}
	return &promote.Place{Name: ref.Value + "@" + digest.Short(), Image: digest, Repositories: []string{ref.Value}, How: standsOn}
}

// labelsOf reads the labels of the image of a manifest.
func (s *Session) labelsOf(ctx context.Context, repository string, manifest []byte) (map[string]string, error) {
	var m v1.Manifest
	if json.Unmarshal(manifest, &m) != nil {
		return nil, nil //nolint:nilerr // an index, or nothing that has labels
	}
	digest, err := store.ParseDigest(m.Config.Digest.String())
	if err != nil || m.Config.Size <= 0 || m.Config.Size > registry.MaxConfig {
		return nil, nil //nolint:nilerr // likewise
	}
	repo, err := s.Repository(repository)
	if err != nil {
		return nil, err
	}
	if !s.Store.HasBlob(digest) {
		if err := repo.Blob(ctx, digest, m.Config.Size, "configuration"); err != nil {
			return nil, err
		}
	}
	text, err := s.Store.ReadBlob(digest, registry.MaxConfig)
	if err != nil {
		return nil, err
	}
	var config v1.ConfigFile
	if json.Unmarshal(text, &config) != nil {
		return nil, nil //nolint:nilerr // likewise
	}
	return config.Config.Labels, nil
}

// Withdrawn looks whether an image in a registry is withdrawn, or is based on or lists one that is: the error says so. also are repositories that are
// asked about the image besides its own; without keys, whatever a note says counts.
func (s *Session) Withdrawn(ctx context.Context, im InRegistry, also []string, trust []*attest.PublicKey) error {
	own := promote.Place{Name: im.shown(), Image: im.Digest, Repositories: []string{im.Repository}}
	for _, name := range also {
		if name != "" && !slices.Contains(own.Repositories, name) {
			own.Repositories = append(own.Repositories, name)
		}
	}
	below, err := s.StandsOn(ctx, im.Repository, im.Digest, trust)
	if err != nil {
		return err
	}
	return s.WithdrawnAmong(ctx, own, below, trust)
}

// WithdrawnAmong looks whether an image is withdrawn, or one of others that it is based on or lists: the error says so.
func (s *Session) WithdrawnAmong(ctx context.Context, own promote.Place, below []promote.Place, trust []*attest.PublicKey) error {
	for _, p := range append([]promote.Place{own}, below...) {
		note, others, err := promote.Withdrawal(ctx, p, promote.Options{Store: s.Store, Fetch: s.Fetch, Trust: trust})
		if err != nil {
			return err
		}
		promote.TellOthers(ctx, p, others)
		if note != nil {
			return &evidence.WithdrawnError{Image: own.Name, Note: note, How: p.How}
		}
	}
	return nil
}

// withdrawn makes a problem of an error that says that the image is withdrawn, and returns any other.
func (v *Verification) withdrawn(err error) error {
	var withdrawn *evidence.WithdrawnError
	if errors.As(err, &withdrawn) {
		v.Problems = append(v.Problems, withdrawn.Error())
		return nil
	}
	return err
}

// shown is what people call an image: by its tag, where it was named so.
func (r InRegistry) shown() string {
	if r.Tag == "" {
		return r.Repository + "@" + r.Digest.Short()
	}
	return r.Repository + ":" + r.Tag
}

// Withdrawing says how an image is withdrawn.
type Withdrawing struct {
	promote.Withdrawing
	Key    *attest.PrivateKey
	DryRun bool
}

// Withdraw says beside an image that it is withdrawn, or is so no longer, and takes its tags away: see [promote.Withdraw].
func (s *Session) Withdraw(ctx context.Context, w Withdrawing) (*promote.Withdrawn, error) {
	w.Because = evidence.OneLine(w.Because)
	if w.Because == "" {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("nothing says why %s is withdrawn, or is so no longer", w.Image.Short()), `add --because "what is wrong"`))
	}
	o := promote.WithdrawOptions{Options: promote.Options{Store: s.Store, Fetch: s.Fetch, DryRun: w.DryRun}, Key: w.Key}
	return promote.Withdraw(ctx, w.Withdrawing, o)
}
