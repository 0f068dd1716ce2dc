package engine

import (
	"context"
	"errors"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// Subject is an image that somebody has named, wherever it is. It is opened no further than a question needs: its manifest, its
// outline, of which layers come when something in them is wanted that the store does not know, or all of it.
type Subject struct {
	Name string // as it was written
	Ref  source.Ref

	session *Session
	how     source.Options
	orOther bool
	trusted *trusted            // whose facts about it are believed; nil: nobody's
	outline *image.Outline      // once it is read
	file    *source.ClusterFile // once it is open
}

// NotInStoreError is the error of [Session.Open] for a name that the store has not, where it was meant for the store.
type NotInStoreError = source.NotInStoreError

// Wanted says which one is meant where there are several.
type Wanted struct {
	Platform v1.Platform // zero: this machine's where there is a choice
	OrOther  bool        // one for another platform will do when there is none for this, and whoever asked says so
	ToRun    bool        // what is in it will run: a name alone is one of the store's, and leads to no registry
}

// Open finds out what a name means: an image of the store, a file or directory, or an image in a registry. Nothing is read yet.
// The caller closes the subject.
func (s *Session) Open(name string, w Wanted) (*Subject, error) {
	parse := source.ParseIn
	if w.ToRun {
		parse = source.ParseToRun
	}
	ref, err := parse(name, s.Store)
	if err != nil {
		return nil, s.unbuilt(name, err)
	}
	how := source.Options{Store: s.Store, Fetch: s.Fetch, Offline: s.Offline, Platform: w.Platform}
	return &Subject{Name: name, Ref: ref, session: s, how: how, orOther: w.OrOther}, nil
}

// Close closes the files that are open.
func (s *Subject) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// IsClusterFile reports whether it is a squashfs or SIF file, which has no layers and is read where it is.
func (s *Subject) IsClusterFile() bool {
	return s.Ref.Transport == source.Squashfs || s.Ref.Transport == source.SIF
}

// ClusterFile opens the squashfs or SIF file that it is. Close closes it.
func (s *Subject) ClusterFile() (*source.ClusterFile, error) {
	var err error
	if s.file == nil {
		s.file, err = source.OpenClusterFile(s.Ref.Value)
	}
	return s.file, err
}

// Digest is what a squashfs or SIF file that sconce wrote says of the image that it was made from; "" where nothing does.
func (s *Subject) Digest() store.Digest {
	c, err := s.ClusterFile()
	if err != nil {
		return ""
	}
	digest, err := clusterfile.Digest(c.FS)
	if err != nil {
		return ""
	}
	return digest
}

// View opens the image as far as its manifest. Nothing is kept.
func (s *Subject) View(ctx context.Context) (v1.Image, error) { return open(ctx, s, source.Open) }

// Outline brings the manifest and the configuration into the store.
func (s *Subject) Outline(ctx context.Context) (*image.Outline, error) {
	var err error
	if s.outline == nil {
		s.outline, err = open(ctx, s, source.Outline)
	}
	return s.outline, err
}

// Import brings the whole image into the store.
func (s *Subject) Import(ctx context.Context) (*image.Image, error) {
	return open(ctx, s, source.Import)
}

// Arrive is Import for a caller who uses the upper layers while the lower ones come, and closes what it returns.
func (s *Subject) Arrive(ctx context.Context) (*image.Arrival, error) {
	return open(ctx, s, source.Arrive)
}

// open opens an image, and when there is none for the platform wanted, perhaps what there is. An error says what the name may
// have been meant for.
func open[T any](ctx context.Context, s *Subject, opener func(context.Context, source.Ref, source.Options) (T, error)) (T, error) {
	opened, err := opener(ctx, s.Ref, s.how)
	if wrong := (*source.PlatformError)(nil); s.orOther && errors.As(err, &wrong) {
		other := s.how
		other.Platform.OS, other.Platform.Architecture = "", ""
		opened, err = opener(ctx, s.Ref, other)
	}
	if err = source.Explain(err, s.Name, s.Ref, s.session.Store); err != nil && s.mayBeOfRegistry() {
		err = s.session.unbuilt(s.Name, err)
	}
	return opened, err
}

// Files are the files of the image, to look for code in.
func (s *Subject) Files(ctx context.Context) (facts.Files, error) {
	if s.IsClusterFile() {
		c, err := s.ClusterFile()
		if err != nil {
			return nil, err
		}
		return facts.ClusterFile(c, s.session.Store)
	}
	outline, err := s.Outline(ctx)
	if err != nil {
		return nil, err
	}
	return facts.Outlined(outline, s.session.Store), nil
}

// Facts gathers what is to be known of the image before any target is. The caller closes them before the subject.
func (s *Subject) Facts(ctx context.Context) (*facts.Facts, error) {
	if s.IsClusterFile() {
		c, err := s.ClusterFile()
		if err != nil {
			return nil, err
		}
		return facts.OfClusterFile(ctx, s.session.Store, c, s.Name)
	}
	outline, err := s.Outline(ctx)
	if err != nil {
		return nil, err
	}
	return facts.OfOutline(ctx, s.session.Store, outline, s.Name)
}
