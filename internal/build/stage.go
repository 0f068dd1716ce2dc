package build

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/system"
)

// made is what a stage has come to, or how far it is.
type made struct {
	base      *image.Image     // nil: it began with nothing
	additions []image.Addition // on top of base
	wheels    []madeLayer      // those of the additions that are layers of wheels
}

// layers lists the layers so far, lowest first. A step that changed nothing has none.
func (m *made) layers() []layer.Descriptor {
	var all []layer.Descriptor
	if m.base != nil {
		all = append(all, m.base.Layers...)
	}
	for _, a := range m.additions {
		if a.Layer.Digest != "" {
			all = append(all, a.Layer)
		}
	}
	return all
}

// top is a copy of m to go on from.
func (m *made) top() *made {
	return &made{base: m.base, additions: append([]image.Addition(nil), m.additions...)}
}

func (m *made) add(d layer.Descriptor, what string) {
	m.additions = append(m.additions, image.Addition{Layer: d, CreatedBy: what})
}

// stage makes a stage, once: several steps may want its files.
func (b *builder) stage(ctx context.Context, s *plan.Stage) (*made, error) {
	b.mu.Lock()
	run, ok := b.stages[s]
	if !ok {
		run = sync.OnceValues(func() (*made, error) { return b.makeStage(ctx, s) })
		b.stages[s] = run
	}
	b.mu.Unlock()
	return run()
}

// begin starts the stages that steps still to be made want files of, so that they are made side by side.
func (b *builder) begin(ctx context.Context, g *errgroup.Group, s *plan.Stage) {
	for _, other := range b.wanted(s, make(map[*plan.Stage]bool)) {
		g.Go(func() error {
			_, err := b.stage(ctx, other)
			return err
		})
	}
}

// wanted lists the stages that s stands on or whose files a step of it needs that nobody has made yet.
func (b *builder) wanted(s *plan.Stage, seen map[*plan.Stage]bool) []*plan.Stage {
	if s == nil || seen[s] {
		return nil
	}
	seen[s] = true
	all := append(b.wanted(s.Parent, seen), s)
	for _, t := range s.Steps {
		if _, ok := b.recorded(t.Key); ok {
			continue
		}
		for _, from := range t.Sources() {
			all = append(all, b.wanted(from.Stage, seen)...)
		}
	}
	return all
}

func (b *builder) makeStage(ctx context.Context, s *plan.Stage) (*made, error) {
	m, err := b.foundation(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, t := range s.Steps {
		d, err := b.makeStep(ctx, s, t, m)
		if err != nil {
			return nil, err
		}
		m.add(d, t.Title)
	}
	return m, nil
}

// foundation makes what the steps of a stage stand on.
func (b *builder) foundation(ctx context.Context, s *plan.Stage) (*made, error) {
	switch {
	case s.Parent != nil:
		m, err := b.stage(ctx, s.Parent)
		if err != nil {
			return nil, err
		}
		return m.top(), nil
	case s.Base == nil:
		return &made{}, nil
	}
	g, gctx := errgroup.WithContext(ctx)
	// The ground is asked for by several steps and made by the first of them.
	ground := sync.OnceValues(func() (*made, error) { return b.makeGround(gctx, s) })
	g.Go(func() error { _, err := ground(); return err })
	var bytecode *compilers
	if s.Env != nil {
		bytecode = newCompilers(ctx, b.opts.Store, ground, s.Env.Environment.Target.Python, max(1, b.opts.Cores))
		defer bytecode.close()
	}
	wheels := make([]madeLayer, len(s.Wheels))
	for i, w := range s.Wheels {
		g.Go(func() (err error) {
			wheels[i], err = b.makeWheels(gctx, w, bytecode)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	m, err := ground()
	if err != nil {
		return nil, err
	}
	compiled, items, err := b.compile(ctx, s, m, wheels, bytecode)
	if err != nil {
		return nil, err
	}
	b.built = append(b.built, items...) // recipes have one stage with packages
	return m, b.addWheels(ctx, s, m, append(wheels, compiled...), items)
}

// makeGround brings the base, and puts the system's packages on it.
func (b *builder) makeGround(ctx context.Context, s *plan.Stage) (*made, error) {
	im, err := b.bring(ctx, s.Base)
	if err != nil {
		return nil, err
	}
	m := &made{base: im}
	if s.System == nil || s.System.Pinned.Empty() {
		return m, nil
	}
	d, err := b.once(ctx, string(s.System.Key), func() (layer.Descriptor, error) {
		return system.Layer(ctx, b.runner, b.opts.Fetch, string(s.System.Key), im.Layers, s.System.Pinned)
	})
	if err != nil {
		return nil, err
	}
	m.add(d, "system packages: "+strings.Join(s.System.Pinned.Asked, " "))
	return m, nil
}

// addWheels puts the layers of wheels, and the environment that they make up, on the ground. compiled are the last of the
// wheels, those that were built here.
func (b *builder) addWheels(ctx context.Context, s *plan.Stage, m *made, wheels []madeLayer, compiled []python.Item) error {
	if s.Env == nil {
		return nil
	}
	var manifests []python.Manifest
	for i, w := range wheels {
		manifests = append(manifests, w.manifest)
		m.add(w.layer, "python packages: "+contents(wheelsOf(s, compiled, i)))
	}
	m.wheels = wheels
	if err := python.CheckConflicts(manifests); err != nil {
		return err
	}
	e := s.Env.Environment
	e.Manifests, e.Items = manifests, slices.Concat(e.Items, compiled)
	d, err := python.BuildEnvironment(ctx, b.opts.Store, e, s.Env.Options)
	if err != nil {
		return err
	}
	m.add(d, fmt.Sprintf("python environment in /%s", e.Target.Root))
	return b.checkProtected(ctx, s, wheels)
}

// wheelsOf lists the wheels of the i-th layer of wheels.
func wheelsOf(s *plan.Stage, compiled []python.Item, i int) []python.Item {
	if i < len(s.Wheels) {
		return s.Wheels[i].Group.Items
	}
	return compiled[i-len(s.Wheels):][:1]
}
