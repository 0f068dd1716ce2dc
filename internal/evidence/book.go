package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// Options say how a [Book] is used.
type Options struct {
	Store *store.Store
	Fetch *fetch.Client        // of the same store
	Key   *attest.PrivateKey   // what is written is signed with it; nil: nothing can be written but unsigned attachments
	Trust []*attest.PublicKey  // whose signatures are believed, besides Key's own
	Write bool                 // ask for the right to write, also without a key
	Repo  *registry.Repository // opened already, where nothing is written; nil: it is opened
}

// Book is the evidence in one repository. Its methods may be called from many goroutines.
type Book struct {
	name  string // HOST/PATH
	repo  *registry.Repository
	opts  Options
	trust []*attest.PublicKey
}

// Open returns the book in a repository, HOST/PATH: the one that holds the images. Nothing is sent yet.
func Open(repository string, o Options) (*Book, error) {
	repo, err := o.Repo, error(nil)
	if repo == nil {
		repo, err = registry.OpenForWriting(repository, registry.Options{Fetch: o.Fetch, Push: o.Write || o.Key != nil})
	}
	if err != nil {
		return nil, err
	}
	b := &Book{name: repository, repo: repo, opts: o, trust: o.Trust}
	if o.Key != nil {
		b.trust = slices.Concat(o.Trust, o.Key.Trust())
	}
	return b, nil
}

// Repository is the repository of the images and the evidence.
func (b *Book) Repository() *registry.Repository { return b.repo }

// Get returns the verdict about a key, or nil when there is none. What is not signed, or about something else, is an error.
func (b *Book) Get(ctx context.Context, k Key) (*Evidence, error) {
	tag, err := k.Tag()
	if err != nil {
		return nil, err
	}
	e, err := b.read(ctx, tag, k.Image)
	if err != nil || e == nil {
		return nil, err
	}
	if e.Key != k {
		return nil, &MovedError{b.at(tag), fmt.Sprintf("it is about test %s on %s", e.Test, e.Cluster)}
	}
	return e, nil
}

// Says returns the verdict about a key as its artifact has it for people, whoever has written it: nothing is to be decided by it. "": there
// is none, or it says nothing.
func (b *Book) Says(ctx context.Context, k Key) (Result, error) {
	tag, err := k.Tag()
	if err != nil {
		return "", err
	}
	data, _, err := b.repo.Manifest(ctx, tag)
	if err != nil {
		if registry.IsAbsent(err) {
			err = nil
		}
		return "", err
	}
	var m struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(data, &m) != nil {
		return "", nil //nolint:nilerr // some other manifest
	}
	return Result(m.Annotations[resultNote]), nil
}

// resultNote is the annotation of a verdict's artifact that says what came of the test.
const resultNote = "dev.sconce.result"

// List returns all verdicts about an image, by tag.
func (b *Book) List(ctx context.Context, image store.Digest) ([]*Evidence, error) {
	tags, err := b.repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(tags)
	var list []*Evidence
	for _, tag := range tags {
		if !isTestTag(tag, image) {
			continue
		}
		e, err := b.read(ctx, tag, image)
		if err != nil {
			return nil, err
		}
		if e == nil { // deleted since
			continue
		}
		if own, err := e.Tag(); err != nil || own != tag {
			return nil, &MovedError{b.at(tag), fmt.Sprintf("it is about test %s on %s", e.Test, e.Cluster)}
		}
		list = append(list, e)
	}
	return list, nil
}

// Referred returns the verdicts among what refers to an image, where it was copied to without its tags: of several about the same key
// the newest. What is signed by others, or not at all, is theirs: others is how many verdicts are.
func (b *Book) Referred(ctx context.Context, image store.Digest) (known []*Evidence, others int, err error) {
	list, err := b.referrers(ctx, image)
	if err != nil {
		return nil, 0, err
	}
	newest := map[Key]*Evidence{}
	for _, r := range list {
		if kind := r.Annotations[predicateNote]; kind != "" && kind != attest.TestResult {
			continue
		}
		e, err := b.referred(ctx, r.Digest.String(), image)
		if err != nil {
			return nil, 0, err
		}
		if e == nil {
			if r.Annotations[predicateNote] == attest.TestResult {
				others++
			}
			continue
		}
		old := newest[e.Key]
		if old == nil || e.Finished.After(old.Finished) || (e.Finished.Equal(old.Finished) && !e.Result.Good()) {
			newest[e.Key] = e
		}
	}
	return slices.SortedFunc(maps.Values(newest), func(a, b *Evidence) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Test, b.Test))
	}), others, nil
}

