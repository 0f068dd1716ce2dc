package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/uv"
)

// Options says how to lock.
type Options struct {
	Store           *store.Store
	Fetch           *fetch.Client
	Offline         bool
	Upgrade         bool     // take the newest of everything, the base included
	UpgradePackages []string // take the newest of these Python packages

	UV *uv.Release // that resolves Python packages; nil: see [uv.Finder]

	// Without takes files out of an image, see [base.Options].
	Without func(ctx context.Context, im *image.Image, patterns []string) (*image.Image, error)
}

func (o Options) base() base.Options {
	return base.Options{Store: o.Store, Fetch: o.Fetch, Offline: o.Offline, Without: o.Without}
}

// Update brings the lock of r, beside the recipe, up to date, see [Make]. When what is there still holds and nothing shall be upgraded, nothing
// is done. One process at a time locks a recipe.
func Update(ctx context.Context, r *recipe.Recipe, o Options) (*Files, error) {
	if err := o.check(ctx, r); err != nil {
		return nil, err
	}
	busy, err := o.Store.Lock(ctx, "recipe "+Path(r), "makes "+Path(r))
	if err != nil {
		return nil, err
	}
	defer busy.Unlock()
	old := readOld(ctx, r) // now, as another process may have made it while this one waited
	if old != nil && !o.Upgrade && len(o.UpgradePackages) == 0 {
		if drift, err := old.Drift(r); err == nil && len(drift) == 0 {
			return old, nil
		}
	}
	f, err := decide(ctx, r, old, o)
	if err != nil {
		return nil, err
	}
	return f, f.Write(filepath.Dir(Path(r)))
}

// Make decides what r leaves open, and returns what is to be written, see [Files.Write]. What an earlier lock decided stays, as far as r
// still asks for it; old is nil where there is none.
//
// The base is brought into the store on the way: which Python it has is found by reading it.
func Make(ctx context.Context, r *recipe.Recipe, old *Files, o Options) (*Files, error) {
	if err := o.check(ctx, r); err != nil {
		return nil, err
	}
	return decide(ctx, r, old, o)
}

// backendOfTarget is the torch-backend that the target's driver decides.
const backendOfTarget = "target"

func (o Options) check(ctx context.Context, r *recipe.Recipe) error {
	if len(o.UpgradePackages) > 0 {
		if err := upgradable(r); err != nil {
			return fault.Usage(fmt.Errorf("cannot upgrade %s: %w", strings.Join(o.UpgradePackages, ", "), err))
		}
	}
	if err := checkProject(r); err != nil {
		return err
	}
	if r.Python.Asked() && r.Python.TorchBackend == backendOfTarget && r.Target.Driver == "" {
		return fault.Usage(fault.Hint(errors.New(`python.torch-backend = "target": the target names no driver of NVIDIA's`),
			`write the cluster's or driver = "570.124.06" under [target]: nvidia-smi on a compute node shows it; or name the build, such as torch-backend = "cu128"`))
	}
	if r.Python.Asked() && r.Python.Lock == "" {
		if err := reachProjects(r); err != nil {
			return err
		}
		if _, err := settingsOf(r); err != nil {
			return err
		}
		_, err := o.uv(r).Path(ctx) // before the base is made, which takes a while
		return err
	}
	return nil
}

// upgradable says why packages cannot be upgraded one by one.
func upgradable(r *recipe.Recipe) error {
	switch file := cmp.Or(r.Python.Lock, frozen(r)); {
	case r.Conda.Asked() && r.Conda.Lock == "":
		return nil
	case !r.Python.Asked():
		return errors.New("the recipe has no Python packages")
	case file != "":
		return fault.Hint(fmt.Errorf("the recipe's packages are those of %s, which is yours", file),
			"change that file with the tool that wrote it, then run `sconce lock`")
	}
	return nil
}

