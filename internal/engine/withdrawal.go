package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// The labels that name what an image stands on (OCI image-spec, annotations.md).
const (
	labelBaseName   = "org.opencontainers.image.base.name"
	labelBaseDigest = "org.opencontainers.image.base.digest"
)

// How an image has to do with another one, for [evidence.WithdrawnError].
const (
	standsOn = "stands on"
	lists    = "lists"
)

// maxStack bounds how many images are looked at that an image stands on, one on the other.
const maxStack = 16

// StandsOn lists what an image in a registry stands on, one image below the other, and what an index lists: as far as provenance beside them, or
// their labels, name images in the same registry.
func (s *Session) StandsOn(ctx context.Context, repository string, image store.Digest) ([]promote.Place, error) {
	repo, err := s.Repository(repository)
	if err != nil {
		return nil, err
	}
	manifest, listed, err := repo.Reach(ctx, string(image))
	if err != nil {
		return nil, err
	}
	var all []promote.Place
	add := func(p promote.Place) bool {
		if len(all) >= maxStack || slices.ContainsFunc(all, func(other promote.Place) bool { return other.Image == p.Image }) {
			return false
		}
		all = append(all, p)
		return true
	}
	tops := [][]byte{manifest}
	for _, d := range listed {
		if !add(promote.Place{Name: repository + "@" + d.Short(), Image: d, Repositories: []string{repository}, How: lists}) {
			continue
		}
		one, _, err := repo.Manifest(ctx, string(d))
		if registry.IsAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		tops = append(tops, one)
	}
	for _, top := range tops {
		at, name := top, repository
		for {
			base, err := s.baseOf(ctx, name, at)
			if err != nil {
				return nil, err
			}
			if base == nil || !add(*base) {
				break
			}
			name = base.Repositories[0]
			below, err := s.Repository(name)
			if err != nil {
				return nil, err
			}
			at, _, err = below.Manifest(ctx, string(base.Image))
			if registry.IsAbsent(err) || registry.IsDenied(err) {
				break // nobody says what it stood on, or not to this user
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// baseOf is what the image of a manifest stands on, nil where nothing says so.
func (s *Session) baseOf(ctx context.Context, repository string, manifest []byte) (*promote.Place, error) {
	book, err := s.Evidence(repository, nil, nil)
	if err != nil {
		return nil, err
	}
	text, err := book.Peek(ctx, store.DigestOf(manifest), Provenance)
	if err == nil && text == nil {
		text, err = book.PeekReferred(ctx, store.DigestOf(manifest), provenanceType)
	}
	if err != nil {
		return nil, err
	}
	var made provenance
	if json.Unmarshal(text, &made) == nil && made.Definition.Type != indexBuild && len(made.Definition.Resolved) > 0 {
		first := made.Definition.Resolved[0]
		if base := baseAt(repository, first.URI, store.Digest("sha256:"+first.Digest["sha256"])); base != nil {
			return base, nil
		}
	}
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
	if err := repo.Blob(ctx, digest, m.Config.Size, "configuration"); err != nil {
		return nil, err
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

// Withdrawn looks whether an image in a registry is withdrawn, or stands on or lists one that is: the error says so. also are repositories that are
// asked about the image besides its own; without keys, whatever a note says counts.
func (s *Session) Withdrawn(ctx context.Context, im InRegistry, also []string, trust []*attest.PublicKey) error {
	own := promote.Place{Name: im.shown(), Image: im.Digest, Repositories: []string{im.Repository}}
	for _, name := range also {
		if name != "" && !slices.Contains(own.Repositories, name) {
			own.Repositories = append(own.Repositories, name)
		}
	}
	below, err := s.StandsOn(ctx, im.Repository, im.Digest)
	if err != nil {
		return err
	}
	return s.WithdrawnAmong(ctx, own, below, trust)
}

// WithdrawnAmong looks whether an image is withdrawn, or one of others that it stands on or lists: the error says so.
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

// withdrawalPatience is how long a command waits, once it is done, to learn whether an image is withdrawn.
const withdrawalPatience = 2 * time.Second

// WarnIfWithdrawn looks, beside what else happens with an image of a registry, whether it is withdrawn. The function that it returns warns when it
// is, or what it stands on, once that is over: image is the digest of its manifest in the store, of an index that of the one that was chosen; "" where
// it did not come. A registry that does not answer in time, or has no notes, keeps nobody from anything.
func (s *Session) WarnIfWithdrawn(ctx context.Context, subject *Subject, trust []*attest.PublicKey) (tell func(image store.Digest)) {
	if subject.Ref.Transport != source.Docker || s.Offline {
		return func(store.Digest) {}
	}
	inner, cancel := context.WithCancel(progress.With(ctx, nil)) // it shows nothing
	look := func(own promote.Place, below ...promote.Place) []string {
		var said []string
		for _, p := range append([]promote.Place{own}, below...) {
			note, others, err := promote.Withdrawal(inner, p, promote.Options{Store: s.Store, Fetch: s.Fetch, Trust: trust})
			if note != nil && err == nil {
				said = append(said, (&evidence.WithdrawnError{Image: own.Name, Note: note, How: p.How}).Error())
			}
			for _, n := range others {
				said = append(said, (&evidence.WithdrawnError{Image: own.Name, Note: n, How: p.How}).Error()+", as somebody says whose key is not trusted")
			}
		}
		return said
	}
	repository := subject.Ref.Value
	own := promote.Place{Repositories: []string{repository}}
	top := make(chan []string, 1)
	go func() {
		im, err := s.Find(inner, subject.Ref.String())
		if err != nil && im.Tag != "" { // its tag may have been taken away
			im.Digest, _ = s.withdrawnTag(inner, im.Repository+":"+im.Tag)
		}
		if im.Digest == "" {
			top <- nil
			return
		}
		own.Name, own.Image = im.shown(), im.Digest
		top <- look(own)
	}()
	return func(image store.Digest) {
		defer cancel()
		rest := make(chan []string, 1)
		go func() {
			said := <-top
			if own.Image == "" || image == "" {
				rest <- said
				return
			}
			chosen := promote.Place{Name: own.Name, Image: image, Repositories: own.Repositories}
			var below []promote.Place
			if image != own.Image {
				below = append(below, promote.Place{Image: image, Repositories: own.Repositories, How: lists})
			}
			if base := s.baseInStore(inner, chosen); base != nil {
				further, _ := s.StandsOn(inner, base.Repositories[0], base.Image) // as far as it can be read
				below = append(append(below, *base), further...)
			}
			if len(below) > 0 {
				said = append(said, look(own, below...)...)
			}
			slices.Sort(said)
			rest <- slices.Compact(said)
		}()
		hint := "use another image; `sconce verify` with the public key says who has signed this"
		if len(trust) > 0 {
			hint = "use another image"
		}
		select {
		case said := <-rest:
			for _, text := range said {
				progress.Warn(ctx, text, hint)
			}
		case <-time.After(withdrawalPatience):
		case <-ctx.Done():
		}
	}
}

// baseInStore is what an image of the store stands on, by its labels; nil where they do not say, or name no image of its own registry.
func (s *Session) baseInStore(ctx context.Context, im promote.Place) *promote.Place {
	manifest, err := s.Store.ReadBlob(im.Image, registry.MaxManifest)
	if err != nil {
		return nil
	}
	base, _ := s.baseOf(ctx, im.Repositories[0], manifest)
	return base
}
