package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// Activation is how programs see a conda environment: what `conda activate` sets.
type Activation struct {
	Prefix    string   `json:"prefix"`              // absolute
	Root      string   `json:"root"`                // where other environments would be; see conda.Environment
	Variables []string `json:"variables,omitempty"` // NAME=VALUE of environment files
}

// CondaPackages makes one layer of one or several conda packages.
//
// As with wheels, its key holds packages, prefix and Python, not the base.
type CondaPackages struct {
	Group    conda.Group
	Target   conda.Target
	Bytecode bool
	Options  layer.Options
}

// Kind implements [Op].
func (*CondaPackages) Kind() string { return "conda packages" }

func (c *CondaPackages) inputs() []Input {
	in := []Input{{"prefix", c.Target.Prefix}, {"python", c.Target.Python.Version}, {"byte code", fmt.Sprint(c.Bytecode)}}
	if by := c.Target.Python.Compiler; by != "" {
		in = append(in, Input{"byte code by", by})
	}
	return append(append(in, packageInputs(c.Group.Packages)...), Input{"layer", text(c.Options)})
}

func packageInputs(packages []conda.Package) []Input {
	in := make([]Input, len(packages))
	for i, p := range packages {
		in[i] = Input{"conda package " + p.Name, p.Version + "-" + p.Build + " " + string(p.SHA256)}
	}
	return in
}

func (c *CondaPackages) key(*Stage, []Input) (Key, []Key) {
	return Key(conda.LayerKey(c.Group, c.Target, c.Bytecode, c.Options)), nil
}

// CondaEnvironment makes the small layer that turns the packages into an environment.
type CondaEnvironment struct {
	Environment conda.Environment // without the manifests, which are known once the packages are laid down
	Bytecode    bool              // what goes to it is compiled
	Options     layer.Options
}

// Kind implements [Op].
func (*CondaEnvironment) Kind() string { return "conda environment" }

func (c *CondaEnvironment) inputs() []Input {
	e := c.Environment
	e.Packages, e.Lock = nil, nil
	in := append(packageInputs(c.Environment.Packages), Input{"environment", text(e)})
	return append(in, Input{"lock in the image", string(store.DigestOf(c.Environment.Lock))}, Input{"layer", text(c.Options)})
}

func (c *CondaEnvironment) key(s *Stage, inputs []Input) (Key, []Key) {
	on := s.keysOf(func(op Op) bool { _, ok := op.(*CondaPackages); return ok })
	return keyOf(c.Kind(), condaEnvironmentVersion, on, inputs), on
}

// CondaScripts runs what packages want run when they are installed.
type CondaScripts struct {
	Activation Activation
	Packages   []conda.Package
	Only       *[]string // the packages whose scripts are run; nil: all
	RunsHere   bool      // programs of the image run on this machine; else the scripts are listed
}

// Kind implements [Op].
func (*CondaScripts) Kind() string { return "conda link scripts" }

func (c *CondaScripts) inputs() []Input {
	return []Input{{"link scripts", text(c.Only)}, {"run", fmt.Sprint(c.RunsHere)}, {"prefix", c.Activation.Prefix}}
}

func (c *CondaScripts) key(s *Stage, inputs []Input) (Key, []Key) { return onAll(c, s, inputs) }

// CondaActivation finds out what packages want set when the environment is activated. Its layer is for what that leaves to do when a
// container starts, mostly nothing.
type CondaActivation struct {
	Activation Activation
	RunsHere   bool
}

// Kind implements [Op].
func (*CondaActivation) Kind() string { return "conda activation" }

func (c *CondaActivation) inputs() []Input {
	return append(activationInputs(&c.Activation), Input{"run", fmt.Sprint(c.RunsHere)}, Input{"start", "sourced"})
}

func (c *CondaActivation) key(s *Stage, inputs []Input) (Key, []Key) { return onAll(c, s, inputs) }

// activationInputs are none where nothing is activated.
func activationInputs(a *Activation) []Input {
	if a == nil {
		return nil
	}
	in := []Input{{"conda environment", a.Prefix + " of " + a.Root}}
	for _, kv := range a.Variables {
		name, value, _ := strings.Cut(kv, "=")
		in = append(in, Input{"variable " + name, value})
	}
	return in
}

