package promote

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// survey is what lies in a repository.
type survey struct {
	*claims
	groups  map[string]*group       // by the first digits of the image's digest
	foreign map[store.Digest]string // what tags lead to that are not sconce's, and which tag
	old     map[string]store.Digest // claims that are over, by tag

	mu     sync.Mutex
	absent []string // tags that lead nowhere
}

// group is an image, and what is said about it.
type group struct {
	repository string
	digits     string                          // the first ones of the image's digest
	images     map[store.Digest][]store.Digest // what an index lists, all the way down
	tags       []string                        // of images that can be made again
	said       map[string]store.Digest         // tags of evidence, documents and lists
	base       string                          // …/NAME:TAG on which it stands
	created    time.Time                       // zero: not known
	claimed    string                          // the tag that it is being promoted to
	unused     *mark
	marks      map[string]store.Digest // own marks, by tag

	because string // why it stays; "" as long as nobody needs it
	waits   bool   // nobody needs it, and it stays for now
	deleted bool
}

// due reports whether it goes.
func (g *group) due() bool { return g.because == "" && !g.waits }

// asksAtOnce is how many tags a registry is asked about side by side.
const asksAtOnce = 8

// look finds out what is in a repository: one small request for each tag.
func (c *cleaner) look(ctx context.Context, cs *claims) (*survey, error) {
	tags, err := cs.repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	s := &survey{claims: cs, groups: map[string]*group{}, foreign: map[store.Digest]string{}, old: map[string]store.Digest{}}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(asksAtOnce)
	for _, tag := range tags {
		g.Go(func() error {
			if err := c.lookAt(inner, s, tag); err != nil {
				return fmt.Errorf("%s:%s: %w", cs.name, tag, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return s, s.checkAbsent(ctx)
}

// checkAbsent wants tags that led nowhere to be in the list no longer: somebody has deleted them meanwhile.
func (s *survey) checkAbsent(ctx context.Context) error {
	if len(s.absent) == 0 {
		return nil
	}
	tags, err := s.repo.Tags(ctx)
	if err != nil {
		return err
	}
	for _, tag := range s.absent {
		if slices.Contains(tags, tag) {
			return fmt.Errorf("%s lists the tag %s, and says that there is nothing under it: nobody can tell what is needed there", s.name, tag)
		}
	}
	return nil
}

// listForm are tags of what others say about an image: the list of referrers, and cosign's signatures of old.
var listForm = lazyregexp.New(`^sha256-([0-9a-f]{12})[0-9a-f]{52}(\.[a-z]+)?$`)

// claimForm are claims to any tag.
var claimForm = lazyregexp.New(`^claim\..+\.[0-9a-f]{12}\.[0-9a-f]{8}$`)

// lookAt finds out what a tag is. What is not known is somebody else's, and stays.
func (c *cleaner) lookAt(ctx context.Context, s *survey, tag string) error {
	if _, needed := c.Tags[s.name+":"+tag]; needed {
		return s.lookAtImage(ctx, tag, true)
	}
	if m := markForm.FindStringSubmatch(tag); m != nil {
		return s.lookAtMark(ctx, tag)
	}
	if claimForm.MatchString(tag) {
		return s.lookAtClaim(ctx, tag, c.opts.Now())
	}
	if _, ok := c.Canonical(s.name, tag); ok {
		return s.lookAtImage(ctx, tag, true)
	}
	if evidence.IsWithdrawal(tag) { // it outlives its image, which may be built again
		return s.lookAtImage(ctx, tag, false)
	}
	if digits, ok := evidence.ImageOf(tag); ok {
		return s.lookAtSaid(ctx, digits, tag)
	}
	if m := listForm.FindStringSubmatch(tag); m != nil {
		return s.lookAtSaid(ctx, m[1], tag)
	}
	return s.lookAtImage(ctx, tag, false)
}

// of returns the group of an image. The caller holds the lock.
func (s *survey) of(digits string) *group {
	g := s.groups[digits]
	if g == nil {
		g = &group{repository: s.name, digits: digits, images: map[store.Digest][]store.Digest{}, said: map[string]store.Digest{}, marks: map[string]store.Digest{}}
		s.groups[digits] = g
	}
	return g
}

func (s *survey) isAbsent(tag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent = append(s.absent, tag)
}

// content is what a manifest or an index says of itself.
type content struct {
	ArtifactType string            `json:"artifactType"`
	MediaType    types.MediaType   `json:"mediaType"`
	Config       *v1.Descriptor    `json:"config"`
	Manifests    []v1.Descriptor   `json:"manifests"`
	Subject      *v1.Descriptor    `json:"subject"`
	Annotations  map[string]string `json:"annotations"`
}

func (c *content) isImage() bool {
	if c.ArtifactType != "" || c.Subject != nil {
		return false
	}
	return len(c.Manifests) > 0 || c.Config != nil && (c.Config.MediaType == types.OCIConfigJSON || c.Config.MediaType == types.DockerConfigJSON)
}

// lookAtImage notes an image that can be made again, or, of any other tag, all that it leads to.
func (s *survey) lookAtImage(ctx context.Context, tag string, canonical bool) error {
	data, listed, err := s.repo.Reach(ctx, tag)
	if registry.IsAbsent(err) {
		s.isAbsent(tag)
		return nil
	}
	if err != nil {
		return err
	}
	var c content
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("its manifest is damaged: %w", err)
	}
	digest := store.DigestOf(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if canonical && c.isImage() {
		g := s.of(digest.Hex()[:digestPart])
		g.images[digest] = listed
		g.tags = append(g.tags, tag)
		return nil
	}
	for _, d := range append(listed, digest) {
		s.foreign[d] = tag
	}
	return nil
}

// Annotations of the documents about an image, by which it is found out what it needs.
const (
	NoteCreated = "org.opencontainers.image.created" // when it was first sent, in RFC 3339
	NoteBase    = "dev.sconce.base"                  // the canonical reference of the image that it is based on, of which NAME:TAG counts
)

// Created returns when an image was first sent to a repository, by the documents about it; the zero time when they do not say.
func Created(ctx context.Context, repo *registry.Repository, image store.Digest) (time.Time, error) {
	data, _, err := repo.Manifest(ctx, evidence.AttachmentTags(image)+"provenance")
	if registry.IsAbsent(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	var c content
	_ = json.Unmarshal(data, &c) // damaged, it does not say
	at, _ := time.Parse(time.RFC3339, c.Annotations[NoteCreated])
	return at, nil
}

// lookAtSaid notes what is said about an image.
func (s *survey) lookAtSaid(ctx context.Context, digits, tag string) error {
	data, _, err := s.repo.Manifest(ctx, tag)
	if registry.IsAbsent(err) {
		s.isAbsent(tag)
		return nil
	}
	if err != nil {
		return err
	}
	var c content
	_ = json.Unmarshal(data, &c) // damaged, it says nothing, and goes with its image
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.of(digits)
	g.said[tag] = store.DigestOf(data)
	if base := c.Annotations[NoteBase]; base != "" {
		g.base = base
	}
	if at, err := time.Parse(time.RFC3339, c.Annotations[NoteCreated]); err == nil && (g.created.IsZero() || at.Before(g.created)) {
		g.created = at
	}
	return nil
}

func (s *survey) lookAtMark(ctx context.Context, tag string) error {
	m, digest, err := s.readMark(ctx, tag)
	if err != nil || m == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.of(m.Image)
	g.marks[tag] = digest
	if m.Owner == "" {
		g.unused = m
	}
	return nil
}

// claimRest is how long claims that are over stay: who made them may still be at work.
const claimRest = 24 * time.Hour

func (s *survey) lookAtClaim(ctx context.Context, tag string, now time.Time) error {
	c, digest, err := s.read(ctx, tag)
	if err != nil || c == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.alive(now):
		s.of(c.Image.Hex()[:digestPart]).claimed = c.Tag
	case now.Sub(c.Since) > claimRest:
		s.old[tag] = digest
	}
	return nil
}
