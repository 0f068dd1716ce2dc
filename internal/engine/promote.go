package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// The variables that open an encrypted key: sconce's own, and cosign's.
var passwordVariables = []string{"SCONCE_KEY_PASSWORD", "COSIGN_PASSWORD"}

func keyPassword() ([]byte, error) {
	for _, name := range passwordVariables {
		if text, ok := attest.Withhold(name); ok {
			return []byte(text), nil
		}
	}
	return nil, fault.Hint(errors.New("it is encrypted"), "set "+passwordVariables[0]+" to the key's password")
}

// WithholdKey keeps a key, and the password that may be needed to open it, from programs that this one starts, before it is read: where is as
// for [SigningKey].
func WithholdKey(where string) {
	if where == "" {
		return
	}
	names := passwordVariables
	if name, ok := strings.CutPrefix(where, "env:"); ok {
		names = append([]string{name}, names...)
	}
	for _, name := range names {
		attest.Withhold(name)
	}
}

// SigningKey reads a private key from a file or "env:NAME"; "" is none. Programs that this one starts do not get the variable.
func SigningKey(where string) (*attest.PrivateKey, error) {
	if where == "" {
		return nil, nil
	}
	WithholdKey(where)
	return attest.ReadPrivateKey(where, keyPassword)
}

// Evidence opens what is known of the images of a repository, HOST/PATH. Without a key it is only read.
func (s *Session) Evidence(repository string, key *attest.PrivateKey, trust []*attest.PublicKey) (*evidence.Book, error) {
	o := evidence.Options{Store: s.Store, Fetch: s.Fetch, Key: key, Trust: trust}
	if key == nil {
		var err error
		if o.Repo, err = s.Repository(repository); err != nil {
			return nil, err
		}
	}
	return evidence.Open(repository, o)
}

// RecordTest keeps the result of a test as evidence beside its image, with its log.
func (s *Session) RecordTest(ctx context.Context, repository string, r imagetest.Result, key *attest.PrivateKey) error {
	image, err := store.ParseDigest(r.ImageDigest)
	if err != nil {
		return err
	}
	if _, err := r.Predicate(); err != nil {
		return err // not judged: no evidence
	}
	e := evidence.Evidence{
		Key:  evidence.Key{Image: image, Test: r.Hash, Cluster: r.Cluster},
		Name: r.Test, Result: evidence.Result(r.Verdict), Finished: r.Started,
	}
	log := r.Log
	r.Log.File = "" // a path of this machine
	if e.Details, err = json.Marshal(r); err != nil {
		return err
	}
	b, err := s.Evidence(repository, key, nil)
	if err != nil {
		return err
	}
	if log.File == "" {
		return b.Put(ctx, e, nil)
	}
	f, err := log.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	return b.Put(ctx, e, f)
}

// InRegistry is an image in a registry.
type InRegistry struct {
	Repository string       // HOST/PATH
	Tag        string       // "" when it was named by its digest
	Digest     store.Digest // of the manifest
}

// String returns HOST/PATH:TAG@DIGEST.
func (r InRegistry) String() string {
	if r.Tag == "" {
		return r.Repository + "@" + string(r.Digest)
	}
	return r.Repository + ":" + r.Tag + "@" + string(r.Digest)
}

// Find looks up an image in a registry, where it is written: no mirror is asked.
func (s *Session) Find(ctx context.Context, name string) (InRegistry, error) {
	ref, err := parseRemote(name)
	if err != nil {
		return InRegistry{}, err
	}
	r := InRegistry{Repository: ref.Value, Tag: ref.Tag}
	repo, err := registry.OpenForWriting(ref.Value, registry.Options{Fetch: s.Fetch, User: ref.User})
	if err != nil {
		return r, err
	}
	wanted := cmp.Or(string(ref.Digest), ref.Tag, "latest")
	if r.Digest, err = repo.Resolve(ctx, wanted); err == nil && r.Digest == "" {
		err = fault.Hint(fmt.Errorf("%s has no %s", ref.Value, wanted), "check the name, or push the image first: `sconce push IMAGE "+quote.Word(ref.Value)+"`")
	}
	return r, err
}

