package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// anyImage is what commands say about an IMAGE that they take.
const anyImage = `IMAGE is the name of an image in the store (see ` + "`sconce images`" + `), or comes from elsewhere:

  docker://HOST/NAME[:TAG]     a registry; so does a bare NAME that is not in the store
  oci:DIR[:TAG]                a directory in the OCI image layout
  oci-archive:FILE[:TAG]       the same as a tar
  docker-archive:FILE[:TAG]    what ` + "`docker save`" + ` writes
  tar:FILE                     a root file system as a tar, compressed or not
  dir:DIR                      a root file system as a directory
  sqsh:FILE, sif:FILE          what enroot, pyxis and Apptainer run

A path without a prefix is recognised by its content.`

// sources parses a reference to an image, and returns with what to open it.
func (a *app) sources(ctx context.Context, name, platform string) (source.Ref, source.Options, error) {
	o := source.Options{Offline: a.flags.offline}
	if platform != "" {
		p, err := v1.ParsePlatform(platform)
		if err != nil || p.OS == "" || p.Architecture == "" {
			return source.Ref{}, o, fault.Usage(fmt.Errorf("--platform %q is not of the form linux/arm64", platform))
		}
		o.Platform = *p
	}
	var err error
	if o.Store, err = a.store(ctx); err != nil {
		return source.Ref{}, o, err
	}
	if o.Fetch, err = a.fetch(ctx); err != nil {
		return source.Ref{}, o, err
	}
	ref, err := source.ParseIn(name, o.Store)
	return ref, o, err
}

// importImage brings an image into the store, from wherever it is.
func (a *app) importImage(ctx context.Context, name, platform string) (*image.Image, source.Ref, error) {
	ref, o, err := a.sources(ctx, name, platform)
	if err != nil {
		return nil, ref, err
	}
	im, err := source.Import(ctx, ref, o)
	return im, ref, source.Explain(err, name, ref, o.Store)
}

// tagImage gives an image of the store a name.
func tagImage(st *store.Store, im *image.Image, name, tag string) (store.ImageRef, error) {
	size := im.Size + im.Manifest.Config.Size
	for _, l := range im.Layers {
		size += l.Size
	}
	r := store.ImageRef{
		Name: name, Tag: tag, Digest: im.Digest, Platform: im.Platform().String(), Created: time.Now().UTC(), Size: size,
	}
	return r, st.PutImage(r, im.Refs())
}

// nameFor makes the name that an image gets in the store when the user gives none: the one it has there already, that of
// the registry as it was written, or that of the file.
func nameFor(st *store.Store, written string, ref source.Ref) (name, tag string) {
	switch ref.Transport {
	case source.Store:
		if known, err := st.FindImage(ref.Value); err == nil {
			return known.Name, known.Tag
		}
		name, tag = store.SplitImageName(ref.Value)
	case source.Docker:
		name, tag = registryName(written)
	default:
		name, tag = baseName(ref.Value), ref.Tag
	}
	switch {
	case tag != "":
	case ref.Digest != "":
		tag = "sha256-" + ref.Digest.Short()
	default:
		tag = store.DefaultTag
	}
	return name, tag
}

// knownName is the name of an image that comes from the store or a registry, with its tag; what comes from elsewhere has none.
func knownName(st *store.Store, written string, ref source.Ref) string {
	if ref.Transport != source.Store && ref.Transport != source.Docker {
		return ""
	}
	name, tag := nameFor(st, written, ref)
	return name + ":" + tag
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

// isClusterFile reports whether a reference is to a squashfs or SIF file.
func isClusterFile(ref source.Ref) bool {
	return ref.Transport == source.Squashfs || ref.Transport == source.SIF
}