// Conda is the step that makes the stage's conda environment; nil if it has none.
func (s *Stage) Conda() *CondaEnvironment {
	for _, t := range s.Steps {
		if e, ok := t.Op.(*CondaEnvironment); ok {
			return e
		}
	}
	return nil
}

// condaTarget is where conda packages go.
func (n *planner) condaTarget() conda.Target {
	t := conda.Target{Prefix: n.lock.Conda.Prefix, Python: conda.PythonOf(n.opts.Conda.Packages)}
	t.Python.Compiler = n.compiler(t.Python.Version)
	return t
}

// activation is how programs see the conda environment; nil: there is none.
func (n *planner) activation() *Activation {
	if n.lock.Conda == nil {
		return nil
	}
	prefix := n.lock.Conda.Prefix
	return &Activation{Prefix: prefix, Root: conda.RootOf(prefix), Variables: n.opts.Conda.Variables}
}

// condaGroups spreads the conda packages over layers, of which there may be room.
func (n *planner) condaGroups(room int) ([]conda.Group, error) {
	if n.lock.Conda == nil {
		return nil, nil
	}
	if room < 1 {
		return nil, fault.Hint(fmt.Errorf("there is no room for the layers of %d conda packages", len(n.opts.Conda.Packages)), "raise max-layers under [image]")
	}
	return conda.GroupPackages(n.opts.Conda.Packages, room), nil
}

func (n *planner) condaSteps(groups []conda.Group) []*Step {
	if n.lock.Conda == nil {
		return nil
	}
	bytecode := n.bytecode() && n.condaTarget().Python.Version != ""
	var steps []*Step
	for _, g := range groups {
		var names []string
		for _, p := range g.Packages {
			names = append(names, p.Name+"="+p.Version+"="+p.Build)
		}
		steps = append(steps, &Step{
			Title: g.Name, History: "conda packages: " + strings.Join(names, ", "),
			Op: &CondaPackages{Group: g, Target: n.condaTarget(), Bytecode: bytecode, Options: n.layer},
		})
	}
	what := "conda environment in " + n.lock.Conda.Prefix
	return append(steps,
		&Step{Title: what, History: what, Op: n.condaEnvironment(bytecode)},
		&Step{Title: "conda link scripts", History: "conda link scripts", Op: &CondaScripts{
			Activation: *n.activation(), Packages: n.opts.Conda.Packages, Only: n.linkScripts(), RunsHere: n.opts.RunsHere,
		}},
		&Step{Title: "conda activation", History: "conda activation", Op: &CondaActivation{Activation: *n.activation(), RunsHere: n.opts.RunsHere}},
	)
}

// linkScripts are the packages whose scripts are run, in one order.
func (n *planner) linkScripts() *[]string {
	if n.recipe.Conda.LinkScripts == nil {
		return nil
	}
	names := []string{}
	for _, name := range *n.recipe.Conda.LinkScripts {
		names = append(names, strings.ToLower(name))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return &names
}

func (n *planner) condaEnvironment(bytecode bool) *CondaEnvironment {
	variables := make(map[string]string)
	for _, kv := range n.opts.Conda.Variables {
		name, value, _ := strings.Cut(kv, "=")
		variables[name] = value
	}
	return &CondaEnvironment{
		Environment: conda.Environment{
			Target: n.condaTarget(), Root: conda.RootOf(n.lock.Conda.Prefix), Packages: n.opts.Conda.Packages, Specs: slices.Clone(n.lock.Conda.Specs), Variables: maps.Clone(variables),
			Lock: n.opts.Conda.Lock, Time: n.layer.ModTime,
		},
		Bytecode: bytecode, Options: n.layer,
	}
}

// target is where Python packages go: a virtual environment, or the conda environment.
func (n *planner) target() python.Target {
	if n.lock.Conda != nil {
		return python.Target{Root: strings.TrimPrefix(n.lock.Conda.Prefix, "/"), Python: n.lock.Python.Interpreter(), Own: true}
	}
	if on := n.recipe.Python.OnTop; on != nil {
		return python.Target{Root: strings.TrimPrefix(on.Root, "/"), Python: n.lock.Python.Interpreter(), Relocatable: true}
	}
	if root := n.lock.Python.Environment; root != "" {
		return python.Target{Root: strings.TrimPrefix(root, "/"), Python: n.lock.Python.Interpreter(), Added: true}
	}
	return python.Target{Root: venvRoot, Python: n.lock.Python.Interpreter()}
}
