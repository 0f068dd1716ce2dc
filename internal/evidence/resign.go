package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// Resigned is a document about an image that another key than the book's has signed.
type Resigned struct {
	Document string `json:"document"` // HOST/PATH:TAG, or HOST/PATH@DIGEST of one without a tag
	Key      string `json:"key"`      // the fingerprint of the key that had signed it
	Left     string `json:"left,omitempty"`
}

// resignsAtOnce is of how many images documents are looked at side by side.
const resignsAtOnce = 8

// Resign signs with the book's key what keys that it comes after have signed, under all tags of the repository: the same bytes, so that they say
// what they said. Documents whose key is not trusted, or does not count, are left, and reported. What was signed before is no longer found by
// the image, so that cosign, with the new key, believes what is found. It may be killed and run again, and run twice at once.
func (b *Book) Resign(ctx context.Context, dryRun bool) ([]Resigned, error) {
	if b.opts.Key == nil {
		return nil, fault.Usage(errors.New("no key was given to sign the documents again"))
	}
	tags, err := b.repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	r := &resigner{Book: b, dryRun: dryRun, images: map[store.Digest]bool{}, current: map[store.Digest]bool{}, said: map[store.Digest]bool{}}
	tags = slices.DeleteFunc(tags, func(tag string) bool {
		_, ok := ImageOf(tag)
		return !ok || strings.HasPrefix(tag, logPrefix)
	})
	if err := r.each(ctx, tags); err != nil || dryRun {
		return r.sorted(), err
	}
	for _, image := range slices.Sorted(maps.Keys(r.images)) {
		if err := r.dropOld(ctx, image); err != nil {
			return r.sorted(), err
		}
	}
	return r.sorted(), nil
}

// ResignReferred does so with what refers to images of a repository that has no tags for it: what was signed before is deleted there.
func (b *Book) ResignReferred(ctx context.Context, images []store.Digest, dryRun bool) ([]Resigned, error) {
	r := &resigner{Book: b, dryRun: dryRun, images: map[store.Digest]bool{}, current: map[store.Digest]bool{}, said: map[store.Digest]bool{}}
	for _, image := range images {
		if lists, err := b.repo.ListsReferrers(ctx, image); err != nil || !lists {
			return r.sorted(), err
		}
		list, err := b.referrers(ctx, image)
		if err != nil {
			return r.sorted(), err
		}
		var documents []string
		for _, d := range list {
			if _, err := store.ParseDigest(d.Digest.String()); err == nil && mayBeSigned(d) {
				documents = append(documents, d.Digest.String())
			}
		}
		if err := r.each(ctx, documents); err != nil {
			return r.sorted(), err
		}
	}
	return r.sorted(), nil
}

// mayBeSigned reports whether an entry of a list may be that of a signed document. Some registries give the type of an artifact's configuration for
// its own.
func mayBeSigned(entry registry.Referrer) bool {
	return slices.Contains([]string{attest.BundleType, "application/vnd.oci.empty.v1+json", ""}, entry.ArtifactType)
}

// resigner signs the documents of a book again.
type resigner struct {
	*Book
	dryRun bool

	mu      sync.Mutex
	all     []Resigned
	images  map[store.Digest]bool // that documents under tags are about
	current map[store.Digest]bool // manifests that tags lead to now
	said    map[store.Digest]bool // what these say, by the digests of their payloads
}

func (r *resigner) sorted() []Resigned {
	slices.SortFunc(r.all, func(a, b Resigned) int { return strings.Compare(a.Document, b.Document) })
	return append([]Resigned{}, r.all...)
}