// IsRemote reports whether a name is that of an image in a registry, with the registry's name in front.
func IsRemote(name string) bool {
	_, err := parseRemote(name)
	return err == nil
}

// parseRemote reads HOST/NAME[:TAG][@DIGEST]. Short names of Docker's registry are not understood: nobody promotes there by accident.
func parseRemote(name string) (source.Ref, error) {
	name = strings.TrimPrefix(name, dockerPrefix)
	host, path, _ := strings.Cut(name, "/")
	host = host[strings.LastIndexByte(host, '@')+1:] // USER@ is no part of it
	if path == "" || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return source.Ref{}, fault.Usage(fmt.Errorf("%q is no image in a registry: write HOST/NAME:TAG", name))
	}
	return source.Parse(dockerPrefix + name)
}

// Promoting says how an image is promoted.
type Promoting struct {
	To       []string            // [docker://]HOST/NAME[:TAG]; without a tag, that of the image
	Mutable  bool                // the tags may be moved
	Trust    []*attest.PublicKey // who signs evidence
	Untested bool                // also without any evidence, of an image whose recipe is not known
	DryRun   bool
	Below    []promote.Place // what it is based on, none of which may be withdrawn; nil: what provenance and labels say

	Recipe *ByRecipe // what its recipe asks for; nil: it is not known
}

// ByRecipe is by what right an image of a pipeline is promoted.
type ByRecipe struct {
	Required []promote.Required // verdicts that there must be
	Untested []string           // what nothing tests, in words
	Allowed  bool               // that is allowed
	Sign     *attest.PrivateKey // signs a record of the promotion; nil: there is none
	Origin   *evidence.Origin   // of whoever promotes
}

// Promote gives an image in a registry further tags, when there is evidence that it works: see [promote].
func (s *Session) Promote(ctx context.Context, im InRegistry, how Promoting) (*promote.Report, error) {
	p := promote.Promotion{From: im.Repository, Image: im.Digest, Allowed: how.Untested, Below: how.Below}
	if how.Below == nil {
		var err error
		if p.Below, err = s.StandsOn(ctx, im.Repository, im.Digest, how.Trust); err != nil {
			return nil, err
		}
	}
	var sign *attest.PrivateKey
	if r := how.Recipe; r != nil {
		p.Recipe, p.Required, p.Untested, p.Allowed, p.Origin, sign = true, r.Required, r.Untested, r.Allowed, r.Origin, r.Sign
	}
	for _, to := range how.To {
		ref, err := parseRemote(withTag(to, im.Tag))
		if err != nil {
			return nil, err
		}
		if ref.Tag == "" || ref.Digest != "" {
			return nil, fault.Usage(fmt.Errorf("--to %s: it says under which tag no more than the image does", to))
		}
		t := promote.Target{Repository: ref.Value, Tag: ref.Tag, Mutable: how.Mutable}
		if !slices.Contains(p.To, t) {
			p.To = append(p.To, t)
		}
	}
	return promote.Run(ctx, p, promote.Options{Store: s.Store, Fetch: s.Fetch, Trust: how.Trust, Key: sign, DryRun: how.DryRun})
}

// Verification is what is known of an image in a registry.
type Verification struct {
	Image    string            `json:"image"` // HOST/PATH:TAG
	Digest   store.Digest      `json:"digest"`
	Evidence []promote.Verdict `json:"evidence"`
	Untested []string          `json:"untested,omitempty"` // what nothing tests, as the pipeline that promoted it allows
	Record   *promote.Record   `json:"promotion,omitempty"`
	Origin   *evidence.Origin  `json:"origin,omitempty"`
	Signed   []string          `json:"signed"`          // kinds of documents that are signed, about each image of an index: "provenance", "sbom", "spdx", "facts"
	Index    *Index            `json:"index,omitempty"` // nil: it is an image of its own
	Problems []string          `json:"problems"`        // why it is not to be trusted; none: it is
}

// Index is what is known of an index besides what is known of its images.
type Index struct {
	Images []store.Digest `json:"images"`
	Signed []string       `json:"signed"` // kinds of documents that are signed, about itself
}

