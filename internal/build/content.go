package build

import (
	"context"
	"fmt"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// makeOrFind makes the layer of a step whose key nobody knows, unless it was made before on the very same bytes: then what it is based on
// was made in another way, and came out the same.
func (r *stageRun) makeOrFind(ctx context.Context, t *plan.Step) (layer.Descriptor, error) {
	if !t.Content {
		return r.change(ctx, t)
	}
	ground, err := r.groundFor(ctx, t)
	if err != nil {
		return layer.Descriptor{}, err
	}
	once := r.onceFor(t)
	once.Kind, once.Key = store.KindContent, string(t.ContentKey(r.stage, ground))
	d, found, err := once.Do(ctx, r.opts.Store, func(ctx context.Context) (layer.Descriptor, error) { return r.change(ctx, t) })
	if _, runs := t.Op.(*plan.Exec); found && err == nil && runs {
		progress.Notef(ctx, fmt.Sprintf("%s: what it is based on came out the same, and so it is not run again", t.Label()))
	}
	return d, err
}

// groundFor is what a step really is based on and takes. The stages that it takes files of are made for it.
func (r *stageRun) groundFor(ctx context.Context, t *plan.Step) (plan.Ground, error) {
	g := plan.Ground{Below: contentsOf(r.made.layers()), Taken: make(map[*plan.Stage][]store.Digest)}
	if x, ok := t.Op.(*plan.Exec); ok && x.Inherit && r.made.base != nil {
		g.Environment = r.environment(r.made.conda)
	}
	for _, from := range t.Sources() {
		if from.Stage == nil {
			continue
		}
		m, err := r.builder.stage(ctx, from.Stage)
		if err != nil {
			return g, err
		}
		layers := m.layers()
		if _, ok := t.Op.(*plan.Output); ok {
			layers = []layer.Descriptor{m.last()}
		}
		g.Taken[from.Stage] = contentsOf(layers)
	}
	return g, nil
}

// contentsOf are the digests of layers, uncompressed: how they are compressed changes no file.
func contentsOf(layers []layer.Descriptor) []store.Digest {
	all := make([]store.Digest, len(layers))
	for i, d := range layers {
		all[i] = d.DiffID
	}
	return all
}

// last is the layer of the last step, empty when that changed nothing.
func (m *made) last() layer.Descriptor {
	if len(m.additions) == 0 {
		return layer.Descriptor{}
	}
	return m.additions[len(m.additions)-1].Layer
}
