package source

import (
	"context"
	"fmt"

	"sconce.dev/sconce/internal/image"
)

// Outline brings the manifest and the config of an image into the store. A layer comes later, when something in it is wanted
// that the store does not know. A root file system is imported whole.
func Outline(ctx context.Context, ref Ref, o Options) (*image.Outline, error) {
	o = o.withDefaults()
	img, err := Open(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	outline, err := image.ReadOutline(ctx, o.Store, img)
	if err == nil {
		err = checkPlatform(platformOfConfig(&outline.Image.Config))
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	return outline, nil
}