// Good reports whether there is evidence and nothing speaks against the image.
func (v *Verification) Good() bool { return len(v.Problems) == 0 }

// Verify looks up the evidence about an image, in its repository or in the one called where, and judges it as promotion does. Evidence
// that is not what it seems to be is a problem, as is that there is none.
func (s *Session) Verify(ctx context.Context, name, where string, trust []*attest.PublicKey) (*Verification, error) {
	im, err := s.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	v := &Verification{Image: strings.TrimSuffix(im.String(), "@"+string(im.Digest)), Digest: im.Digest, Signed: []string{}, Problems: []string{}}
	where = cmp.Or(where, im.Repository)
	b, err := s.Evidence(where, nil, trust)
	if err != nil {
		return nil, err
	}
	images, err := s.listed(ctx, im)
	if err != nil {
		return nil, err
	}
	if err := v.withdrawn(s.Withdrawn(ctx, im, []string{where}, trust)); err != nil {
		return nil, err
	}
	found, err := s.Judge(ctx, promote.Demand{Image: im.Digest, Parts: images, From: where}, trust)
	if err != nil {
		return nil, err
	}
	v.Evidence, v.Untested, v.Record = found.Verdicts, found.Untested, found.Record
	v.Problems = append(v.Problems, found.Problems...)
	said, err := b.Find(ctx, im.Digest, OriginKind, originType)
	if err := v.note(err); err != nil {
		return nil, err
	}
	if said != nil {
		_ = json.Unmarshal(said.Predicate, &v.Origin) // of another form: it says nothing
	}
	if len(images) == 0 {
		images = []store.Digest{im.Digest}
	} else if v.Index, err = v.index(ctx, b, images); err != nil {
		return nil, err
	}
	for n, image := range images {
		signed, err := v.attachments(ctx, b, image)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			v.Signed = signed
		}
		v.Signed = slices.DeleteFunc(v.Signed, func(kind string) bool { return !slices.Contains(signed, kind) }) // of all of them
	}
	return v, nil
}

// Judge is [promote.Judge] by the signatures of trust.
func (s *Session) Judge(ctx context.Context, d promote.Demand, trust []*attest.PublicKey) (*promote.Judgement, error) {
	return promote.Judge(ctx, d, func(repository string) (*evidence.Book, error) {
		if err := promote.CheckTrust(trust); err != nil {
			return nil, err
		}
		return s.Evidence(repository, nil, trust)
	})
}

// listed are the images that an index lists; none of an image.
func (s *Session) listed(ctx context.Context, im InRegistry) ([]store.Digest, error) {
	repo, err := registry.OpenForWriting(im.Repository, registry.Options{Fetch: s.Fetch})
	if err != nil {
		return nil, err
	}
	_, listed, err := repo.Reach(ctx, string(im.Digest))
	return listed, err
}

// index looks for what is said about an index itself.
func (v *Verification) index(ctx context.Context, b *evidence.Book, images []store.Digest) (*Index, error) {
	signed, err := v.attachments(ctx, b, v.Digest)
	return &Index{Images: images, Signed: signed}, err
}

// attachments looks for the documents about an image that are signed.
func (v *Verification) attachments(ctx context.Context, b *evidence.Book, image store.Digest) (signed []string, err error) {
	signed = []string{}
	for _, of := range []struct{ kind, documentType string }{{Provenance, provenanceType}, {SBOM, cycloneDXType}, {SPDX, spdxType}, {Facts, factsType}} {
		statement, err := b.Find(ctx, image, of.kind, of.documentType)
		if err := v.note(err); err != nil {
			return nil, err
		}
		if statement != nil {
			signed = append(signed, of.kind)
		}
	}
	return signed, nil
}

// note makes a problem of an error that is one, and returns any other.
func (v *Verification) note(err error) error {
	var moved *evidence.MovedError
	if errors.As(err, &moved) {
		v.Problems = append(v.Problems, moved.Error())
		return nil
	}
	return err
}

// The kinds of documents that are attached to images.
const (
	Provenance = "provenance"
	SBOM       = "sbom" // CycloneDX
	SPDX       = "spdx" // the same list
	OriginKind = "origin"
)