// maxReferred bounds how much of what refers to an image is read.
const maxReferred = 1000

// referrers lists what refers to an image. A list of which only some would be read is an error: whoever may write could fill it with what hides the rest.
func (b *Book) referrers(ctx context.Context, image store.Digest) ([]registry.Referrer, error) {
	list, err := b.repo.Referrers(ctx, image)
	if err == nil && len(list) > maxReferred {
		err = fmt.Errorf("%d documents refer to %s@%s, and no more than %d are read", len(list), b.name, image, maxReferred)
		err = fault.Hint(err, "find out who has written them, and delete those that are not yours")
	}
	return list, err
}

// referred reads a verdict by its manifest's digest. nil: it is something else, or of somebody else.
func (b *Book) referred(ctx context.Context, digest string, image store.Digest) (*Evidence, error) {
	if _, err := store.ParseDigest(digest); err != nil {
		return nil, nil //nolint:nilerr // of another algorithm: not of sconce
	}
	s, manifest, err := b.statement(ctx, digest)
	var other *MovedError
	switch {
	case errors.As(err, &other):
		return nil, nil
	case err != nil || s == nil:
		return nil, err
	}
	e, err := read(s, image)
	if err != nil {
		return nil, nil //nolint:nilerr // a statement of another kind
	}
	e.Manifest = manifest
	return e, nil
}

func (b *Book) at(tag string) string { return b.name + ":" + tag }

// read reads what is under a tag as a verdict about image. nil: there is nothing.
func (b *Book) read(ctx context.Context, tag string, image store.Digest) (*Evidence, error) {
	s, manifest, err := b.statement(ctx, tag)
	if err != nil || s == nil {
		return nil, err
	}
	e, err := read(s, image)
	if err != nil {
		return nil, &MovedError{b.at(tag), err.Error()}
	}
	e.Manifest = manifest
	return e, nil
}

// statement reads the signed statement under a tag. nil: there is nothing, or nothing that counts.
func (b *Book) statement(ctx context.Context, tag string) (*attest.Statement, store.Digest, error) {
	data, _, err := b.repo.Manifest(ctx, tag)
	if registry.IsAbsent(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	bundle, err := b.bundle(ctx, data)
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", b.at(tag), err)
	}
	if bundle == nil {
		return nil, "", &MovedError{b.at(tag), "it holds no signed statement"}
	}
	s, err := b.verify(bundle)
	switch {
	case errors.Is(err, attest.ErrUncounted):
		return nil, "", nil
	case errors.Is(err, attest.ErrSignature):
		return nil, "", &StrangerError{b.at(tag), attest.SignedBy(bundle)}
	case err != nil:
		return nil, "", &MovedError{b.at(tag), err.Error()}
	}
	return s, store.DigestOf(data), nil
}

// bundle brings the bundle of an artifact, or nil when it is something else.
func (b *Book) bundle(ctx context.Context, manifest []byte) ([]byte, error) {
	a, err := b.repo.Artifact(ctx, b.opts.Store, manifest, attest.BundleType)
	if err != nil || len(a.Blobs) == 0 || a.Blobs[0].MediaType != attest.BundleType || a.Blobs[0].Size > attest.MaxBundle {
		return nil, nil //nolint:nilerr // what is no artifact of this type is something else, whatever it is
	}
	d := store.Digest(a.Blobs[0].Digest.String())
	if !b.opts.Store.HasBlob(d) {
		if err := b.repo.Blob(ctx, d, a.Blobs[0].Size, "evidence"); err != nil {
			return nil, err
		}
	}
	return b.opts.Store.ReadBlob(d, attest.MaxBundle)
}

// MaxLog is how much of a test's log is kept, in bytes.
const MaxLog = 64 << 20

// The types of a log and of what holds it.
const (
	logType     = "text/plain"
	logArtifact = "application/vnd.sconce.test.log.v1"
)

