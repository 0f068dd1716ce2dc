package build

import (
	"context"
	"slices"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/wheelbuild"
)

// makeCompiled makes the layer of a package that has no wheel. The first of a stage has them all built, each as soon as those are
// there that it is built against.
func (r *stageRun) makeCompiled(ctx context.Context, c *plan.Compile) (madeLayer, error) {
	items, err := r.compiled()
	if err != nil {
		return madeLayer{}, err
	}
	return r.layCompiled(ctx, c, items[c.Package.Name])
}

// compileAll builds the packages of the stage that have no wheel, on the ground and the wheels that are there.
func (r *stageRun) compileAll(ctx context.Context) (map[string]python.Item, error) {
	builder := &wheelbuild.Builder{
		Runner: r.runner, Arch: r.arch(), Fetch: r.opts.Fetch, Jobs: r.jobs, Shared: r.opts.Shared,
		Header: r.opts.Authorize, Login: lock.LoginHint, Reach: r.opts.Reach,
	}
	ops := make(map[string]*plan.Compile)
	var packages []wheelbuild.Package
	for _, t := range r.stage.Steps {
		if c, ok := t.Op.(*plan.Compile); ok {
			ops[c.Package.Name] = c
			packages = append(packages, c.Package)
		}
	}
	wheels := r.made.wheels
	on := func(p wheelbuild.Package) (wheelbuild.Ground, error) { return r.groundOf(ctx, ops[p.Name], wheels) }
	lay := func(it python.Item) (layer.Descriptor, error) {
		l, err := r.layCompiled(ctx, ops[python.NormalizeName(it.Name)], it)
		return l.layer, err
	}
	items, err := builder.BuildAll(ctx, packages, on, lay)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]python.Item)
	for i, p := range packages {
		items[i].Requested = ops[p.Name].Requested
		byName[p.Name] = items[i]
	}
	r.addBuilt(items)
	return byName, nil
}

// groundOf is what one package is built on.
func (r *stageRun) groundOf(ctx context.Context, c *plan.Compile, wheels []madeLayer) (wheelbuild.Ground, error) {
	layers, env := r.ground.layers(), []string(r.environment(r.ground.conda.forBuilds()))
	if c.Base != nil {
		im, err := r.bring(ctx, c.Base)
		if err != nil {
			return wheelbuild.Ground{}, err
		}
		layers, env = im.Layers, im.Config.Config.Env
	}
	on := wheelbuild.Ground{
		Env: env, Python: c.Python, Root: c.Target.Root,
		SystemSite: r.stage.Environment().Environment.SystemSitePackages,
		Layers:     append([]layer.Descriptor(nil), layers...),
	}
	if err := r.addComponents(ctx, &on, c.Needs); err != nil {
		return on, err
	}
	if c.Package.Isolated {
		return on, nil
	}
	for _, w := range wheels {
		on.Layers = append(on.Layers, w.layer)
		on.Items = append(on.Items, w.items...)
	}
	return on, nil
}

// bring brings a base into the store.
func (b *builder) bring(ctx context.Context, op *plan.Base) (*image.Image, error) {
	return op.Pinned.Image(ctx, op.Reference, op.Platform, base.Options{
		Store: b.opts.Store, Fetch: b.opts.Fetch, Offline: b.opts.Offline, Without: slim.Without(b.opts.Store),
	})
}

func (r *stageRun) layCompiled(ctx context.Context, c *plan.Compile, it python.Item) (madeLayer, error) {
	var compiler python.Compiler
	if c.Bytecode {
		compiler = r.bytecode
	}
	group := python.Group{Name: python.NormalizeName(it.Name), Items: []python.Item{it}}
	d, m, err := python.BuildLayer(ctx, r.opts.Store, group, c.Target, compiler, c.Options)
	return madeLayer{d, m, group.Items}, err
}

// addComponents puts components on the ground that a package is built against, and lets compilers find them.
func (r *stageRun) addComponents(ctx context.Context, on *wheelbuild.Ground, needs []*plan.Stage) error {
	env := environment(slices.Clone(on.Env))
	for _, s := range needs {
		m, err := r.builder.stage(ctx, s)
		if err != nil {
			return err
		}
		d := m.last()
		on.Layers = append(on.Layers, d)
		on.Components = append(on.Components, d.DiffID)
		out, ok := s.Steps[0].Op.(*plan.Output)
		if !ok {
			continue
		}
		env.search(out.Prefix)
		env.set(plan.PrefixVariable(out.Name), out.Prefix)
	}
	on.Env = env
	return nil
}
