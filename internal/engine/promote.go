package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/promote"
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
	return nil, fault.Hint(errors.New("it is encrypted"), "put its password into the variable "+passwordVariables[0])
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

// HasKey reports whether there is anything to be read where a private key is said to be, as for [SigningKey].
func HasKey(where string) bool {
	if name, ok := strings.CutPrefix(where, "env:"); ok {
		text, _ := attest.Withhold(name)
		return text != ""
	}
	_, err := os.Lstat(strings.TrimPrefix(where, "file:"))
	return err == nil
}

// SigningKey reads a private key from a file or "env:NAME"; "" is none. Programs that this one starts do not get the variable.
func SigningKey(where string) (*attest.PrivateKey, error) {
	if where == "" {
		return nil, nil
	}
	WithholdKey(where)
	return attest.ReadPrivateKey(where, keyPassword)
}

// TrustedKeys reads public keys from files or "env:NAME".
func TrustedKeys(where []string) ([]*attest.PublicKey, error) {
	var keys []*attest.PublicKey
	for _, w := range where {
		key, err := attest.ReadPublicKey(w)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Evidence opens what is known of the images of a repository, HOST/PATH. Without a key it is only read.
func (s *Session) Evidence(repository string, key *attest.PrivateKey, trust []*attest.PublicKey) (*evidence.Book, error) {
	return evidence.Open(repository, evidence.Options{Store: s.Store, Fetch: s.Fetch, Key: key, Trust: trust})
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
	file := r.Log.File
	r.Log.File = "" // a path of this machine
	if e.Details, err = json.Marshal(r); err != nil {
		return err
	}
	b, err := s.Evidence(repository, key, nil)
	if err != nil {
		return err
	}
	if file == "" {
		return b.Put(ctx, e, nil)
	}
	f, err := os.Open(file)
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
		err = fault.Hint(fmt.Errorf("%s has no %s", ref.Value, wanted), "check the name, or push the image first: `sconce push IMAGE "+ref.Value+"`")
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
	Required []promote.Required  // what there must be
	Untested bool                // without Required: also without any evidence
	DryRun   bool
}

// Promote gives an image in a registry further tags, when there is evidence that it works: see [promote].
func (s *Session) Promote(ctx context.Context, im InRegistry, how Promoting) (*promote.Report, error) {
	p := promote.Promotion{From: im.Repository, Image: im.Digest, Required: how.Required, Existing: !how.Untested}
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
	return promote.Run(ctx, p, promote.Options{Store: s.Store, Fetch: s.Fetch, Trust: how.Trust, DryRun: how.DryRun})
}

// Verification is what is known of an image in a registry.
type Verification struct {
	Image    string       `json:"image"` // HOST/PATH:TAG
	Digest   store.Digest `json:"digest"`
	Evidence []Verdict    `json:"evidence"`
	Signed   []string     `json:"signed"`          // kinds of documents that are signed, about each image of an index: "provenance", "sbom", "spdx", "facts"
	Index    *Index       `json:"index,omitempty"` // nil: it is an image of its own
	Problems []string     `json:"problems"`        // why it is not to be trusted; none: it is
}

// Index is what is known of an index besides what is known of its images.
type Index struct {
	Images []store.Digest `json:"images"`
	Signed []string       `json:"signed"` // kinds of documents that are signed, about itself
}

// Verdict is the result of a test that is signed.
type Verdict struct {
	Test     string          `json:"test"`
	Image    store.Digest    `json:"image"` // of an index, the one that was tested
	Hash     string          `json:"hash"`
	Cluster  string          `json:"cluster"`
	Result   evidence.Result `json:"result"`
	Finished string          `json:"finished,omitempty"`
	Manifest store.Digest    `json:"manifest"`
}

// Good reports whether there is evidence and nothing speaks against the image.
func (v *Verification) Good() bool { return len(v.Problems) == 0 }

// Verify looks up the evidence about an image: in its repository, or in the one called where. Evidence that is not what it seems to be is a
// problem, as is that there is none.
func (s *Session) Verify(ctx context.Context, name, where string, trust []*attest.PublicKey) (*Verification, error) {
	im, err := s.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	v := &Verification{Image: strings.TrimSuffix(im.String(), "@"+string(im.Digest)), Digest: im.Digest, Evidence: []Verdict{}, Signed: []string{}, Problems: []string{}}
	b, err := s.Evidence(cmp.Or(where, im.Repository), nil, trust)
	if err != nil {
		return nil, err
	}
	images, err := s.listed(ctx, im)
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		images = []store.Digest{im.Digest}
	} else if v.Index, err = v.index(ctx, b, images); err != nil {
		return nil, err
	}
	for n, image := range images {
		if err := v.verdicts(ctx, b, image); err != nil {
			return nil, err
		}
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

// verdicts notes the evidence about an image.
func (v *Verification) verdicts(ctx context.Context, b *evidence.Book, image store.Digest) error {
	before := len(v.Problems)
	list, err := b.List(ctx, image)
	if err == nil && len(list) == 0 {
		list, err = b.Referred(ctx, image)
	}
	if err := v.note(err); err != nil {
		return err
	}
	for _, e := range list {
		one := Verdict{Test: e.Name, Image: image, Hash: e.Test, Cluster: e.Cluster, Result: e.Result, Manifest: e.Manifest}
		if !e.Finished.IsZero() {
			one.Finished = e.Finished.UTC().Format("2006-01-02T15:04:05Z")
		}
		v.Evidence = append(v.Evidence, one)
		if !e.Result.Good() {
			v.Problems = append(v.Problems, fmt.Sprintf("test %s has not passed on %s", e.Name, e.Cluster))
		}
	}
	if len(list) == 0 && len(v.Problems) == before {
		what := "it"
		if image != v.Digest {
			what = image.Short() + ", which is part of it,"
		}
		v.Problems = append(v.Problems, "there is no evidence that "+what+" was ever tested")
	}
	return nil
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
)