// Put keeps a verdict, and log, nil for none, with it. The newest verdict about a key counts; but what is under its tag now must be
// one about the same key that is signed, or nothing is written. It is read back and checked.
func (b *Book) Put(ctx context.Context, e Evidence, log io.Reader) error {
	tag, err := e.Tag()
	if err != nil {
		return err
	}
	if b.opts.Key == nil {
		return fault.Usage(errors.New("evidence is signed, and there is no key"))
	}
	before, err := b.Get(ctx, e.Key)
	if err != nil {
		return err
	}
	e.countFailures(before)
	if err := b.keepLog(ctx, &e, log); err != nil {
		return err
	}
	p, err := e.predicate()
	if err != nil {
		return err
	}
	s, err := attest.New(e.Image, b.name, attest.TestResult, p)
	if err != nil {
		return err
	}
	note := map[string]string{"dev.sconce.test": e.Name, "dev.sconce.cluster": e.Cluster, resultNote: string(e.Result)}
	if err := b.write(ctx, tag, s, note); err != nil {
		return err
	}
	got, err := b.Get(ctx, e.Key)
	if err == nil && got == nil {
		err = fmt.Errorf("%s was written and is not there", b.at(tag))
	}
	return err
}

// keepLog sends a log, before the verdict that names it.
func (b *Book) keepLog(ctx context.Context, e *Evidence, log io.Reader) error {
	e.log = logEntry{}
	if log == nil {
		return nil
	}
	w, err := b.opts.Store.NewBlob()
	if err != nil {
		return err
	}
	defer w.Close()
	n, err := io.Copy(w, io.LimitReader(log, MaxLog))
	if err != nil || n == 0 {
		return err
	}
	d, err := w.Commit("")
	if err != nil {
		return err
	}
	tag, err := e.logTag()
	if err != nil {
		return err
	}
	e.log = logEntry{string(d), n}
	return b.send(ctx, e.Image, tag, &registry.Artifact{Type: logArtifact, Blobs: []v1.Descriptor{describe(logType, d, n)}})
}

func describe(mediaType string, d store.Digest, size int64) v1.Descriptor {
	return v1.Descriptor{MediaType: types.MediaType(mediaType), Digest: v1.Hash{Algorithm: "sha256", Hex: d.Hex()}, Size: size}
}

// OpenFile brings a file of the repository that something signed names, which is called what while it comes, and opens it.
func (b *Book) OpenFile(ctx context.Context, d store.Digest, size int64, what string) (*os.File, error) {
	if !b.opts.Store.HasBlob(d) {
		if err := b.repo.Blob(ctx, d, size, what); err != nil {
			return nil, err
		}
	}
	return b.opts.Store.OpenBlob(d)
}

// AttachFile keeps a file of the store beside an image, which a document about the image then names by its digest: the file itself is
// not signed. There is one of each kind.
func (b *Book) AttachFile(ctx context.Context, image store.Digest, kind, mediaType string, d store.Digest) error {
	size, err := b.opts.Store.BlobSize(d)
	if err != nil {
		return err
	}
	return b.send(ctx, image, AttachmentTags(image)+kind, &registry.Artifact{Type: mediaType, Blobs: []v1.Descriptor{describe(mediaType, d, size)}})
}

// kindLetters are what the kind of an attachment is made of.
const kindLetters = "abcdefghijklmnopqrstuvwxyz0123456789-"

// Attach keeps a document about an image, of which there is one of each kind: "provenance", "sbom". The same document is not written
// twice. Without a key it is kept unsigned, for people and scanners; nothing here believes it.
//
// notes are annotations of the artifact, which are not signed, and not written again with the same document: they help to find things.
func (b *Book) Attach(ctx context.Context, image store.Digest, kind, predicateType string, document any, notes map[string]string) error {
	if kind == "" || strings.Trim(kind, kindLetters) != "" {
		return fmt.Errorf("%q cannot be a kind of attachment", kind)
	}
	tag := AttachmentTags(image) + kind
	s, err := attest.New(image, b.name, predicateType, document)
	if err != nil {
		return err
	}
	if b.opts.Key == nil {
		return b.attachUnsigned(ctx, image, tag, s, notes)
	}
	there, _, err := b.statement(ctx, tag)
	if err != nil && !b.isUnsigned(ctx, tag) {
		return err
	}
	if there != nil && !there.IsAbout(image) {
		return &MovedError{b.at(tag), "it is about another image"}
	}
	if there != nil && there.PredicateType == predicateType && string(there.Predicate) == string(s.Predicate) {
		return nil
	}
	return b.write(ctx, tag, s, notes)
}

