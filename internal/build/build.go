// Package build runs a plan: it takes what the store already has under a step's key, and makes the rest in parallel.
//
// Steps run as soon as what they need is there. Downloads are bounded by the fetch client; work that needs the processor
// is bounded by the cores that are really available. Each step is made under a lock named after its key, so two builds
// at once, in any number of processes, make it once.
package build

import (
	"context"
	"net/http"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/event"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
)

// Options says with what to build.
type Options struct {
	Store   *store.Store
	Fetch   *fetch.Client
	Offline bool
	Cores   int              // that are really available; 0: one
	Wheels  []lock.Wheel     // where the plan's wheels come from
	Protect []lock.Protected // packages of the base that wheels must get along with

	// Authorize gives the headers with which a wheel's address may be read; nil: none are needed.
	Authorize func(address string) http.Header
}

// Result is what a build gives.
type Result struct {
	Image   *image.Image
	Fresh   bool         // nothing had to be made
	Slimmed *slim.Report // what slimming took out, if there was anything to slim now
}

// imageKind is the kind of the records that remember the image made under a key.
const imageKind store.Kind = "image-step"

// Run makes the image of p.
func Run(ctx context.Context, p *plan.Plan, o Options) (*Result, error) {
	if im, err := remembered(ctx, o.Store, p.Image.Key); im != nil || err != nil {
		return &Result{Image: im, Fresh: true}, err
	}
	lock, err := o.Store.Lock(ctx, "image "+string(p.Image.Key))
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if im, err := remembered(ctx, o.Store, p.Image.Key); im != nil || err != nil {
		return &Result{Image: im, Fresh: true}, err // another process made it while this one waited
	}
	b := newBuilder(p, o)
	im, err := b.run(ctx)
	if err != nil {
		return nil, err
	}
	return &Result{Image: im, Slimmed: b.slimmed}, o.Store.PutRecord(imageKind, string(p.Image.Key), im.Refs(), im.Digest)
}

func remembered(ctx context.Context, st *store.Store, key plan.Key) (*image.Image, error) {
	var digest store.Digest
	found, err := st.GetRecord(imageKind, string(key), &digest)
	if !found || err != nil {
		return nil, err
	}
	return image.Load(ctx, st, digest)
}

// builder is one run of a plan.
type builder struct {
	plan      *plan.Plan
	opts      Options
	urls      map[store.Digest]lock.Wheel
	cpu       *semaphore.Weighted // how many layers are made at once
	base      func() (*image.Image, error)
	compilers *compilers
	slimmed   *slim.Report // once the image is made
}

// layersAtOnce is how many layers of wheels are made side by side. One keeps all cores busy while a large file passes
// through; a second fills the gaps while the first one's wheels are opened and its blob is synced.
const layersAtOnce = 2

func newBuilder(p *plan.Plan, o Options) *builder {
	b := &builder{plan: p, opts: o, urls: make(map[store.Digest]lock.Wheel), cpu: semaphore.NewWeighted(layersAtOnce)}
	for _, w := range o.Wheels {
		b.urls[w.Digest] = w
	}
	return b
}

// madeLayer is a layer of wheels with the list of its files.
type madeLayer struct {
	layer    layer.Descriptor
	manifest python.Manifest
}

func (b *builder) run(ctx context.Context) (*image.Image, error) {
	g, gctx := errgroup.WithContext(ctx)
	// The base is asked for by several steps and made by the first of them.
	b.base = sync.OnceValues(func() (*image.Image, error) { return b.makeBase(gctx) })
	g.Go(func() error { _, err := b.base(); return err })
	if env := b.plan.Env; env != nil {
		b.compilers = newCompilers(gctx, b.opts.Store, b.base, env.Environment.Target.Python, max(1, b.opts.Cores))
		defer b.compilers.close()
	}
	made := make([]madeLayer, len(b.plan.Wheels))
	for i, step := range b.plan.Wheels {
		g.Go(func() (err error) {
			made[i], err = b.makeWheels(gctx, step)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	baseImage, err := b.base()
	if err != nil {
		return nil, err
	}
	return b.makeImage(ctx, baseImage, made)
}

func (b *builder) makeBase(ctx context.Context) (*image.Image, error) {
	s := b.plan.Base
	return s.Pinned.Image(ctx, s.Reference, b.plan.Platform, base.Options{Store: b.opts.Store, Fetch: b.opts.Fetch, Offline: b.opts.Offline})
}

func (b *builder) makeWheels(ctx context.Context, s *plan.WheelsStep) (madeLayer, error) {
	if d, m, ok := python.CachedLayer(b.opts.Store, string(s.Key)); ok {
		return madeLayer{d, m}, nil
	}
	lock, err := b.opts.Store.Lock(ctx, "step "+string(s.Key))
	if err != nil {
		return madeLayer{}, err
	}
	defer lock.Unlock()
	if err := b.download(ctx, s.Group.Items); err != nil {
		return madeLayer{}, err
	}
	var compiler python.Compiler
	if s.Bytecode {
		compiler = b.compilers
	}
	if err := b.cpu.Acquire(ctx, 1); err != nil {
		return madeLayer{}, err
	}
	defer b.cpu.Release(1)
	d, m, err := python.BuildLayer(ctx, b.opts.Store, s.Group, s.Target, compiler, s.Options)
	return madeLayer{d, m}, err
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

func (b *builder) makeImage(ctx context.Context, baseImage *image.Image, made []madeLayer) (*image.Image, error) {
	spec := image.Spec{Base: baseImage, Platform: b.plan.Platform, Created: b.plan.Image.Config.Created}
	var manifests []python.Manifest
	for i, m := range made {
		manifests = append(manifests, m.manifest)
		spec.Additions = append(spec.Additions, image.Addition{Layer: m.layer, CreatedBy: "python packages: " + contents(b.plan.Wheels[i].Group)})
	}
	if err := python.CheckConflicts(manifests); err != nil {
		return nil, err
	}
	if env := b.plan.Env; env != nil {
		e := env.Environment
		e.Manifests = manifests
		d, err := python.BuildEnvironment(ctx, b.opts.Store, e, env.Options)
		if err != nil {
			return nil, err
		}
		spec.Additions = append(spec.Additions, image.Addition{Layer: d, CreatedBy: "python environment in /" + e.Target.Root})
	}
	if err := b.checkProtected(ctx, made); err != nil {
		return nil, err
	}
	cuda, err := holdsCUDA(ctx, b.opts.Store, baseImage, manifests)
	if err != nil {
		return nil, err
	}
	spec.Edit = editor(b.plan.Image.Config, cuda)
	task := event.Begin(ctx, "assemble", b.plan.Name, 0)
	im, err := image.Assemble(ctx, b.opts.Store, spec)
	if task.End(err) != nil || b.plan.Image.Slim == nil {
		return im, err
	}
	im, b.slimmed, err = slim.Image(ctx, b.opts.Store, im, *b.plan.Image.Slim)
	return im, err
}

// contents names the packages of a layer for the image's history.
func contents(g python.Group) string {
	text := ""
	for i, it := range g.Items {
		if i > 0 {
			text += ", "
		}
		text += it.Name + "==" + it.Version
	}
	return text
}
