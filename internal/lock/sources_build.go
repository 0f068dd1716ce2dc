package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/tempdir"
	"sconce.dev/sconce/internal/units"
	"sconce.dev/sconce/internal/wheelbuild"
	"sconce.dev/sconce/internal/wheelbuild/catalog"
)

// Compiled says how a package of the lock that has no wheel is built into one.
type Compiled struct {
	Name      string             `toml:"name"` // normalised
	Version   string             `toml:"version,omitempty"`
	Isolation bool               `toml:"isolation"`
	Asked     []string           `toml:"asked,multiline"`   // what was resolved to Requires
	Against   []string           `toml:"against,omitempty"` // packages of the image that the build needs, torch above all
	Requires  []BuildRequirement `toml:"requires,omitempty"`
	Base      *CompileBase       `toml:"base,omitempty"` // nil: it is built in the image itself
	Pins      []string           `toml:"pins,omitempty"` // files of the source that say by hash what a build with network downloads
}

// Compile is a package of the lock that is built, and what the recipe wants of it besides.
type Compile struct {
	wheelbuild.Package
	Requested bool         // the user asked for it, it is not only a dependency
	Base      *CompileBase // the image to build it in, see [CompileReference]; nil is the recipe's own
}

func (p *Python) compile(r *recipe.Recipe, pkg python.Package) (Compile, error) {
	name := python.NormalizeName(pkg.Name)
	i := slices.IndexFunc(p.Compiled, func(c Compiled) bool { return c.Name == name })
	if i < 0 {
		return Compile{}, fault.Hint(fmt.Errorf("the lock does not say how %s is built", pkg.Name), "lock again: `sconce lock`")
	}
	how, own := p.Compiled[i], r.Python.Compile[name]
	facts, _ := catalog.Lookup(name)
	env := facts.Environment(r.Target.GPU)
	if _, list, _ := listOf(r, pkg); list != nil {
		maps.Copy(env, list.Variables)
	}
	maps.Copy(env, own.Env)
	memory := own.JobMemory()
	if memory == 0 && facts.MemoryPerJob != "" {
		memory, _ = units.ParseSize(facts.MemoryPerJob)
	}
	c := Compile{
		Package: wheelbuild.Package{
			Name: name, Version: how.Version, Source: *pkg.Source, Isolated: how.Isolation, Against: how.Against, Env: env,
			Archs: r.Target.GPU, CUDA: usesCUDA(own, facts), Network: facts.Network || own.Network, MemoryPerJob: memory, Jobs: own.Jobs,
		},
		Requested: slices.Contains(p.Requested, name), Base: how.Base,
	}
	for _, guard := range p.Protected {
		if slices.Contains(how.Against, guard.Name) {
			c.BaseVersions = set(c.BaseVersions, guard.Name, guard.Version)
		}
	}
	for _, x := range p.Conda {
		if slices.Contains(how.Against, x.Name) {
			c.BaseVersions = set(c.BaseVersions, x.Name, x.Version+" "+x.By)
		}
	}
	for _, w := range how.Requires {
		url := w.URL
		if !strings.Contains(url, "://") {
			url = r.Resolve(url)
		}
		item := python.Item{Name: w.Name, Version: w.Version, File: w.File, Digest: w.Digest, Size: w.Size}
		c.Requires = append(c.Requires, wheelbuild.Wheel{Item: item, URL: url})
	}
	return c, nil
}

func set(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = make(map[string]string)
	}
	m[key] = value
	return m
}

// pinSources resolves what is needed to build the packages of the package lock that have no wheel.
func (k *locker) pinSources(ctx context.Context, text []byte) error {
	packages, err := k.python.read(k.recipe, text)
	if err != nil {
		return err
	}
	k.python.Compiled = nil
	image := k.imagePackages(packages)
	built := slices.DeleteFunc(slices.Clone(packages), func(p python.Package) bool { return p.Source == nil })
	for _, p := range built {
		if err := k.checkReplaced([]Wheel{{Item: python.Item{Name: p.Name, Version: p.Version}}}); err != nil {
			return err
		}
	}
	if err := k.readSources(ctx, built); err != nil {
		return err
	}
	var unusable []unusableSource
	for _, p := range built {
		c, err := k.pinSource(ctx, p, image)
		k.buildAfter(&c, p, built)
		var bad *unusableError
		switch {
		case errors.As(err, &bad):
			unusable = append(unusable, bad.sources...)
		case err != nil:
			return err
		}
		k.python.Compiled = append(k.python.Compiled, c)
	}
	if len(unusable) > 0 {
		return &unusableError{unusable}
	}
	return nil
}