// Attachment returns the signed document of a kind about an image, or nil when there is none.
func (b *Book) Attachment(ctx context.Context, image store.Digest, kind string) (*attest.Statement, error) {
	tag := AttachmentTags(image) + kind
	s, _, err := b.statement(ctx, tag)
	if err == nil && s != nil && !s.IsAbout(image) {
		err = &MovedError{b.at(tag), "it is about another image"}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Find returns the signed document of a kind and type about an image, also where it was copied to without its tags, or nil when there is
// none: of several that say their time the newest.
func (b *Book) Find(ctx context.Context, image store.Digest, kind, predicateType string) (*attest.Statement, error) {
	s, err := b.Attachment(ctx, image, kind)
	if err != nil || s != nil {
		return s, err
	}
	return b.Referring(ctx, image, predicateType)
}

// Referring is Find for what refers to an image alone, whatever its tags lead to.
func (b *Book) Referring(ctx context.Context, image store.Digest, predicateType string) (s *attest.Statement, err error) {
	list, err := b.referrers(ctx, image)
	if err != nil {
		return nil, err
	}
	var newest time.Time
	for _, r := range list {
		if r.Annotations[predicateNote] != predicateType {
			continue
		}
		one, _, err := b.statement(ctx, r.Digest.String())
		var other *MovedError
		if err != nil && !errors.As(err, &other) {
			return nil, err
		}
		if err != nil || one == nil || !one.IsAbout(image) || one.PredicateType != predicateType {
			continue
		}
		if at, _ := signedAt(one); s == nil || at.After(newest) {
			s, newest = one, at
		}
	}
	return s, nil
}

// Peek returns the document of a kind about an image whoever has written it, signed or not: nothing is to be decided by it. nil: there is
// none, or it is about something else.
func (b *Book) Peek(ctx context.Context, image store.Digest, kind string) (json.RawMessage, error) {
	tag := AttachmentTags(image) + kind
	data, _, err := b.repo.Manifest(ctx, tag)
	if err != nil {
		if registry.IsAbsent(err) {
			err = nil
		}
		return nil, err
	}
	var text []byte
	if document, unsigned := unsignedDocument(data); unsigned {
		text, err = b.document(ctx, document)
	} else if text, err = b.bundle(ctx, data); err == nil && text != nil {
		text = attest.Payload(text)
	}
	var s attest.Statement
	if err != nil || json.Unmarshal(text, &s) != nil || !s.IsAbout(image) {
		return nil, err
	}
	return s.Predicate, nil
}

// PeekReferred is Peek for a document that was copied to without its tag, of a type.
func (b *Book) PeekReferred(ctx context.Context, image store.Digest, predicateType string) (json.RawMessage, error) {
	list, err := b.referrers(ctx, image)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if _, err := store.ParseDigest(r.Digest.String()); err != nil || r.Annotations[predicateNote] != predicateType {
			continue
		}
		data, _, err := b.repo.Manifest(ctx, r.Digest.String())
		if registry.IsAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		bundle, err := b.bundle(ctx, data)
		if err != nil {
			return nil, err
		}
		var s attest.Statement
		if json.Unmarshal(attest.Payload(bundle), &s) == nil && s.IsAbout(image) && s.PredicateType == predicateType {
			return s.Predicate, nil
		}
	}
	return nil, nil
}

// document brings a document that stands for itself.
func (b *Book) document(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	digest, err := store.ParseDigest(d.Digest.String())
	if err != nil || d.Size <= 0 || d.Size > attest.MaxBundle {
		return nil, errors.New("the document about it is damaged")
	}
	if !b.opts.Store.HasBlob(digest) {
		if err := b.repo.Blob(ctx, digest, d.Size, "document"); err != nil {
			return nil, err
		}
	}
	return b.opts.Store.ReadBlob(digest, attest.MaxBundle)
}

// unsignedType is the artifact type of a statement without a signature.
const unsignedType = "application/vnd.in-toto+json"

// isUnsigned reports whether a tag leads to a statement without a signature, which a signed one may replace.
func (b *Book) isUnsigned(ctx context.Context, tag string) bool {
	_, unsigned := b.unsigned(ctx, tag)
	return unsigned
}

// unsigned returns the digest of the statement without a signature that a tag leads to.
func (b *Book) unsigned(ctx context.Context, tag string) (document string, found bool) {
	data, _, err := b.repo.Manifest(ctx, tag)
	if err != nil {
		return "", false
	}
	d, found := unsignedDocument(data)
	return d.Digest.String(), found
}

// unsignedDocument is the document of an artifact that is a statement without a signature.
func unsignedDocument(manifest []byte) (d v1.Descriptor, found bool) {
	var m struct {
		ArtifactType string          `json:"artifactType"`
		Layers       []v1.Descriptor `json:"layers"`
	}
	if json.Unmarshal(manifest, &m) != nil || m.ArtifactType != unsignedType || len(m.Layers) != 1 {
		return d, false
	}
	return m.Layers[0], true
}

func (b *Book) attachUnsigned(ctx context.Context, image store.Digest, tag string, s *attest.Statement, notes map[string]string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	there, err := b.repo.Resolve(ctx, tag)
	if err != nil {
		return err
	}
	if there != "" {
		document, found := b.unsigned(ctx, tag)
		if !found || document == string(store.DigestOf(data)) {
			return nil // a signed one is better, and the same one is there
		}
	}
	all := map[string]string{predicateNote: s.PredicateType}
	maps.Copy(all, notes)
	return b.sendDocument(ctx, image, tag, data, &registry.Artifact{Type: unsignedType, Annotations: all})
}

// write signs a statement about an image and sends it. What another key has signed under the tag is then no longer found by the image: cosign
// believes nothing about an image beside which there is something of another key.
func (b *Book) write(ctx context.Context, tag string, s *attest.Statement, note map[string]string) error {
	data, err := attest.Sign(s, b.opts.Key)
	if err != nil {
		return err
	}
	before, err := b.signedWithOther(ctx, tag)
	if err != nil {
		return err
	}
	image := store.Digest("sha256:" + s.Subject[0].Digest["sha256"])
	notes := map[string]string{contentNote: "dsse-envelope", predicateNote: s.PredicateType}
	maps.Copy(notes, note)
	if err := b.sendDocument(ctx, image, tag, data, &registry.Artifact{Type: attest.BundleType, Annotations: notes}); err != nil {
		return err
	}
	b.drop(ctx, image, before)
	return nil
}

// The annotations by which cosign tells bundles apart without opening them.
const (
	contentNote   = "dev.sigstore.bundle.content"
	predicateNote = "dev.sigstore.bundle.predicateType"
)

// sendDocument sends an artifact of a single blob: cosign passes over bundles that have company.
func (b *Book) sendDocument(ctx context.Context, image store.Digest, tag string, data []byte, a *registry.Artifact) error {
	d, err := b.opts.Store.PutBlob(data)
	if err != nil {
		return err
	}
	a.Blobs = []v1.Descriptor{describe(a.Type, d, int64(len(data)))}
	return b.send(ctx, image, tag, a)
}

// emptyConfig is the configuration of an artifact without one (image-spec, manifest.md, "Guidance for an Empty Descriptor").
const emptyConfig = "application/vnd.oci.empty.v1+json"

// send sends an artifact about an image, and has it found by the image.
func (b *Book) send(ctx context.Context, image store.Digest, tag string, a *registry.Artifact) error {
	subject, mediaType, err := b.repo.Manifest(ctx, string(image))
	if err != nil {
		return fmt.Errorf("evidence is kept beside its image: %w", err)
	}
	about := describe(mediaType, image, int64(len(subject)))
	a.ConfigType, a.Config, a.Subject = emptyConfig, []byte("{}"), &about
	if _, err := registry.PushArtifact(ctx, a, b.name, tag, registry.PushOptions{Store: b.opts.Store, Fetch: b.opts.Fetch}); err != nil {
		return err
	}
	if err := b.list(ctx, image, a); err != nil {
		// The tag is there, and that is what counts: the list is for other programs, which may not find this one entry.
		progress.Warn(ctx, err.Error(), "`sconce` finds it all the same; other programs may not")
	}
	return nil
}

// list has an artifact that was sent be found by its image.
func (b *Book) list(ctx context.Context, image store.Digest, a *registry.Artifact) error {
	text, err := a.Manifest()
	if err != nil {
		return err
	}
	entry := registry.Referrer{
		MediaType: types.OCIManifestSchema1, Digest: v1.Hash{Algorithm: "sha256", Hex: store.DigestOf(text).Hex()}, Size: int64(len(text)),
		ArtifactType: a.Type, Annotations: a.Annotations,
	}
	return b.repo.AddReferrer(ctx, image, entry)
}