// each signs documents, those of one image one after the other: they meet in its list, and registries that keep files do not read what others
// are writing.
func (r *resigner) each(ctx context.Context, references []string) error {
	byImage := map[string][]string{}
	for _, reference := range references {
		digits, _ := ImageOf(reference)
		byImage[digits] = append(byImage[digits], reference)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(resignsAtOnce)
	for _, some := range byImage {
		g.Go(func() error {
			for _, reference := range some {
				if err := r.one(ctx, reference); err != nil {
					return fmt.Errorf("sign %s again: %w", r.at(reference), err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// one signs the document under a tag, or of a digest, again if that is due.
func (r *resigner) one(ctx context.Context, reference string) error {
	data, _, err := r.repo.Manifest(ctx, reference)
	if registry.IsAbsent(err) {
		return nil // deleted since
	}
	if err != nil {
		return err
	}
	bundle, err := r.bundle(ctx, data)
	if err != nil || bundle == nil {
		return err // not signed: a file, or a document of a pipeline without a key
	}
	was := store.DigestOf(data)
	a, err := r.repo.Artifact(ctx, r.opts.Store, data, attest.BundleType)
	if err != nil || a.Subject == nil {
		return err
	}
	image := store.Digest(a.Subject.Digest.String())
	s, left := r.judge(bundle, image)
	own := s != nil && s.Signer().Is(r.opts.Key.Public())
	r.mu.Lock()
	r.images[image] = true
	if own || left != "" {
		r.current[was] = true
	}
	if own {
		r.said[store.DigestOf(attest.Payload(bundle))] = true
	}
	if !own {
		name := r.at(reference)
		if strings.HasPrefix(reference, "sha256:") {
			name = r.name + "@" + reference
		}
		r.all = append(r.all, Resigned{Document: name, Key: attest.SignedBy(bundle), Left: left})
	}
	r.mu.Unlock()
	if own || left != "" || r.dryRun {
		return nil
	}
	again, err := attest.SignPayload(attest.Payload(bundle), r.opts.Key)
	if err != nil {
		return err
	}
	return r.replace(ctx, reference, was, image, again, a)
}

// judge verifies a document as one about an image, and says why it is left as it is.
func (r *resigner) judge(bundle []byte, image store.Digest) (s *attest.Statement, left string) {
	s, err := r.verify(bundle)
	switch {
	case err != nil:
		return nil, err.Error()
	case !s.IsAbout(image):
		return nil, "it is about another image"
	case s.PredicateType == attest.TestResult:
		if _, err := read(s, image); err != nil {
			return nil, err.Error()
		}
	}
	return s, ""
}

// replace writes a document in place of what was there before: first it is there, then it can be found, then it is under the tag. Who is killed
// in between leaves what was there before, or both, of which the next one drops the former.
func (r *resigner) replace(ctx context.Context, reference string, was, image store.Digest, bundle []byte, a *registry.Artifact) error {
	d, err := r.opts.Store.PutBlob(bundle)
	if err != nil {
		return err
	}
	a.Blobs[0] = describe(attest.BundleType, d, int64(len(bundle)))
	text, err := a.Manifest()
	if err != nil {
		return err
	}
	how := registry.PushOptions{Store: r.opts.Store, Fetch: r.opts.Fetch}
	if _, err := registry.PushArtifact(ctx, a, r.name, "", how); err != nil {
		return err
	}
	if err := r.list(ctx, image, a); err != nil {
		return err
	}
	if !strings.HasPrefix(reference, "sha256:") {
		is, err := r.repo.Resolve(ctx, reference)
		if err != nil || is != was { // somebody has written it meanwhile, with a key of today
			return err
		}
		err = r.repo.PutManifestIf(ctx, registry.IfStill(was), text, artifactType, reference)
		if registry.IsRefused(err) {
			// Its entity tags may be something else: what is there says whether somebody has written it.
			if is, err = r.repo.Resolve(ctx, reference); err == nil && is == was {
				err = r.repo.PutManifest(ctx, text, artifactType, reference)
			}
		}
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.current[store.DigestOf(text)] = true
		r.said[store.DigestOf(attest.Payload(bundle))] = true
		r.mu.Unlock()
		return nil
	}
	r.drop(ctx, image, []store.Digest{was})
	return nil
}

// artifactType is the media type of an artifact's manifest.
const artifactType = "application/vnd.oci.image.manifest.v1+json"

// dropOld has an image find no longer what trusted keys, or such as count no more, have signed before, and no tag leads to.
func (r *resigner) dropOld(ctx context.Context, image store.Digest) error {
	list, err := r.referrers(ctx, image)
	if err != nil {
		return err
	}
	var old []store.Digest
	for _, entry := range list {
		d, err := store.ParseDigest(entry.Digest.String())
		if err != nil || !mayBeSigned(entry) || r.current[d] {
			continue
		}
		other, err := r.superseded(ctx, string(d))
		if err != nil {
			return err
		}
		old = append(old, other...)
	}
	r.drop(ctx, image, old)
	return nil
}

// superseded returns the manifest of a document that no tag leads to, where another key has signed it, or where one of today says the same: a run that
// was stopped has left it. Nothing: it stays.
func (r *resigner) superseded(ctx context.Context, reference string) ([]store.Digest, error) {
	other, err := r.signedWithOther(ctx, reference)
	if err != nil || other != nil {
		return other, err
	}
	data, _, err := r.repo.Manifest(ctx, reference)
	if err != nil {
		if registry.IsAbsent(err) {
			err = nil
		}
		return nil, err
	}
	bundle, err := r.bundle(ctx, data)
	if err != nil || bundle == nil || !r.said[store.DigestOf(attest.Payload(bundle))] {
		return nil, err
	}
	return []store.Digest{store.DigestOf(data)}, nil
}

// signedWithOther returns the manifest of a document that a known key has signed which is not the book's. Nothing: there is none such.
func (b *Book) signedWithOther(ctx context.Context, reference string) ([]store.Digest, error) {
	if b.opts.Key == nil {
		return nil, nil
	}
	data, _, err := b.repo.Manifest(ctx, reference)
	if registry.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	bundle, err := b.bundle(ctx, data)
	if err != nil || bundle == nil {
		return nil, err
	}
	s, err := b.verify(bundle)
	if errors.Is(err, attest.ErrUncounted) || err == nil && !s.Signer().Is(b.opts.Key.Public()) {
		return []store.Digest{store.DigestOf(data)}, nil
	}
	return nil, nil
}

// drop has an image find documents no longer that others stand for now.
func (b *Book) drop(ctx context.Context, image store.Digest, old []store.Digest) {
	if err := b.repo.DropReferrers(ctx, image, old); err != nil {
		progress.Warn(ctx, fmt.Sprintf("what another key had signed about %s is still found beside it: %v", image.Short(), err),
			"delete it, or cosign believes nothing about the image: "+joined(old))
	}
}

func joined(all []store.Digest) string {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = string(d)
	}
	return strings.Join(names, ", ")
}

// Standing is how the key counts that has signed a document.
type Standing string

// What there is under a tag.
const (
	Absent    Standing = ""          // nothing that is signed
	Counts    Standing = "counts"    // a trusted key has signed it
	Uncounted Standing = "uncounted" // its key is revoked, or did not count at the time
	Stranger  Standing = "stranger"  // its key is not trusted
)

// StandingOf tells of what is under a tag how its key counts, and the fingerprint that it names. Nothing else is judged.
func (b *Book) StandingOf(ctx context.Context, tag string) (Standing, string, error) {
	data, _, err := b.repo.Manifest(ctx, tag)
	if registry.IsAbsent(err) {
		return Absent, "", nil
	}
	if err != nil {
		return Absent, "", err
	}
	bundle, err := b.bundle(ctx, data)
	if err != nil || bundle == nil {
		return Absent, "", err
	}
	by := cmp.Or(attest.SignedBy(bundle), "a key that it does not name")
	_, err = b.verify(bundle)
	switch {
	case errors.Is(err, attest.ErrUncounted):
		return Uncounted, by, nil
	case errors.Is(err, attest.ErrSignature):
		return Stranger, by, nil
	}
	return Counts, by, nil
}

// WhyNone says in words why there is no verdict about a key that counts.
func (b *Book) WhyNone(ctx context.Context, k Key) (string, error) {
	tag, err := k.Tag()
	if err != nil {
		return "", err
	}
	standing, by, err := b.StandingOf(ctx, tag)
	if standing == Uncounted {
		return "its verdict is signed with a key that does not count, " + by + ": it has to run again", err
	}
	return "it has not run with this image and in its present form", err
}