// readSources brings sources side by side and reads what they say.
func (k *locker) readSources(ctx context.Context, packages []python.Package) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(k.opts.Fetch.Jobs())
	for _, p := range packages {
		g.Go(func() error {
			_, err := k.sourceInfo(ctx, p)
			return err
		})
	}
	return g.Wait()
}

// imagePackages are the versions of what the image will have, by normalised name.
func (k *locker) imagePackages(packages []python.Package) map[string]string {
	image := make(map[string]string)
	for _, p := range k.python.Protected {
		image[p.Name] = p.Version
	}
	for _, p := range k.python.Conda {
		image[p.Name] = p.Version
	}
	for _, p := range packages {
		image[python.NormalizeName(p.Name)] = p.Version
	}
	return image
}

func (k *locker) pinSource(ctx context.Context, p python.Package, image map[string]string) (Compiled, error) {
	name := python.NormalizeName(p.Name)
	info, err := k.sourceInfo(ctx, p)
	if err != nil {
		return Compiled{}, err
	}
	own := k.recipe.Python.Compile[name]
	facts, isKnown := catalog.Lookup(name)
	c := Compiled{Name: name, Version: cmp.Or(info.Version, p.Version), Isolation: true}
	if p.Source.Direct {
		c.Version = info.Version // the package lock's may stand for one that only the build will tell
	}
	switch {
	case own.Isolation != nil:
		c.Isolation = *own.Isolation
	case k.unisolated(p):
		c.Isolation = false
	case isKnown:
		c.Isolation = facts.Isolation
	}
	unusable := func(err error) (Compiled, error) {
		return c, &unusableError{[]unusableSource{{name, p.Version, err}}}
	}
	asked := withCompilerParts(slices.Concat(info.BuildRequires, facts.Requires, own.Requires))
	if usesCUDA(own, facts) && !c.Isolation && own.Base == "" {
		if asked, err = k.withToolkit(name, asked, image); err != nil {
			return unusable(err)
		}
	}
	if c.Isolation {
		c.Asked = distinct(asked)
	} else if err := k.splitRequirements(ctx, &c, asked, image); err != nil {
		return unusable(err)
	}
	if facts.Network || own.Network {
		c.Pins = info.Pins
		warnUnpinned(ctx, c)
	}
	if c.Base, err = k.pinCompileBase(ctx, name); err != nil {
		return c, err
	}
	if c.Requires, err = k.resolveBuild(ctx, c); err != nil {
		err = fmt.Errorf("what is needed to build %s: %w", p.Name, err)
		var refusal *ResolutionError
		if errors.As(err, &refusal) {
			return unusable(err)
		}
	}
	return c, err
}

// warnUnpinned tells of a package that may download what it likes: Cargo and Go hold what comes against the hashes in Pins.
func warnUnpinned(ctx context.Context, c Compiled) {
	if len(c.Pins) == 0 {
		progress.Warn(ctx, fmt.Sprintf("what %s downloads while it is built is pinned by nothing: its source has neither a Cargo.lock nor a go.sum", c.Name),
			"a wheel that is made once is kept, and [cache] registry shares it; a source that brings what it needs can do without network")
	}
}

