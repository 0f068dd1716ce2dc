package facts

import (
	"context"
	"errors"
	"io/fs"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// Sketch tells of a squashfs or SIF file what takes no look into its programs: its configuration, its root and the paths in it. The
// file stays open as long as the facts are used.
func Sketch(ctx context.Context, c *source.ClusterFile, name string) (*Facts, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	digest, err := clusterfile.Digest(c.FS)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		digest = "" // what it says of itself is of no use
	}
	root, err := newSquashRoot(c.FS)
	if err != nil {
		return nil, err
	}
	f := &Facts{Image: name, Digest: string(digest), Platform: platformName(*config.Platform()), Created: config.Created.Time, Config: config.Config, Root: root}
	return f, f.list(ctx)
}

// SketchOutline is [Sketch] for an image that has layers. Those that are not in the store are brought. The caller closes the facts.
func SketchOutline(ctx context.Context, st *store.Store, o *image.Outline, name string) (*Facts, error) {
	l := newLayered(ctx, st, o.Image, name)
	l.facts.missing = o.Err
	tree, err := o.Tree(ctx, nil)
	if err != nil {
		return nil, errors.Join(err, l.facts.Close())
	}
	l.root.tree = tree
	if err := l.facts.list(ctx); err != nil {
		return nil, errors.Join(err, l.facts.Close())
	}
	return l.facts, nil
}

// SketchConfig is [Sketch] for an image of which only manifest and configuration are read. It has no root and no paths.
func SketchConfig(o *image.Outline, name string) *Facts {
	im := o.Image
	return &Facts{Image: name, Digest: string(im.Digest), Platform: platformName(im.Platform()), Created: im.Config.Created.Time, Config: im.Config.Config}
}

func (f *Facts) list(ctx context.Context) error {
	return f.Root.All(func(i Info) error {
		f.Paths = append(f.Paths, i)
		return ctx.Err()
	})
}

// RootOf is the file system of a squashfs or SIF file, which stays open as long as it is used.
func RootOf(c *source.ClusterFile) (Root, error) { return newSquashRoot(c.FS) }
