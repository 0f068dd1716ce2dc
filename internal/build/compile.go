package build

import (
	"context"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/wheelbuild"
)

// compile builds the packages of a stage that have no wheel, on the ground and the wheels that are there, and makes a layer of
// each. The items are those of the layers.
func (b *builder) compile(ctx context.Context, s *plan.Stage, ground *made, wheels []madeLayer, bytecode *compilers) ([]madeLayer, []python.Item, error) {
	if len(s.Compiles) == 0 {
		return nil, nil, nil
	}
	builder := &wheelbuild.Builder{
		Runner: b.runner, Fetch: b.opts.Fetch, Jobs: wheelbuild.NewJobs(b.opts.Cores, b.opts.Memory), Remote: b.opts.Remote, Share: b.opts.Share,
		Header: b.opts.Authorize, Login: lock.LoginHint,
	}
	steps := make(map[string]*plan.CompileStep)
	var packages []wheelbuild.Package
	for _, c := range s.Compiles {
		steps[c.Package.Name] = c
		packages = append(packages, c.Package)
	}
	on := func(p wheelbuild.Package) (wheelbuild.Ground, error) {
		return b.groundOf(ctx, s, steps[p.Name], ground, wheels)
	}
	lay := func(it python.Item) (layer.Descriptor, error) {
		l, err := b.layCompiled(ctx, steps[python.NormalizeName(it.Name)], it, bytecode)
		return l.layer, err
	}
	items, err := builder.BuildAll(ctx, packages, on, lay)
	if err != nil {
		return nil, nil, err
	}
	made := make([]madeLayer, len(items))
	g, ctx := errgroup.WithContext(ctx)
	for i, c := range s.Compiles {
		items[i].Requested = c.Requested
		g.Go(func() (err error) {
			made[i], err = b.layCompiled(ctx, c, items[i], bytecode)
			return err
		})
	}
	return made, items, g.Wait()
}

// groundOf is what one package is built on.
func (b *builder) groundOf(ctx context.Context, s *plan.Stage, c *plan.CompileStep, ground *made, wheels []madeLayer) (wheelbuild.Ground, error) {
	im, layers := ground.base, ground.layers()
	if c.Base != nil {
		var err error
		if im, err = b.bring(ctx, c.Base); err != nil {
			return wheelbuild.Ground{}, err
		}
		layers = im.Layers
	}
	on := wheelbuild.Ground{
		Env: im.Config.Config.Env, Python: c.Python, Root: c.Target.Root, SystemSite: s.Env.Environment.SystemSitePackages,
		Layers: append([]layer.Descriptor(nil), layers...),
	}
	if c.Package.Isolated {
		return on, nil
	}
	for i, w := range wheels {
		on.Layers = append(on.Layers, w.layer)
		on.Items = append(on.Items, s.Wheels[i].Group.Items...)
	}
	return on, nil
}

// bring brings a base into the store.
func (b *builder) bring(ctx context.Context, s *plan.BaseStep) (*image.Image, error) {
	return s.Pinned.Image(ctx, s.Reference, s.Platform, base.Options{Store: b.opts.Store, Fetch: b.opts.Fetch, Offline: b.opts.Offline})
}

func (b *builder) layCompiled(ctx context.Context, c *plan.CompileStep, it python.Item, bytecode *compilers) (madeLayer, error) {
	var compiler python.Compiler
	if c.Bytecode {
		compiler = bytecode
	}
	group := python.Group{Name: python.NormalizeName(it.Name), Items: []python.Item{it}}
	d, m, err := python.BuildLayer(ctx, b.opts.Store, group, c.Target, compiler, c.Options)
	return madeLayer{d, m}, err
}
