package engine

import (
	"path/filepath"
	"strings"
	"time"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// Name gives an image of the store a name, "NAME:TAG", unless it has it: what has nothing to do writes nothing.
func (s *Session) Name(im *image.Image, name string) (store.ImageRef, error) {
	size := storedSize(im)
	if old, err := s.Store.FindImage(name); err == nil && old.FullName() == name && old.Digest == im.Digest && old.Size == size {
		return old, nil
	}
	r := store.ImageRef{Digest: im.Digest, Platform: im.Platform().String(), Created: time.Now().UTC(), Size: size}
	r.Name, r.Tag = store.SplitImageName(name)
	return r, s.Store.PutImage(r, im.Refs())
}

// storedSize is how many bytes an image takes: its layers as they are stored, the configuration and the manifest.
func storedSize(im *image.Image) int64 {
	size := im.Size + im.Manifest.Config.Size
	for _, l := range im.Layers {
		size += l.Size
	}
	return size
}

// OwnName is the name that the image gets in the store when the user gives none, "NAME:TAG": the one it has there already, that
// of the registry as it was written, or that of the file.
func (s *Subject) OwnName() string {
	name, tag := s.ownName()
	return name + ":" + tag
}

func (s *Subject) ownName() (name, tag string) {
	switch s.Ref.Transport {
	case source.Store:
		if known, err := s.session.Store.FindImage(s.Ref.Value); err == nil {
			return known.Name, known.Tag
		}
		name, tag = store.SplitImageName(s.Ref.Value)
	case source.Docker:
		name, tag = registryName(s.Name)
	default:
		name, tag = baseName(s.Ref.Value), s.Ref.Tag
	}
	switch {
	case tag != "":
	case s.Ref.Digest != "":
		tag = "sha256-" + s.Ref.Digest.Short()
	default:
		tag = store.DefaultTag
	}
	return name, tag
}

// knownName is the name of an image that comes from the store or a registry, with its tag; what comes from elsewhere has none.
func (s *Subject) knownName() string {
	if s.Ref.Transport != source.Store && s.Ref.Transport != source.Docker {
		return ""
	}
	return s.OwnName()
}

// registryName returns the name and tag of a reference to a registry as the user wrote it: without docker://,
// enroot's USER@, and a digest; enroot's REGISTRY#NAME becomes REGISTRY/NAME.
func registryName(written string) (name, tag string) {
	written = strings.TrimPrefix(written, dockerPrefix)
	if user, rest, ok := strings.Cut(written, "@"); ok && !strings.HasPrefix(rest, "sha256:") && !strings.Contains(user, "/") {
		written = rest
	}
	written, _, _ = strings.Cut(written, "@")
	return store.SplitImageName(strings.ReplaceAll(written, "#", "/"))
}

// baseName returns a file's name without what says how it is packed.
func baseName(path string) string {
	if abs, err := filepath.Abs(path); err == nil { // "." has a name, too
		path = abs
	}
	name := filepath.Base(path)
	for _, ext := range []string{".gz", ".zst", ".xz", ".tar", ".tgz", ".oci", ".sqsh", ".squashfs", ".sqfs", ".sif"} {
		name = strings.TrimSuffix(name, ext)
	}
	return name
}
