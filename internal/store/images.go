package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// DefaultTag is the tag of an image whose name was given without one.
const DefaultTag = "latest"

// ImageRef is an image of the store, under one of its names.
type ImageRef struct {
	Name     string    `json:"name"`
	Tag      string    `json:"tag"`
	Digest   Digest    `json:"digest"`             // of the manifest
	Platform string    `json:"platform,omitempty"` // "linux/amd64"
	Created  time.Time `json:"created"`            // when the name was given
	Size     int64     `json:"size"`               // of the manifest, config and layers as stored, in bytes
}

// FullName returns the name with the tag: "llm-train:25.11".
func (r ImageRef) FullName() string { return r.Name + ":" + r.Tag }

var (
	imageNameForm = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,200}$`)
	imageTagForm  = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

// isNamed reports whether the name and the tag have their form. Records of a shared store may have been written by anything.
func (r ImageRef) isNamed() bool {
	return imageNameForm.MatchString(r.Name) && imageTagForm.MatchString(r.Tag)
}

// SplitImageName cuts "NAME:TAG" in two. The tag is empty when there is none; a port is not a tag.
func SplitImageName(s string) (name, tag string) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i == len(s)-1 || strings.Contains(s[i:], "/") {
		return s, ""
	}
	return s[:i], s[i+1:]
}

// ShortName is the short form of an image's name, by docker's rules: "docker.io/library/debian" and "library/debian" are "debian",
// "docker.io/me/app" is "me/app". What podman calls "localhost/app" is "app".
func ShortName(name string) string {
	for _, registry := range []string{"docker.io/", "index.docker.io/", "registry-1.docker.io/", "localhost/"} {
		if short, ok := strings.CutPrefix(name, registry); ok && short != "" {
			name = short
			break
		}
	}
	if short, ok := strings.CutPrefix(name, "library/"); ok && short != "" && !strings.Contains(short, "/") {
		name = short
	}
	return name
}

// ParseImageName reads the NAME[:TAG] that a user gives to an image: without a tag, it is "latest". The name is a short one.
func ParseImageName(s string) (name, tag string, err error) {
	name, tag = SplitImageName(s)
	name, tag = ShortName(name), cmp.Or(tag, DefaultTag)
	if r := (ImageRef{Name: name, Tag: tag}); strings.HasSuffix(name, ":") || !r.isNamed() {
		return "", "", fault.Usage(fault.Hint(fmt.Errorf("%q cannot be an image's name", s), "write NAME or NAME:TAG, in letters, digits, dots, underscores and dashes"))
	}
	return name, tag, nil
}

func (r ImageRef) key() string {
	return DigestOf([]byte(r.FullName())).Hex()
}

// PutImage gives an image its name, taking the name from whatever had it. refs are the manifest, the config and the
// layers.
func (s *Store) PutImage(r ImageRef, refs []Digest) error {
	if !r.isNamed() {
		return fmt.Errorf("%q cannot be an image's name and tag: letters, digits and ._- only", r.FullName())
	}
	if !slices.Contains(refs, r.Digest) {
		return fmt.Errorf("name image %s: its manifest %s is not among what the name keeps", r.FullName(), r.Digest)
	}
	return s.PutRecord(KindImage, r.key(), refs, r)
}

// DeleteImage takes the name away. What it stood on stays until a prune. A name that only a shared store gives cannot be taken away
// here.
func (s *Store) DeleteImage(r ImageRef) error {
	for _, at := range s.all() {
		own, err := at.readImage(at, r.key())
		if err != nil {
			return err
		}
		if own.Name == "" {
			continue
		}
		if at != s {
			return fault.Hint(fmt.Errorf("%s is in the shared store %s, which is only read", r.FullName(), at.Dir()), "whoever keeps that store can remove it there")
		}
		break
	}
	return s.DeleteRecord(KindImage, r.key())
}

// Images lists the images of this store and the shared ones, by name and tag. One whose blobs are gone is not listed.
func (s *Store) Images() ([]ImageRef, error) {
	var found []ImageRef
	seen := map[string]bool{}
	for _, at := range s.all() {
		keys, err := at.Keys(KindImage)
		if err != nil {
			return nil, fmt.Errorf("list images: %w", err)
		}
		for _, key := range keys {
			r, err := s.readImage(at, key)
			if err != nil {
				return nil, fmt.Errorf("list images: %w", err)
			}
			if r.Digest != "" && !seen[key] {
				seen[key] = true
				found = append(found, r)
			}
		}
	}
	slices.SortFunc(found, func(a, b ImageRef) int { return strings.Compare(a.FullName(), b.FullName()) })
	return found, nil
}

// readImage reads an image record of one store; the zero ImageRef when it is damaged or its blobs are gone. Listing is
// not use, so the record's time stays.
func (s *Store) readImage(at *Store, key string) (ImageRef, error) {
	path, err := at.recordPath(KindImage, key)
	if err != nil {
		return ImageRef{}, nil //nolint:nilerr // a stray file
	}
	env, err := readEnvelope(path)
	switch {
	case errors.Is(err, errDamaged) || errors.Is(err, fs.ErrNotExist):
		return ImageRef{}, nil
	case err != nil:
		return ImageRef{}, err
	}
	r, err := env.image()
	if err != nil || !s.hasAll(env.Refs) {
		return ImageRef{}, nil //nolint:nilerr // damaged
	}
	return r, nil
}

// digestPrefixForm is what is taken for the beginning of a digest: six digits or more, to be told from a name.
var digestPrefixForm = lazyregexp.New(`^(sha256:)?[0-9a-f]{6,64}$`)

// FindImage finds an image by NAME:TAG, by NAME alone when it has the tag "latest" or only one tag, or by the beginning
// of its digest. NAME may be the long form of a name ([ShortName]) or the short one, and goes before its other form. The error wraps
// fs.ErrNotExist when there is none.
func (s *Store) FindImage(name string) (ImageRef, error) {
	all, err := s.Images()
	if err != nil {
		return ImageRef{}, err
	}
	wantName, wantTag := SplitImageName(name)
	found := byName(all, wantTag, func(n string) bool { return n == wantName })
	if len(found) == 0 {
		short := ShortName(wantName)
		found = byName(all, wantTag, func(n string) bool { return ShortName(n) == short })
	}
	if len(found) == 0 {
		found = byDigest(all, name)
	}
	return onlyOne(name, found)
}

// byName returns the images of a name that have the tag. Without one it is the latest, or else all there are.
func byName(all []ImageRef, tag string, named func(string) bool) []ImageRef {
	var found []ImageRef
	for _, r := range all {
		if !named(r.Name) {
			continue
		}
		if r.Tag == cmp.Or(tag, DefaultTag) {
			return []ImageRef{r}
		}
		if tag == "" {
			found = append(found, r)
		}
	}
	return found
}

// SimilarImages returns the images that somebody may have meant who asked for an image that is not there: those of the name with
// other tags, else those of the nearest name.
func (s *Store) SimilarImages(name string) ([]ImageRef, error) {
	all, err := s.Images()
	if err != nil {
		return nil, err
	}
	wanted, _ := SplitImageName(name)
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.Name
	}
	near := spelling.Nearest(wanted, names)
	if slices.Contains(names, wanted) {
		near = wanted
	}
	return slices.DeleteFunc(all, func(r ImageRef) bool { return r.Name != near }), nil
}

// byDigest returns one image for each digest that begins with prefix.
func byDigest(all []ImageRef, prefix string) []ImageRef {
	if !digestPrefixForm.MatchString(prefix) {
		return nil
	}
	prefix = digestPrefix + strings.TrimPrefix(prefix, digestPrefix)
	var found []ImageRef
	for _, r := range all {
		same := func(o ImageRef) bool { return o.Digest == r.Digest }
		if strings.HasPrefix(string(r.Digest), prefix) && !slices.ContainsFunc(found, same) {
			found = append(found, r)
		}
	}
	return found
}

func onlyOne(name string, found []ImageRef) (ImageRef, error) {
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return ImageRef{}, fault.Hint(noImageError(name), "`sconce images` lists what there is")
	}
	names := make([]string, len(found))
	for i, r := range found {
		names[i] = r.FullName()
	}
	return ImageRef{}, fault.Usage(fmt.Errorf("%q could be %s", name, strings.Join(names, " or ")))
}

// noImageError is the name that no image of the store has. It is a fs.ErrNotExist.
type noImageError string

func (e noImageError) Error() string        { return fmt.Sprintf("no image %q in the store", string(e)) }
func (e noImageError) Is(target error) bool { return target == fs.ErrNotExist }

// image decodes an image record.
func (e envelope) image() (ImageRef, error) {
	var r ImageRef
	if err := e.decode(&r); err != nil {
		return r, err
	}
	if !r.isNamed() || r.Digest.valid() != nil {
		return r, errDamaged
	}
	return r, nil
}