// splitRequirements divides what a build that sees the image asks for into what the image has and what has to be there
// besides. Another version of what was built against torch would not be what the image runs with: such packages are the
// image's whatever the source says of their version.
func (k *locker) splitRequirements(ctx context.Context, c *Compiled, asked []string, image map[string]string) error {
	against := map[string]bool{}
	if _, ok := image["torch"]; ok {
		against["torch"] = true
	}
	var rest []string
	for _, text := range distinct(asked) {
		r, err := python.ParseRequirement(text)
		if err != nil {
			return fmt.Errorf("what is needed to build %s: %w", c.Name, err)
		}
		if !k.applies(r) {
			continue
		}
		name := python.NormalizeName(r.Name)
		version, there := image[name]
		fits := there && Protected{Name: name, Version: version}.Fits(r) != Misfit
		family := slices.Contains(torchFamily, name)
		switch {
		case name == c.Name:
		case fits:
			against[name] = true
		case there && family:
			progress.Warn(ctx, fmt.Sprintf("%s asks to be built with %q, and is built against the image's %s", c.Name, text, version), "ask for the version that it wants, or for another version of it")
			against[name] = true
		case family:
			return fault.Hint(fmt.Errorf("%s is built against %s, and the image has none", c.Name, name),
				fmt.Sprintf("add %s to packages under [python], or build it by itself: isolation = true under [python.compile.%s]", name, c.Name))
		default:
			rest = append(rest, text)
		}
	}
	c.Asked, c.Against = rest, slices.Sorted(maps.Keys(against))
	return nil
}

// distinct returns requirements sorted and once each.
func distinct(requirements []string) []string {
	out := []string{}
	for _, r := range requirements {
		out = append(out, strings.TrimSpace(r))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// resolveBuild resolves build requirements to wheels. Those of the earlier lock are kept when nothing else is asked.
func (k *locker) resolveBuild(ctx context.Context, c Compiled) ([]BuildRequirement, error) {
	if len(c.Asked) == 0 {
		return nil, nil
	}
	if kept, ok := k.earlier(c); ok {
		return kept, nil
	}
	key := strings.Join(c.Asked, "\n") + "\n\n" + strings.Join(c.Against, "\n")
	if done, ok := k.builds[key]; ok {
		return done, nil
	}
	task := progress.Begin(ctx, "resolve", "build requirements of "+c.Name, 0)
	k.task = task
	made, err := k.askBuild(ctx, c)
	if task.End(err) != nil {
		return nil, err
	}
	if k.builds == nil {
		k.builds = make(map[string][]BuildRequirement)
	}
	k.builds[key] = made
	return made, nil
}

func (k *locker) earlier(c Compiled) ([]BuildRequirement, bool) {
	if k.opts.Upgrade || k.old == nil || k.old.Python == nil || k.old.Python.Version != k.python.Version || k.old.Python.Platform != k.python.Platform {
		return nil, false
	}
	for _, old := range k.old.Python.Compiled {
		if old.Name == c.Name && slices.Equal(old.Asked, c.Asked) && slices.Equal(old.Against, c.Against) {
			return old.Requires, true
		}
	}
	return nil, false
}

func (k *locker) askBuild(ctx context.Context, c Compiled) ([]BuildRequirement, error) {
	dir, remove, err := tempdir.Make("lock")
	if err != nil {
		return nil, err
	}
	defer remove()
	out := filepath.Join(dir, "pylock.build.toml")
	args := []string{
		"pip", "compile", "--format", "pylock.toml", "--python-version", k.python.Version, "--python-platform", uvPlatform(&k.python),
		"--only-binary", ":all:", "--quiet", "--custom-compile-command", markedCommand(out), "--output-file", out, "-",
	}
	if len(c.Against) > 0 {
		file := filepath.Join(dir, "excludes.txt")
		if err := os.WriteFile(file, []byte(strings.Join(c.Against, "\n")+"\n"), 0o644); err != nil {
			return nil, err
		}
		args = append(args, "--excludes", file)
	}
	if k.opts.Offline {
		args = append(args, "--offline")
	}
	if args, err = k.withSettings(dir, args, nil); err != nil {
		return nil, err
	}
	if err := k.runUV(ctx, dir, c.Asked, args); err != nil {
		return nil, err
	}
	text, err := k.readOutput(ctx, out)
	if err != nil {
		return nil, err
	}
	packages, err := k.selectWheels(text)
	if err != nil {
		return nil, err
	}
	made := []BuildRequirement{}
	for _, p := range packages {
		w := p.Wheel
		made = append(made, BuildRequirement{
			Name: p.Name, Version: p.Version, File: w.Name, URL: cmp.Or(w.URL, w.Path), Digest: w.Digest, Size: w.Size,
		})
	}
	return made, nil
}