// readOld returns the lock of r as it is, or nil when it cannot be used.
func readOld(ctx context.Context, r *recipe.Recipe) *Files {
	old, err := Read(r)
	if err == nil {
		return old
	}
	if !errors.Is(err, fs.ErrNotExist) {
		progress.Warn(ctx, fmt.Sprintf("the earlier lock counts for nothing: %v", err), "")
	}
	return nil
}

// decide makes the lock of r, and the lists of packages beside it, unless the user brings them.
func decide(ctx context.Context, r *recipe.Recipe, old *Files, o Options) (f *Files, err error) {
	inputs, err := InputsOf(r)
	if err != nil {
		return nil, err
	}
	platform, err := v1.ParsePlatform(r.Target.Platform)
	if err != nil {
		return nil, err
	}
	f = &Files{name: filepath.Base(Path(r))}
	l := &Lock{Version: formatVersion, Platform: r.Target.Platform, Inputs: inputs}
	f.Lock = l
	pinned, asked, err := pinBase(ctx, r, old, inputs, *platform, o)
	if err != nil {
		return nil, err
	}
	l.Base = *pinned
	onBase := sync.OnceValues(func() (*image.Image, error) { return pinned.Image(ctx, r.BaseReference(), *platform, o.base()) })
	var before *Lock
	if old != nil {
		before = old.Lock
	}
	if err := lockAllComponents(ctx, r, l, before, onBase, o); err != nil {
		return nil, err
	}
	if !r.ResolvesOnBase() {
		l.Base.ImageKey = ""
	}
	if !r.Python.Asked() && len(r.System.Packages) == 0 && !r.Conda.Asked() {
		forgetBase(ctx, r, *platform, o)
		return f, nil
	}
	im, err := onBase()
	if err != nil {
		return nil, err
	}
	defer func() {
		switch {
		case err == nil:
			forgetBase(ctx, r, *platform, o)
		case asked:
			keepBase(ctx, r, pinned, *platform, o)
		}
	}()
	l.Base.Layers = len(im.Layers)
	if len(r.System.Packages) > 0 {
		if l.System, im, err = lockSystem(ctx, r, l, old, im, o); err != nil {
			return nil, err
		}
	}
	k := &locker{recipe: r, old: old, opts: o, image: im}
	if k.settings, err = settingsOf(r); err != nil {
		return nil, err
	}
	k.settings.tell(ctx)
	var kept []keptLogin
	k.logins, kept = loginsOf(r)
	tellKept(ctx, kept)
	k.interpreter = func(ctx context.Context) (*python.Interpreter, error) {
		return interpreterOf(ctx, o.Store, im, *platform)
	}
	switch {
	case r.Python.OnTop != nil:
		k.interpreter = func(ctx context.Context) (*python.Interpreter, error) { return k.standOn(ctx, *platform) }
	case !r.Conda.Asked():
		k.interpreter = func(ctx context.Context) (*python.Interpreter, error) { return k.addTo(ctx, *platform) }
	}
	if r.Conda.Asked() {
		env, packages, text, err := lockConda(ctx, r, old, inputs, im, o)
		if err != nil {
			return nil, err
		}
		f.conda = listing{path: env.path(r), text: text, own: r.Conda.Lock != ""}
		l.Conda, k.condaPackages = env, packages
		k.interpreter = func(context.Context) (*python.Interpreter, error) { return env.condaPython(packages) }
	}
	if !r.Python.Asked() {
		return f, k.checkUpgraded(nil)
	}
	k.tree = sync.OnceValues(func() (*image.Tree, error) { return im.Tree(ctx, o.Store) })
	pylock, err := k.lock(ctx)
	if err != nil {
		return nil, err
	}
	l.Python = &k.python
	f.pylock = listing{path: l.Python.pylock(r), text: pylock, own: r.Python.Lock != ""}
	return f, nil
}

// lockAllComponents pins what components are built from and with.
func lockAllComponents(ctx context.Context, r *recipe.Recipe, l, old *Lock, im func() (*image.Image, error), o Options) error {
	if len(r.Source)+len(r.Component) == 0 {
		return nil
	}
	if err := warnUnused(ctx, r); err != nil {
		return err
	}
	var err error
	if l.Source, err = lockSources(ctx, r, l, old, im, o); err != nil {
		return err
	}
	l.Component, err = lockComponents(ctx, r, l, old, im, o)
	return err
}

