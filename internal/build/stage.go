package build

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// made is what a stage has come to, or how far it is.
type made struct {
	base      *image.Image     // nil: it began with nothing
	additions []image.Addition // on top of base
	wheels    []madeLayer      // those of the additions that are layers of wheels
	conda     *activated       // the conda environment that programs find themselves in; nil: none
}

// madeLayer is a layer of wheels with the list of its files.
type madeLayer struct {
	layer    layer.Descriptor
	manifest python.Manifest
	items    []python.Item
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
	return &made{base: m.base, conda: m.conda, additions: append([]image.Addition(nil), m.additions...)}
}

// add puts a step's layer on top, and the history's line about it.
func (m *made) add(d layer.Descriptor, t *plan.Step) {
	if t.History != "" {
		m.additions = append(m.additions, image.Addition{Layer: d, CreatedBy: t.History})
	}
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
	for _, other := range b.wanted(ctx, s, make(map[*plan.Stage]bool)) {
		g.Go(func() error {
			_, err := b.stage(ctx, other)
			return err
		})
	}
}

// wanted lists the stages that s is based on or whose files a step of it needs that nobody has made yet.
func (b *builder) wanted(ctx context.Context, s *plan.Stage, seen map[*plan.Stage]bool) []*plan.Stage {
	if s == nil || seen[s] {
		return nil
	}
	seen[s] = true
	all := append(b.wanted(ctx, s.From, seen), s)
	for _, t := range s.Steps {
		if !t.TakesStages() || b.known(ctx, t) {
			continue
		}
		for _, from := range t.Sources() {
			all = append(all, b.wanted(ctx, from.Stage, seen)...)
		}
	}
	return all
}

func (b *builder) makeStage(ctx context.Context, s *plan.Stage) (*made, error) {
	m := &made{}
	if s.From != nil {
		below, err := b.stage(ctx, s.From)
		if err != nil {
			return nil, err
		}
		m = below.top()
	}
	g, ctx := errgroup.WithContext(ctx)
	r := newStageRun(ctx, b, s, m)
	defer r.close()
	r.beginApart(ctx, g)
	g.Go(func() error { return r.makeSteps(ctx) })
	return m, g.Wait()
}

// stageRun makes the steps of one stage, from the bottom up.
type stageRun struct {
	*builder
	stage *plan.Stage
	made  *made // how far it is

	// The ground is what stands below the first step that brings Python packages. What makes byte code waits for it.
	ground   *made
	grounded chan struct{} // closed when ground is there

	// The foundation of a conda environment is what stands below its first step.
	foundation *made
	founded    chan struct{} // closed when foundation is there

	conda       map[*plan.Step]func() (condaLayer, error) // steps that lay conda packages down; they wait for nothing
	condaPython []func() (condaLayer, error)              // those of them that its Python runs on; empty: there is no Python
	laid        []condaLayer                              // so far

	places   python.Places                            // of the wheels that are in the store
	bytecode *compilers                               // nil in a stage without Python packages
	apart    map[*plan.Step]func() (madeLayer, error) // steps that do not wait for those before them
	compiled func() (map[string]python.Item, error)   // the wheels of packages that are compiled, by normalised name; once
}

func newStageRun(ctx context.Context, b *builder, s *plan.Stage, m *made) *stageRun {
	r := &stageRun{builder: b, stage: s, made: m, grounded: make(chan struct{}), founded: make(chan struct{}), conda: make(map[*plan.Step]func() (condaLayer, error)), apart: make(map[*plan.Step]func() (madeLayer, error))}
	if e := s.Environment(); e != nil {
		r.places.Prefer = e.Environment.Prefer
		r.bytecode = b.newCompilers(ctx, r.waitGround, e.Environment.Target.Python.Executable)
	}
	if e := s.Conda(); e != nil {
		r.bytecode = b.newCompilers(ctx, r.condaGround, e.Environment.Target.Executable())
	}
	r.compiled = sync.OnceValues(func() (map[string]python.Item, error) { return r.compileAll(ctx) })
	return r
}

