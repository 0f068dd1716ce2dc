package lock

import (
	"context"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// CompileBase is an image of its own that a package is built in: one with compilers, which the finished image has not.
type CompileBase struct {
	Image      base.Pinned `toml:"image"`
	Executable string      `toml:"executable"`
	Version    string      `toml:"version"`
	Prefix     string      `toml:"prefix"`
	Glibc      string      `toml:"glibc,omitempty"`
	Musl       string      `toml:"musl,omitempty"`
}

// Interpreter returns its Python, given the image's own.
func (b *CompileBase) Interpreter(own python.Interpreter) python.Interpreter {
	own.Executable, own.Version, own.Prefix, own.Glibc, own.Musl = b.Executable, b.Version, b.Prefix, b.Glibc, b.Musl
	own.SitePackages, own.Packages = nil, nil
	return own
}

// withBase is r, standing on the image that a package is built in.
func withBase(r *recipe.Recipe, image string) *recipe.Recipe {
	other := *r
	other.Base = recipe.Base{Image: image}
	return &other
}

// CompileReference returns where the image is looked for that a package is built in, with paths made absolute.
func CompileReference(r *recipe.Recipe, c Compile) string {
	return withBase(r, r.Python.Compile[c.Name].Base).BaseReference()
}

// pinCompileBase pins the image that the recipe builds a package in, nil when that is the image itself. Its Python must be of
// the image's version, and its C library no newer: the wheel would not load.
func (k *locker) pinCompileBase(ctx context.Context, name string) (*CompileBase, error) {
	image := k.recipe.Python.Compile[name].Base
	if image == "" {
		return nil, nil
	}
	platform, err := v1.ParsePlatform(k.recipe.Target.Platform)
	if err != nil {
		return nil, err
	}
	r := withBase(k.recipe, image)
	pinned := k.earlierBase(name, image)
	if pinned == nil {
		if pinned, err = base.Pin(ctx, r, *platform, k.opts.base()); err != nil {
			return nil, fmt.Errorf("the base that %s is built in: %w", name, err)
		}
	}
	im, err := pinned.Image(ctx, r.BaseReference(), *platform, k.opts.base())
	if err != nil {
		return nil, fmt.Errorf("the base that %s is built in: %w", name, err)
	}
	found, err := interpreterOf(ctx, k.opts.Store, im, *platform)
	if err != nil {
		return nil, fmt.Errorf("the base that %s is built in: %w", name, err)
	}
	b := &CompileBase{Image: *pinned, Executable: found.Executable, Version: found.Version, Prefix: found.Prefix, Glibc: found.Glibc, Musl: found.Musl}
	b.Image.Layers = len(im.Layers)
	return b, k.checkCompileBase(name, image, *found)
}

// earlierBase returns what the earlier lock pinned, as long as the recipe names the same image.
func (k *locker) earlierBase(name, image string) *base.Pinned {
	if k.opts.Upgrade || k.old == nil || k.old.Python == nil || k.old.Platform != k.recipe.Target.Platform {
		return nil
	}
	for _, old := range k.old.Python.Compiled {
		if old.Name == name && old.Base != nil && old.Base.Image.Reference == image {
			return &old.Base.Image
		}
	}
	return nil
}

func (k *locker) checkCompileBase(name, image string, found python.Interpreter) error {
	own := k.python.Interpreter()
	const hint = "build it in an image with the same Python, and a distribution no newer than that of [base]"
	if found.Minor() != own.Minor() || found.Implementation != own.Implementation {
		return fault.Hint(fmt.Errorf("%s is built in %s with Python %s, and the image has %s", name, image, found.Minor(), own.Minor()), hint)
	}
	if (found.Musl == "") != (own.Musl == "") {
		return fault.Hint(fmt.Errorf("%s is built in %s, which has another C library than the image", name, image), hint)
	}
	has, err := python.ParseVersion(own.Glibc + own.Musl)
	if err != nil {
		return nil //nolint:nilerr // nobody can say
	}
	if builds, err := python.ParseVersion(found.Glibc + found.Musl); err == nil && builds.Compare(has) > 0 {
		return fault.Hint(fmt.Errorf("%s is built in %s with the C library %s, and the image has %s", name, image, builds, has), hint)
	}
	return nil
}