// pinBase finds what a recipe is based on, and says whether mirrors were asked for it within the hour: what an old lock says may be months old.
func pinBase(ctx context.Context, r *recipe.Recipe, old *Files, now Inputs, platform v1.Platform, o Options) (pinned *base.Pinned, asked bool, err error) {
	if old != nil && !o.Upgrade && r.Base.Recipe == "" && old.Platform == r.Target.Platform && slices.Equal(oneBase(old.Inputs.Base), oneBase(now.Base)) {
		kept := old.Base
		kept.Remove = r.Base.Remove
		return &kept, false, nil
	}
	if kept, at := base.Kept(o.Store, r, platform); kept != nil && !o.Upgrade {
		progress.Notef(ctx, fmt.Sprintf("the base's packages are those that the lock before, which failed, found %s ago; `sconce lock --upgrade` asks again", time.Since(at).Round(time.Second)))
		return kept, true, nil
	}
	pinned, err = base.Pin(ctx, r, platform, o.base())
	return pinned, true, err
}

// keepBase keeps the packages of a base that is made and good for the next try, when the lock has failed for another reason. Without that
// the next try costs more time, and is as good.
func keepBase(ctx context.Context, r *recipe.Recipe, pinned *base.Pinned, platform v1.Platform, o Options) {
	if err := base.Keep(o.Store, r, platform, pinned); err != nil && ctx.Err() == nil {
		progress.Notef(ctx, fmt.Sprintf("the base's packages are not kept for the next try: %v", err))
	}
}

// forgetBase drops what was kept, as a lock has been made.
func forgetBase(ctx context.Context, r *recipe.Recipe, platform v1.Platform, o Options) {
	if err := base.Forget(o.Store, r, platform); err != nil && ctx.Err() == nil {
		progress.Notef(ctx, fmt.Sprintf("the base's packages that were kept for this try stay kept: %v", err))
	}
}

// oneBase drops from inputs what is taken out of the base.
func oneBase(inputs []string) []string {
	return slices.DeleteFunc(slices.Clone(inputs), func(line string) bool { return strings.HasPrefix(line, removes) })
}

// locker locks the Python packages of one recipe.
type locker struct {
	recipe   *recipe.Recipe
	old      *Files // nil: none
	opts     Options
	logins   Logins
	settings *recipeSettings // of uv; nil: none
	handing  *handing        // what uv reads of the recipe's requirements
	image    *image.Image    // base and system packages
	tree     func() (*image.Tree, error)
	python   Python // what is known so far

	// What the packages are for: the base's Python, or that of the conda environment with what this brings of Python packages.
	interpreter   func(context.Context) (*python.Interpreter, error)
	base          *python.Base // under an environment on top of it; nil: it is none
	condaPackages []conda.Package
	stubs         string // the directory with what uv is told of the latter, "" for none

	sources   *sources                      // what uv is told of sources
	infos     sync.Map                      // what sources say ([python.SourceInfo]), see placeOf
	reader    *sourceReader                 // answers for sources while uv runs
	task      *progress.Task                // that uv is run for; nil: none
	fallbacks []unusableSource              // what may come as a wheel only, beside what the recipe says
	lenient   bool                          // a source that cannot be used counts as one that depends on nothing, to see what would have been
	builds    map[string][]BuildRequirement // build requirements that were resolved

	strong map[string]store.Digest // of files whose index gives no sha256, by their address

	uses string // the Python of this machine that uv works with; "": none is known
}

