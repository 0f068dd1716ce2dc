package lock

import (
	"context"
	"slices"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/recipe"
)

// lockSystem pins the system packages that r asks for on the base im, and returns the base together with them: its Python
// may be one of them. What old has pinned stays as long as base and packages are the same.
func lockSystem(ctx context.Context, r *recipe.Recipe, l *Lock, old *Files, im *image.Image, o Options) (*ospackages.Pinned, *image.Image, error) {
	pinned, err := pinSystem(ctx, r, l, old, im, o)
	if err != nil || pinned.Empty() || !r.Python.Asked() {
		return pinned, im, err
	}
	with := layer.Options{Compression: layer.Compression(r.Image.Compression), ModTime: layer.DefaultModTime.UTC()} // as the planner has it
	d, err := ospackages.Layer(ctx, ospackages.Install{
		Runner: &execop.Runner{Store: o.Store, Layer: with}, Fetch: o.Fetch, Key: ospackages.LayerKey(l.Base.Key(), pinned, with), On: im.Layers, Arch: im.Platform().Architecture, Packages: pinned,
	})
	if err != nil {
		return nil, nil, err
	}
	im, err = image.Assemble(ctx, o.Store, image.Spec{Base: im, Additions: []image.Addition{{Layer: d, CreatedBy: "system packages"}}})
	return pinned, im, err
}

func pinSystem(ctx context.Context, r *recipe.Recipe, l *Lock, old *Files, im *image.Image, o Options) (*ospackages.Pinned, error) {
	if old != nil && old.System != nil && !o.Upgrade && old.Base.Key() == l.Base.Key() && slices.Equal(old.Inputs.System, l.Inputs.System) {
		return old.System, nil
	}
	return ospackages.Resolve(ctx, o.Store, ospackages.Request{On: im.Layers, Platform: im.Platform(), Packages: r.System.Packages, Offline: o.Offline})
}
