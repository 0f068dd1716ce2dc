package engine

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/cpython"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// Plan is what is to be built, from whatever it was written as, and what the build of it needs besides. It is closed when it is
// not used any more.
type Plan struct {
	*plan.Plan
	Recipe *Recipe // nil for a Containerfile
	Below  *Plan   // of the recipe that this one is based on; nil: it is based on something else

	Canonical string // where in a registry the image is, once somebody has built it; "": nobody said

	trust []*attest.PublicKey // see PlanOptions.Trust

	contexts  *contexts
	means     build.Options // what is the plan's own: where its wheels come from, its remote cache
	unchecked bool          // nobody looks whether the image will run on its target
	untold    []LockWarning // of a lock that was found, for the build

	everywhere bool // see PlanOptions.Anywhere
	anywhere   bool // the key is that of an image that only a machine of its platform makes
}

// Close closes the directories that the build reads from.
func (p *Plan) Close() {
	if p.Below != nil {
		p.Below.Close()
	}
	p.contexts.close()
}

// PlanOptions decide about an image besides its recipe.
type PlanOptions struct {
	Locked  bool // only a lock that fits will do; else one is made
	NoCheck bool // do not look whether the image will run on its target; a label says so

	// Anywhere plans what a machine of the image's platform would make, so that the keys are the same on all machines.
	Anywhere bool
	// Canonical says where in a registry the image of a recipe is that has been built; nil: nowhere.
	Canonical func(r *Recipe, key plan.Key) string
	// Trust are keys of which one must have signed that what is there belongs there; none: nobody signs.
	Trust []*attest.PublicKey
}

// Plan plans the image of a recipe, and locks it where that is missing.
func (s *Session) Plan(ctx context.Context, r *Recipe, o PlanOptions) (*Plan, error) {
	kept, err := r.slimming()
	if err != nil {
		return nil, err
	}
	below, err := s.planBelow(ctx, r, o)
	if err != nil {
		return nil, err
	}
	p := &Plan{Recipe: r, Below: below, contexts: newContexts(), unchecked: o.NoCheck, everywhere: o.Anywhere, trust: o.Trust}
	if err = s.planOn(ctx, p, o, kept); err != nil {
		p.Close()
		return nil, err
	}
	if o.Canonical != nil {
		p.Canonical = o.Canonical(r, p.Image.Key)
	}
	return p, nil
}

// planOn plans the image of p's recipe on what is below it.
func (s *Session) planOn(ctx context.Context, p *Plan, o PlanOptions, kept *slim.Options) error {
	r := p.Recipe
	l, err := s.fittingLock(ctx, r, p.Below, o.Locked)
	if err != nil {
		return err
	}
	if l.Fresh && !o.NoCheck {
		p.untold = s.driverWarnings(l, r)
	}
	how := plan.Options{Slim: kept, Unchecked: o.NoCheck, GPU: r.Target.GPU, RunsHere: o.Anywhere || runsHere(l.Platform)}
	p.anywhere = o.Anywhere && (l.Python != nil || l.Lock.Conda != nil) && r.Python.CompilesBytecode()
	if p.Below != nil {
		how.BaseLayers, how.BaseName = p.Below.Depth(), p.Below.Name
	}
	var compiler host.Python
	if !how.RunsHere && r.Python.CompilesBytecode() {
		compiler = compilerHere(ctx, l)
		how.Compiler = compiler.Version
	}
	how.Compiles, how.Conda = l.Compiles, l.Conda
	if how.Sources, err = s.directorySources(ctx, how.Compiles); err != nil {
		return err
	}
	how.Open = p.contexts.Open
	if p.Plan, err = plan.New(ctx, r.pinned, l.Lock, l.Wheels, how); err != nil {
		return err
	}
	p.means, err = s.means(r, l)
	p.means.Open, p.means.Python = how.Open, compiler.Path
	return err
}