// known reports whether what a step makes is here, or, as far as can be said without bringing it, with other machines. If that turns
// out to be wrong, the stages that it takes files of are made when it asks for them.
func (b *builder) known(ctx context.Context, t *plan.Step) bool {
	return b.recorded(t.Key) || !b.opts.Again && b.opts.Shared.Has(ctx, store.KindStep, string(t.Key))
}

func (r *stageRun) close() {
	if r.bytecode != nil {
		r.bytecode.close()
	}
}

// beginApart starts the steps that stand on nothing below them.
func (r *stageRun) beginApart(ctx context.Context, g *errgroup.Group) {
	r.beginConda(ctx, g)
	for _, t := range r.stage.Steps {
		if w, ok := t.Op.(*plan.Wheels); ok {
			run := sync.OnceValues(func() (madeLayer, error) { return r.makeWheels(ctx, w) })
			r.apart[t] = run
			g.Go(func() error { _, err := run(); return err })
		}
	}
}

// waitGround waits for what byte code is compiled on.
func (r *stageRun) waitGround(ctx context.Context) (*made, error) {
	if err := wait(ctx, r.grounded); err != nil {
		return nil, err
	}
	return r.ground, nil
}

// wait waits until a channel is closed.
func wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settle says that what is made so far is the foundation or the ground, when the step to come is the first that is based on it.
func (r *stageRun) settle(t *plan.Step) {
	switch t.Op.(type) {
	case *plan.Base, *plan.OSPackages:
		return
	}
	if r.foundation == nil {
		r.foundation = r.made.top()
		close(r.founded)
	}
	switch t.Op.(type) {
	case *plan.CondaPackages, *plan.CondaEnvironment, *plan.CondaScripts, *plan.CondaActivation:
		return
	}
	if r.ground == nil {
		r.ground = r.made.top()
		close(r.grounded)
	}
}

func (r *stageRun) makeSteps(ctx context.Context) error {
	for _, t := range r.stage.Steps {
		r.settle(t)
		began := time.Now()
		d, err := r.makeStep(ctx, t)
		if err != nil {
			return err
		}
		r.tookFrom(t.Key, began)
		r.made.add(d, t)
	}
	return nil
}

// makeStep makes the layer of one step on top of what is made so far. There is a maker for each op.
func (r *stageRun) makeStep(ctx context.Context, t *plan.Step) (layer.Descriptor, error) {
	var none layer.Descriptor
	switch op := t.Op.(type) {
	case nil:
		return none, nil
	case *plan.Base:
		im, err := r.bring(ctx, op)
		r.made.base = im
		return none, err
	case *plan.OSPackages:
		d, err := ospackages.Layer(ctx, ospackages.Install{
			Runner: r.runner, Fetch: r.opts.Fetch, Shared: r.opts.Shared, Key: string(t.Key), On: r.made.layers(), Arch: r.arch(), Packages: op.Pinned,
		})
		return d, err
	case *plan.CondaPackages:
		return r.addConda(r.conda[t]())
	case *plan.CondaEnvironment:
		return r.makeCondaEnvironment(ctx, op)
	case *plan.CondaScripts:
		return r.makeCondaScripts(ctx, t, op)
	case *plan.CondaActivation:
		return r.makeActivation(ctx, t, op)
	case *plan.Wheels:
		return r.addWheels(r.apart[t]())
	case *plan.Compile:
		return r.addWheels(r.makeCompiled(ctx, op))
	case *plan.Environment:
		return r.makeEnvironment(ctx, op)
	}
	d, _, err := r.onceFor(t).Do(ctx, r.opts.Store, func(ctx context.Context) (layer.Descriptor, error) { return r.makeOrFind(ctx, t) })
	if err != nil {
		return d, stepError(t, err)
	}
	return d, nil
}

// addWheels keeps what is known of a layer of wheels for the environment that it becomes part of.
func (r *stageRun) addWheels(l madeLayer, err error) (layer.Descriptor, error) {
	if err == nil {
		r.made.wheels = append(r.made.wheels, l)
	}
	return l.layer, err
}