// lock fills in k.python and returns the text of the package lock: uv's answer, or the user's own.
func (k *locker) lock(ctx context.Context) ([]byte, error) {
	found, err := k.interpreter(ctx)
	if err != nil {
		return nil, err
	}
	k.python = Python{
		Executable: found.Executable, Version: found.Version, Prefix: found.Prefix, Implementation: found.Implementation,
		Platform: found.Platform, Glibc: found.Glibc, Musl: found.Musl, Environment: k.python.Environment,
	}
	switch {
	case k.base != nil:
		remove, err := k.meetBase(*k.base)
		if err != nil {
			return nil, err
		}
		defer remove()
	case k.recipe.Conda.Asked():
		remove, err := k.meetConda(ctx, *found)
		if err != nil {
			return nil, err
		}
		defer remove()
	default:
		k.protect(ctx, *found)
	}
	if k.recipe.Python.Lock != "" {
		return k.take(ctx)
	}
	return k.resolve(ctx)
}

// take takes the user's own package lock as it is.
func (k *locker) take(ctx context.Context) ([]byte, error) {
	k.python.File = k.recipe.Python.Lock
	text, err := readFile(k.recipe.Resolve(k.python.File))
	if err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	return text, k.settle(ctx, text)
}

// resolve asks uv.
func (k *locker) resolve(ctx context.Context) ([]byte, error) {
	asked, err := requested(k.recipe)
	if err != nil {
		return nil, err
	}
	if err := k.checkRequested(ctx, asked); err != nil {
		return nil, err
	}
	k.python.Requested = requestedNames(asked)
	k.python.File = filepath.Base(pylockPath(k.recipe))
	var first error
	for range maxFallbacks {
		text, err := k.uv(ctx)
		if err == nil {
			text, err = k.checkHashes(ctx, text)
		}
		if err == nil {
			err = k.settle(ctx, text)
		}
		if err == nil {
			return text, errors.Join(k.tellSources(ctx, text), tellProject(ctx, k.recipe))
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil || !k.fallBack(err) {
			break
		}
	}
	return nil, first
}

// settle checks that the package lock can be built from, and notes what a build needs to know beside it.
func (k *locker) settle(ctx context.Context, text []byte) error {
	k.python.Digest = store.DigestOf(text)
	wheels, err := k.python.choose(k.recipe, text)
	if err != nil {
		return err
	}
	if err := errors.Join(k.checkReplaced(wheels), k.checkTwice(wheels)); err != nil {
		return err
	}
	if err := k.pinSources(ctx, text); err != nil {
		return err
	}
	if err := k.checkUpgraded(wheels); err != nil {
		return err
	}
	return k.askSizes(ctx, wheels)
}

// checkUpgraded makes sure that what was to be upgraded is there: a slip would otherwise go unseen.
func (k *locker) checkUpgraded(wheels []Wheel) error {
	names := make(map[string]bool)
	for _, w := range wheels {
		names[python.NormalizeName(w.Name)] = true
	}
	for _, c := range k.python.Compiled {
		names[c.Name] = true
	}
	for _, p := range k.condaPackages {
		names[python.NormalizeName(p.Name)] = true
	}
	if k.old != nil && k.old.Python != nil { // what an upgrade drops was upgraded
		if before, err := k.old.packages(k.recipe); err == nil {
			for _, p := range before {
				names[python.NormalizeName(p.Name)] = true
			}
		}
	}
	for _, wanted := range k.opts.UpgradePackages {
		name := python.NormalizeName(requirementName(wanted))
		if names[name] {
			continue
		}
		err := fmt.Errorf("cannot upgrade %q: the lock has no such package", wanted)
		if guard, ok := k.python.protects(name); ok {
			err = fmt.Errorf("cannot upgrade %s: it is the base's own, %s", guard.Name, guard.Version)
			return fault.Usage(fault.Hint(err, "take a newer base, or allow it with `protect = []` under [python]"))
		}
		return fault.Usage(fault.Hint(err, didYouMean(name, names)))
	}
	return nil
}

// didYouMean offers the name that is nearest, if one is near.
func didYouMean(name string, names map[string]bool) string {
	if best := spelling.Nearest(name, slices.Sorted(maps.Keys(names))); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "the packages are those of pylock.toml"
}
