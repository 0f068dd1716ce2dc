package build

import (
	"context"
	"slices"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
)

func (r *stageRun) makeWheels(ctx context.Context, op *plan.Wheels) (madeLayer, error) {
	var compiler python.Compiler
	if op.Bytecode {
		compiler = r.bytecode
	}
	bring := func(ctx context.Context) (func(), error) {
		if err := r.download(ctx, op.Group.Items); err != nil {
			return nil, err
		}
		// Faults and clashes are told before any time goes into layers.
		m, err := python.CheckWheels(r.opts.Store, op.Group.Items, op.Target)
		if err == nil {
			err = r.places.Add(m)
		}
		if err != nil {
			return nil, err
		}
		if err := r.pythonLaid(); err != nil {
			return nil, err
		}
		if err := r.cpu.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		return func() { r.cpu.Release(1) }, nil
	}
	d, m, err := python.BringAndBuildLayer(ctx, r.opts.Store, op.Group, op.Target, compiler, op.Options, bring)
	if err == nil {
		err = r.places.Add(m) // of a layer that was there
	}
	return madeLayer{d, m, op.Group.Items}, err
}

func (b *builder) download(ctx context.Context, items []python.Item) error {
	var requests []fetch.Request
	for _, it := range items {
		if b.opts.Store.HasBlob(it.Digest) {
			continue
		}
		requests = append(requests, b.request(it))
	}
	return b.opts.Fetch.Blobs(ctx, requests)
}

func (b *builder) request(it python.Item) fetch.Request {
	r := fetch.Request{
		URL: b.urls[it.Digest].URL, Digest: it.Digest, Size: it.Size, Name: it.Name + " " + it.Version, Login: lock.LoginHint,
	}
	if b.opts.Authorize != nil {
		r.Header = b.opts.Authorize(r.URL)
	}
	return r
}

// makeEnvironment makes one environment of all layers of wheels.
func (r *stageRun) makeEnvironment(ctx context.Context, op *plan.Environment) (layer.Descriptor, error) {
	e := op.Environment
	e.Items = slices.Concat(e.Items, r.builtItems())
	for _, w := range r.made.wheels {
		e.Manifests = append(e.Manifests, w.manifest)
	}
	if err := python.CheckConflicts(e.Manifests, e.Prefer); err != nil {
		return layer.Descriptor{}, err
	}
	r.warnReplaced(ctx)
	if err := r.warnOverwritten(ctx, e.Target); err != nil {
		return layer.Descriptor{}, err
	}
	d, err := python.BuildEnvironment(ctx, r.opts.Store, e, op.Options)
	if err != nil {
		return d, err
	}
	return d, r.checkProtected(ctx, e.Target.Python, r.made.wheels)
}
