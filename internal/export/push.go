package export

import (
	"context"
	"fmt"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/source"
)

// Push sends an image of o.Store to a registry, under the tag of the reference.
func Push(ctx context.Context, im *image.Image, reference string, o registry.PushOptions) error {
	ref, err := pushRef(reference)
	if err != nil {
		return err
	}
	o.User = ref.User
	return registry.Push(ctx, content(im), ref.Value, ref.Tag, o)
}

// CheckPush finds a mistake in a reference that an image is to be pushed to.
func CheckPush(reference string) error {
	_, err := pushRef(reference)
	return err
}

// PushUntagged sends an image to a repository, HOST/PATH, under its digest alone.
func PushUntagged(ctx context.Context, im *image.Image, repository string, o registry.PushOptions) error {
	ref, err := pushRef(repository)
	if err != nil {
		return err
	}
	o.User = ref.User
	return registry.Push(ctx, content(im), ref.Value, "", o)
}

func pushRef(reference string) (source.Ref, error) {
	if !strings.HasPrefix(reference, "docker://") {
		reference = "docker://" + reference
	}
	ref, err := source.Parse(reference)
	if err == nil && ref.Digest != "" {
		err = fault.Usage(fmt.Errorf("image %q: an image is pushed to a tag, not to a digest", reference))
	}
	return ref, err
}

// content is an image as registries have it.
func content(im *image.Image) registry.Content {
	c := registry.Content{Manifest: registry.Blob{Digest: im.Digest, Size: im.Size}, MediaType: im.MediaType}
	for _, b := range blobsOf(im) {
		if b.digest != im.Digest {
			c.Blobs = append(c.Blobs, registry.Blob{Digest: b.digest, Size: b.size})
		}
	}
	return c
}
