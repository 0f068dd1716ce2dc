package plan

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
)

// venvRoot is where the virtual environment of an image lies, relative to the root.
const venvRoot = "opt/venv"

// Options are what decides about an image besides the recipe and its lock.
type Options struct {
	RunsHere bool   // programs of the image's platform run on this machine: byte code is compiled by the image's own Python
	Compiler string // where they do not: the full version of a Python of this machine that compiles byte code for the image's; "" is none

	Conda    Conda                   // what the conda environment is made of, where the lock has one
	Compiles []lock.Compile          // packages that have to be built
	Sources  map[string]store.Digest // of those that are directories of this machine, by the package's name

	// Open opens a directory that steps copy from or bind, whose digests are in their keys. The plan names directories and
	// holds none of them open.
	Open      func(dir string) (*fileop.Context, error)
	Slim      *slim.Options // what device code stays in the image; nil: all of it
	GPU       []string      // compute capabilities of the target, as TORCH_CUDA_ARCH_LIST has them: what steps compile for
	Unchecked bool          // nobody looks whether the image will run on its target, which a label says

	BaseLayers int    // of a base that is a recipe's image: how many its plan has
	BaseName   string // likewise: NAME:VERSION
}

// Conda is what a conda environment is made of.
type Conda struct {
	Packages  []conda.Package
	Variables []string // of environment files, NAME=VALUE
	Lock      []byte   // the packages as a lock, for the image
}

// New plans the image that r asks for and l pins.
func New(ctx context.Context, r *recipe.Recipe, l *lock.Lock, wheels []lock.Wheel, o Options) (*Plan, error) {
	platform, err := v1.ParsePlatform(l.Platform)
	if err != nil {
		return nil, fmt.Errorf("the lock's platform: %w", err)
	}
	modTime, err := fixedTime()
	if err != nil {
		return nil, err
	}
	compression := layer.Compression(r.Image.Compression)
	n := &planner{base: baseOf(r, l, o), recipe: r, lock: l, wheels: wheels, opts: o, platform: *platform, layer: layer.Options{Compression: compression, ModTime: modTime}}
	stage, err := n.stage(ctx)
	if err != nil {
		return nil, err
	}
	p := &Plan{Name: stage.Label, Platform: *platform, Stage: stage}
	n.planImage(p)
	return p, nil
}

// planner plans the image of one recipe.
type planner struct {
	base     base.Pinned
	recipe   *recipe.Recipe
	lock     *lock.Lock
	wheels   []lock.Wheel
	opts     Options
	platform v1.Platform
	layer    layer.Options
	built    map[string]*Stage // what components install, by name
}

// stage puts the steps in the order of their layers: what the base and its package manager bring, conda's packages, components, Python
// packages, which may be compiled against components, then what the recipe does itself. How many layers the wheels get is known once the others are counted.
func (n *planner) stage(ctx context.Context) (*Stage, error) {
	own, err := n.recipeSteps(ctx)
	if err != nil {
		return nil, err
	}
	s := newStage(n.recipe.Name+":"+n.recipe.Version, nil, n.layer)
	s.add(&Step{Title: n.baseTitle(), Op: &Base{Pinned: n.base, Platform: n.platform, Reference: n.recipe.BaseReference()}})
	if err := n.componentStages(); err != nil {
		return nil, err
	}
	system, parts, compiles, environment := n.systemSteps(), n.componentSteps(), n.compileSteps(), n.environmentSteps()
	others := len(system) + len(parts) + len(compiles) + len(environment) + len(own)
	packages, err := n.condaGroups(n.roomForConda(others))
	if err != nil {
		return nil, err
	}
	steps := n.condaSteps(packages)
	groups, err := n.group(others + len(steps))
	if err != nil {
		return nil, err
	}
	for _, t := range slices.Concat(system, steps, parts, n.wheelSteps(groups), compiles, environment, own) {
		s.add(t)
	}
	return s, nil
}

func (n *planner) baseTitle() string {
	if n.base.Bootstrap != nil || n.base.Recipe != "" {
		return "base " + n.base.Title()
	}
	return "base " + n.recipe.Base.Image // as it is written: the title is signed, and where this machine has its files is nobody's business
}

// baseOf is the base that l pins; of a recipe, the image that it has now.
func baseOf(r *recipe.Recipe, l *lock.Lock, o Options) base.Pinned {
	b := l.Base
	if b.Recipe != "" {
		b.ImageKey = r.Base.Key
		b.Layers = cmp.Or(b.Layers, o.BaseLayers)
	}
	return b
}

// fixedTime is the time of everything a plan makes: SOURCE_DATE_EPOCH, as reproducible-builds.org defines it, or the default.
func fixedTime() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return layer.DefaultModTime.UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fault.Usage(fmt.Errorf("SOURCE_DATE_EPOCH is %q, which is not a number of seconds", text))
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func (n *planner) systemSteps() []*Step {
	p := n.lock.System
	if p == nil || p.Empty() {
		return nil
	}
	asked := slices.Sorted(slices.Values(p.Asked)) // in whatever order the recipe has them
	what := "system packages: " + strings.Join(asked, " ")
	return []*Step{{Title: what, History: what, Op: &OSPackages{Pinned: p}}}
}

func (n *planner) layerOptions() python.LayerOptions {
	o := python.LayerOptions{Options: n.layer}
	if n.lock.Python != nil {
		o.Compiler = n.compiler(n.lock.Python.Version)
	}
	return o
}

// bytecode reports whether the byte code of what is laid down is compiled.
func (n *planner) bytecode() bool {
	return (n.opts.RunsHere || n.opts.Compiler != "") && n.recipe.Python.CompilesBytecode()
}