// compilerHere finds a Python of this machine that makes byte code for an image whose own Python does not run here.
func compilerHere(ctx context.Context, l *Locked) host.Python {
	version := l.pythonVersion()
	if version == "" {
		return host.Python{}
	}
	found, ok := host.FindPython(ctx, version)
	minor := cpython.Minor(version)
	switch {
	case !ok:
		progress.Warn(ctx, fmt.Sprintf("no byte code is compiled: programs for %s do not run on this machine, which has no Python %s of its own either", l.Platform, minor),
			fmt.Sprintf("imports are slower the first time: install one here (`uv python install %s`), build on a machine of that kind, or set bytecode = false under [python] to silence this", quote.Word(minor)))
	case found.Version != version:
		progress.Notef(ctx, fmt.Sprintf("byte code is compiled by %s of this machine, Python %s; the image has %s, which does not run here", found.Path, found.Version, version))
	}
	return found
}

// pythonVersion is the full version of the image's Python that packages are laid down for, "" without one.
func (l *Locked) pythonVersion() string {
	if l.Python != nil {
		return l.Python.Version
	}
	return conda.PythonOf(l.Conda.Packages).Version
}

// means are what the build of a recipe needs besides its plan.
func (s *Session) means(r *Recipe, l *Locked) (build.Options, error) {
	r.pinned.LoginHosts = s.logins
	o := build.Options{Wheels: l.Wheels, Reach: r.Reach, Authorize: lock.Authorizer(r.pinned), CondaRequests: func(packages []conda.Package) ([]fetch.Request, error) {
		return lock.CondaRequests(s.Fetch, r.pinned, packages)
	}}
	if l.Python != nil {
		o.Protect = l.Python.Protected
	}
	if r.Cache.Registry == "" || s.Offline {
		return o, nil
	}
	var err error
	if o.Shared, err = s.sharedCache(r.Cache); err != nil {
		return o, fmt.Errorf("%s: cache.registry: %w", r.Path, err)
	}
	return o, nil
}

// runsHere reports whether programs of a platform run on this machine.
func runsHere(platform string) bool { return platform == "linux/"+runtime.GOARCH }

// slimming says what is taken out of the recipe's image; nil is nothing.
func (r *Recipe) slimming() (*slim.Options, error) {
	o := slim.Options{Strip: r.Slim.Strip, Remove: r.Slim.Remove, PackageCaches: r.Slim.PackageCaches}
	if !r.Slim.GPU {
		if !o.Strip && !o.PackageCaches && len(o.Remove) == 0 {
			return nil, nil
		}
		return &o, nil
	}
	if len(r.Target.GPU) == 0 {
		err := fmt.Errorf("%s: slim.gpu: the profile of cluster %s names no GPUs", r.Path, r.Target.Name)
		return nil, fault.Usage(fault.Hint(err, `add gpu = ["9.0"], or what the GPUs are, under [target]`))
	}
	var err error
	if o.GPUs, err = fatbin.ParseGPUs(r.Target.GPU); err != nil {
		return nil, fmt.Errorf("%s: slim.gpu: %w", r.Path, err)
	}
	o.PTX, o.DropRelocatable = slim.PTX(r.Slim.PTX), r.Slim.Relfatbin == "drop"
	return &o, nil
}

// contexts are the directories that a build reads files from, each opened once. Stages made side by side ask for them.
type contexts struct {
	mu   sync.Mutex
	open map[string]*fileop.Context
}

func newContexts() *contexts { return &contexts{open: make(map[string]*fileop.Context)} }

// add makes a directory known that was opened in its own way.
func (c *contexts) add(dir string, from *fileop.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[dir] = from
}

// Open opens a directory unless it is open.
func (c *contexts) Open(dir string) (*fileop.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from := c.open[dir]; from != nil {
		return from, nil
	}
	from, err := fileop.OpenContext(dir, "")
	if err == nil {
		c.open[dir] = from
	}
	return from, err
}

func (c *contexts) close() {
	for _, from := range c.open {
		from.Close()
	}
}

// directorySources says what the directories hold at this moment that packages are built from.
func (s *Session) directorySources(ctx context.Context, compiles []lock.Compile) (map[string]store.Digest, error) {
	digests := make(map[string]store.Digest)
	for _, c := range compiles {
		if c.Source.Kind != python.SourceDirectory {
			continue
		}
		blob, err := wheelbuild.Sources{Store: s.Store, Fetch: s.Fetch}.Bring(ctx, c.Name, c.Source)
		if err != nil {
			return nil, err
		}
		digests[c.Name] = blob.Digest
	}
	return digests, nil
}
