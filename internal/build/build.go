// Package build runs a plan: it takes what the store already has under a step's key, and makes the rest in parallel.
//
// Steps run as soon as what they need is there. Downloads are bounded by the fetch client; work that needs the processor
// is bounded by the cores that are really available. Each step is made under a lock named after its key, so two builds
// at once, in any number of processes, make it once.
package build

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// Options says with what to build.
type Options struct {
	Store   *store.Store
	Fetch   *fetch.Client
	Offline bool
	Cores   int              // that are really available; 0: one
	Wheels  []lock.Wheel     // where the plan's wheels come from
	Protect []lock.Protected // packages of the base that wheels must get along with

	Reach reach.Bounds // which files of this machine sources may lead to

	Python string // the interpreter of this machine that compiles byte code; "": the image's own does

	// Open opens a directory that the plan names.
	Open func(dir string) (*fileop.Context, error)

	Memory    int64         // that is really available, in bytes; 0: not known
	WantBuilt bool          // Result.Built is wanted, for which an image that is there already is put together once more
	Again     bool          // steps are made again, whatever the store and Shared have
	Shared    *store.Shared // where other machines keep what steps made; nil: nowhere

	// For commands; see execop.Runner.
	Secrets     map[string]func() ([]byte, error)
	SSH         map[string]string
	Pass        []string
	Host        *hostconfig.Config
	HostNetwork bool
	OnFailure   func(ctx context.Context, f *execop.Failure, o sandbox.Options)

	// CondaRequests says how conda packages are downloaded; nil: from their addresses.
	CondaRequests func([]conda.Package) ([]fetch.Request, error)

	// Authorize gives the headers with which a wheel's address may be read; nil: none are needed.
	Authorize func(address string) http.Header
}

// Result is what a build gives.
type Result struct {
	Image   *image.Image
	Fresh   bool          // nothing had to be made
	Built   []python.Item // wheels of packages that had none, made now or before; see Options.WantBuilt
	Slimmed *slim.Report  // what slimming took out, if there was anything to slim now
}

// Run makes the image of p.
func Run(ctx context.Context, p *plan.Plan, o Options) (*Result, error) {
	var b *builder
	once := store.Once[store.Digest]{Kind: store.KindImageStep, Key: string(p.Image.Key), Again: o.Again || o.WantBuilt, Does: "builds the same image"}
	im, found, err := image.Once(ctx, o.Store, once, func(ctx context.Context) (*image.Image, error) {
		b = newBuilder(p, o)
		if err := b.checkRoom(ctx); err != nil {
			return nil, err
		}
		return b.run(ctx)
	})
	switch {
	case err != nil:
		return nil, err
	case found:
		return &Result{Image: im, Fresh: true}, remember(o.Store, p, nil)
	}
	if err := remember(o.Store, p, b.took); err != nil {
		return nil, err
	}
	return &Result{Image: im, Slimmed: b.slimmed, Built: b.builtItems()}, nil
}

// builder is one run of a plan.
type builder struct {
	plan    *plan.Plan
	opts    Options
	urls    map[store.Digest]lock.Wheel
	runner  *execop.Runner
	cpu     *semaphore.Weighted // how many layers are made at once
	runs    *semaphore.Weighted // how many commands run at once
	jobs    *wheelbuild.Jobs    // how many compilers they may run
	slimmed *slim.Report        // once the image is made

	mu       sync.Mutex                 // of the next four
	built    []python.Item              // wheels of packages that had none
	took     map[plan.Key]time.Duration // how long steps took that were made now
	stages   map[*plan.Stage]func() (*made, error)
	contexts map[contextOf]func() (layer.Descriptor, error)
}

// layersAtOnce is how many layers of wheels are made side by side. One keeps all cores busy while a large file passes
// through; a second fills the gaps while the first one's wheels are opened and its blob is synced.
const layersAtOnce = 2

// memoryOfRun is what one command is expected to want when several run at once, in bytes: that of a few compilers.
const memoryOfRun = 2 << 30

// runsAtOnce is how many commands of independent stages run side by side: no more than there are cores and memory.
func runsAtOnce(o Options) int64 {
	n := int64(max(1, o.Cores))
	if o.Memory > 0 {
		n = min(n, max(1, o.Memory/memoryOfRun))
	}
	return n
}

func newBuilder(p *plan.Plan, o Options) *builder {
	b := &builder{
		plan: p, opts: o, jobs: wheelbuild.NewJobs(o.Cores, o.Memory), urls: make(map[store.Digest]lock.Wheel),
		cpu: semaphore.NewWeighted(layersAtOnce), runs: semaphore.NewWeighted(runsAtOnce(o)),
		stages: make(map[*plan.Stage]func() (*made, error)), took: make(map[plan.Key]time.Duration), contexts: make(map[contextOf]func() (layer.Descriptor, error)),
	}
	b.runner = &execop.Runner{
		Store: o.Store, Layer: p.Layer, Secrets: o.Secrets, SSH: o.SSH, Pass: o.Pass, Host: o.Host, HostNetwork: o.HostNetwork, OnFailure: o.OnFailure,
	}
	for _, w := range o.Wheels {
		b.urls[w.Digest] = w
	}
	return b
}

func (b *builder) run(ctx context.Context) (*image.Image, error) {
	g, gctx := errgroup.WithContext(ctx)
	b.begin(gctx, g, b.plan.Stage)
	if err := g.Wait(); err != nil {
		return nil, err
	}
	m, err := b.stage(ctx, b.plan.Stage)
	if err != nil {
		return nil, err
	}
	return b.makeImage(ctx, m)
}

func (b *builder) addBuilt(items []python.Item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.built = append(b.built, items...)
}

func (b *builder) builtItems() []python.Item {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.built)
}

func (b *builder) makeImage(ctx context.Context, m *made) (*image.Image, error) {
	how := b.plan.Image
	spec := image.Spec{Base: m.base, Platform: b.plan.Platform, Created: how.Config.Created, Additions: m.additions}
	if how.Exact != nil {
		spec.Author, spec.StartInterval = how.Author, how.Start
		spec.Edit = func(c *v1.Config) { *c = *how.Exact.DeepCopy() }
	} else {
		cuda, err := b.holdsCUDA(ctx, m)
		if err != nil {
			return nil, err
		}
		spec.Edit = editor(how.Config, m.conda, cuda)
	}
	task := progress.Begin(ctx, "assemble", cmp.Or(b.plan.Name, "image"), 0)
	im, err := image.Assemble(ctx, b.opts.Store, spec)
	if task.End(err) != nil || how.Slim == nil {
		return im, err
	}
	im, b.slimmed, err = slim.Image(ctx, b.opts.Store, im, *how.Slim)
	return im, err
}