// compiler is the version of the Python that compiles in the place of the image's own, which has the given version. One of the same
// version makes the same, so that it is not named.
func (n *planner) compiler(own string) string {
	if n.opts.RunsHere || !n.bytecode() || n.opts.Compiler == own {
		return ""
	}
	return n.opts.Compiler
}

func (n *planner) items() []python.Item {
	items := make([]python.Item, len(n.wheels))
	for i, w := range n.wheels {
		items[i] = w.Item
	}
	return items
}

func (n *planner) wheelSteps(groups []python.Group) []*Step {
	steps := make([]*Step, len(groups))
	for i, g := range groups {
		what := "python packages: " + contents(g.Items)
		steps[i] = &Step{
			Title: g.Name, History: what,
			Op: &Wheels{Group: g, Target: n.target(), Bytecode: n.bytecode(), Options: n.layerOptions()},
		}
	}
	return steps
}

// contents names packages in the image's history.
func contents(items []python.Item) string {
	names := make([]string, len(items))
	for i, it := range items {
		names[i] = it.Name + "==" + it.Version
	}
	return strings.Join(names, ", ")
}

func (n *planner) compileSteps() []*Step {
	var steps []*Step
	for _, c := range n.opts.Compiles {
		op := &Compile{
			Package: c.Package, Requested: c.Requested, Source: n.opts.Sources[c.Name], Python: n.target().Python,
			Target: n.target(), Bytecode: n.bytecode(), Options: n.layerOptions(),
		}
		if c.Base != nil {
			op.Base = &Base{Pinned: c.Base.Image, Platform: n.platform, Reference: lock.CompileReference(n.recipe, c)}
			op.Python = c.Base.Interpreter(op.Python)
		}
		for _, name := range n.recipe.ComponentClosure(n.recipe.Python.Compile[c.Name].Needs) {
			op.Needs = append(op.Needs, n.built[name])
		}
		steps = append(steps, &Step{Title: c.Label(), History: "python packages: " + compiled(c), Op: op})
	}
	return steps
}

// compiled names a package that is built here, as far as the lock knows it: of some sources only the build tells the version.
func compiled(c lock.Compile) string {
	if c.Version == "" {
		return c.Name
	}
	return c.Name + "==" + c.Version
}

func (n *planner) environmentSteps() []*Step {
	if n.lock.Python == nil {
		return nil
	}
	what := "python environment in /" + n.target().Root
	prefer, _ := n.prefer() // the grouping has failed already when it is wrong
	return []*Step{{Title: what, History: what, Op: &Environment{
		Environment: python.Environment{
			Target: n.target(), SystemSitePackages: n.lock.Python.SystemSitePackages, Prompt: n.recipe.Name, Items: n.items(),
			Prefer: prefer, Chain: n.lock.Python.Chain[:min(1, len(n.lock.Python.Chain))], Commands: n.lock.Python.EntryPoints(),
		},
		Options: n.layer,
	}}}
}

func (n *planner) planImage(p *Plan) {
	r := n.recipe
	p.Image = &Image{Slim: n.opts.Slim, Config: Config{
		Env: r.Image.Env, Unset: r.Image.Unset, Entrypoint: r.Image.Entrypoint, Cmd: r.Image.Cmd, WorkingDir: r.Image.Workdir,
		User: r.Image.User, Volumes: r.Image.Volumes, Labels: labels(r, n.lock, n.opts.BaseName), Created: n.layer.ModTime, Compression: n.layer.Compression,
		Unchecked: n.opts.Unchecked,
	}}
	p.Image.Config.VirtualEnv, p.Image.Config.Conda = n.venv(), n.activation()
	p.setKey(append(configInputs(p.Image.Config), slimInput(n.opts.Slim))...)
}

// configInputs are what a recipe says of the image's configuration.
func configInputs(c Config) []Input {
	in := []Input{
		{"entrypoint", text(c.Entrypoint)},
		{"cmd", text(c.Cmd)},
		{"workdir", c.WorkingDir},
		{"user", c.User},
		{"volumes", text(c.Volumes)},
		{"compression", string(c.Compression)},
		{"environment", c.VirtualEnv},
		{"unchecked", strconv.FormatBool(c.Unchecked)},
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(c.Unset))) {
		in = append(in, Input{"without variable", name})
	}
	return slices.Concat(in, activationInputs(c.Conda), tableInputs("variable", c.Env), tableInputs("label", c.Labels))
}

func tableInputs(what string, table map[string]string) []Input {
	in := make([]Input, 0, len(table))
	for name, value := range table {
		in = append(in, Input{what + " " + name, value})
	}
	slices.SortFunc(in, func(a, b Input) int { return strings.Compare(a.Name, b.Name) })
	return in
}

func slimInput(o *slim.Options) Input {
	if o == nil {
		return Input{"slim", ""}
	}
	return Input{"slim", o.Key()}
}

// labels are the standard annotations of the OCI image specification ("Pre-Defined Annotation Keys"), which the recipe's
// own labels may replace.
func labels(r *recipe.Recipe, l *lock.Lock, base string) map[string]string {
	m := map[string]string{
		"org.opencontainers.image.title":   r.Name,
		"org.opencontainers.image.version": r.Version,
	}
	if l.Base.Digest != "" {
		m["org.opencontainers.image.base.digest"] = string(l.Base.Digest)
		if l.Base.Name != "" {
			m["org.opencontainers.image.base.name"] = l.Base.Name
		}
	}
	if base != "" {
		m["org.opencontainers.image.base.name"] = base
	}
	for k, v := range r.Image.Labels {
		m[k] = v
	}
	return m
}
