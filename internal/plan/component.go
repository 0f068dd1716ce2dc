package plan

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/upstream"
)

// componentVersion is that of the code that makes sources, prefixes and grafts into layers.
const componentVersion = 1

// buildRoot is where the sources of components lie while these are built, each in a directory of its name.
const buildRoot = "/build"

// Unpack makes the layer of a source's files, patched.
type Unpack struct {
	Name    string
	Pinned  *upstream.Pinned
	Patches []upstream.Patch
	Dir     string // of the image, where the files go: absolute
	From    string // where relative paths of the source start; in no key
}

// Kind implements [Op].
func (*Unpack) Kind() string { return "source" }

func (u *Unpack) inputs() []Input {
	in := []Input{{"directory", u.Dir}, {"unpacking", fmt.Sprint(upstream.Version)}}
	if u.Pinned.Debian != "" { // whose patches are applied
		in = append(in, Input{"source package", u.Pinned.Debian})
	}
	if u.Pinned.Commit != "" {
		in = append(in, Input{"commit", u.Pinned.Commit})
	}
	for _, f := range u.Pinned.Files {
		in = append(in, Input{"source file", f.Name + " " + string(f.SHA256)})
	}
	for _, p := range u.Patches {
		in = append(in, Input{"patch", path.Base(p.File) + " " + string(store.DigestOf(p.Text))})
	}
	return in
}

func (u *Unpack) key(s *Stage, inputs []Input) (Key, []Key) {
	return keyOf(u.Kind(), componentVersion, nil, append([]Input{{"layer", text(s.Layer)}}, inputs...)), nil
}

// Output makes the layer of what the last step of a stage has put below a directory.
type Output struct {
	Name   string // of the component
	Of     *Stage
	Prefix string // absolute
}

// Kind implements [Op].
func (*Output) Kind() string { return "prefix" }

func (o *Output) inputs() []Input {
	return []Input{{"prefix", o.Prefix}, {filesInput, sourceKey(Source{Stage: o.Of}, "")}}
}

func (o *Output) key(s *Stage, inputs []Input) (Key, []Key) {
	return keyOf(o.Kind(), componentVersion, nil, append([]Input{{"layer", text(s.Layer)}}, inputs...)), nil
}

// Graft puts the layer of a stage that has one on top, as it is.
type Graft struct {
	From *Stage
}

// Kind implements [Op].
func (*Graft) Kind() string { return "component" }

func (g *Graft) inputs() []Input { return []Input{{filesInput, sourceKey(Source{Stage: g.From}, "")}} }

func (g *Graft) key(_ *Stage, inputs []Input) (Key, []Key) {
	return keyOf(g.Kind(), componentVersion, nil, inputs), nil
}

// components plans the stages of the recipe's components.
type components struct {
	*planner
	made    map[string]*Stage // by name: the stage that has nothing but what the component installs
	sources map[string]*Stage
}

// componentStages plans the stages of all components. They come before [python], which may have packages that are built against them.
func (n *planner) componentStages() error {
	c := &components{n, make(map[string]*Stage), make(map[string]*Stage)}
	for _, name := range n.recipe.ComponentOrder() {
		if _, err := c.component(name); err != nil {
			return fmt.Errorf("%s:%d: component %s: %w", n.recipe.Path, n.recipe.Component[name].Line, name, err)
		}
	}
	n.built = c.made
	return nil
}

// componentSteps put the components on the image.
func (n *planner) componentSteps() []*Step {
	var steps []*Step
	for _, name := range n.recipe.ComponentOrder() {
		what := "component " + name
		steps = append(steps, &Step{Title: what, History: what + ": " + n.recipe.ComponentPrefix(name), Place: n.componentPlace(name), Op: &Graft{From: n.built[name]}})
	}
	return steps
}

func (n *planner) componentPlace(name string) string {
	return fmt.Sprintf("%s:%d", n.recipe.Path, n.recipe.Component[name].Line)
}

// component returns the stage of what a component installs. Those that it needs are made first; that they do not go round has been checked.
func (c *components) component(name string) (*Stage, error) {
	if s := c.made[name]; s != nil {
		return s, nil
	}
	build, err := c.buildStage(name)
	if err != nil {
		return nil, err
	}
	prefix := c.recipe.ComponentPrefix(name)
	s := newStage("component "+name, nil, c.layer)
	s.add(&Step{Title: name + ": " + prefix, History: "component " + name, Place: c.componentPlace(name), Op: &Output{Name: name, Of: build, Prefix: prefix}})
	c.made[name] = s
	return s, nil
}

// buildStage is what a component is built in: the base, packages, what it needs, and its sources.
func (c *components) buildStage(name string) (*Stage, error) {
	how, place := c.recipe.Component[name], c.componentPlace(name)
	s := newStage("build "+name, nil, c.layer)
	s.add(&Step{Title: c.baseTitle(), Op: &Base{Pinned: c.base, Platform: c.platform, Reference: c.recipe.BaseReference()}})
	if l := c.lock.Component[name]; l != nil && l.System != nil && !l.System.Empty() {
		what := "packages to build " + name
		s.add(&Step{Title: what, History: what, Op: &OSPackages{Pinned: l.System}})
	}
	needs := c.recipe.ComponentClosure(how.Needs)
	for _, other := range needs {
		from, err := c.component(other)
		if err != nil {
			return nil, err
		}
		s.add(&Step{Title: "component " + other, History: "component " + other, Place: place, Op: &Graft{From: from}})
	}
	names := c.recipe.ComponentSources(name)
	for _, source := range names {
		from, err := c.source(source)
		if err != nil {
			return nil, err
		}
		s.add(&Step{Title: "source " + source, History: "source " + source, Place: place, Op: &Graft{From: from}})
	}
	run, err := c.runComponent(name, how, names[0], needs)
	if err != nil {
		return nil, err
	}
	s.add(&Step{Title: "build " + name, History: "build " + name, Place: place, Op: run})
	return s, s.checkDepth()
}

// source returns the stage of the files of a source.
func (c *components) source(name string) (*Stage, error) {
	if s := c.sources[name]; s != nil {
		return s, nil
	}
	pinned := c.lock.Source[name]
	if pinned == nil {
		return nil, fmt.Errorf("the lock has no source %s", name)
	}
	op := &Unpack{Name: name, Pinned: pinned, Dir: path.Join(buildRoot, name), From: c.recipe.Dir}
	for _, file := range c.recipe.Source[name].Patch {
		text, err := ctxio.ReadRegular(c.recipe.Resolve(file), maxPatch)
		if err != nil {
			return nil, fmt.Errorf("source %s: patch: %w", name, err)
		}
		op.Patches = append(op.Patches, upstream.Patch{File: file, Text: text})
	}
	s := newStage("source "+name, nil, c.layer)
	s.add(&Step{Title: "source " + name + ": " + pinned.What(), History: "source " + name, Place: c.recipe.Path, Op: op})
	c.sources[name] = s
	return s, nil
}

// ccacheDirs are where distributions keep links called as the compilers are, which lead to ccache. Where there is none it does no harm.
const ccacheDirs = "/usr/lib/ccache:/usr/lib64/ccache"

// runComponent is the command that builds a component.
func (c *components) runComponent(name string, how recipe.Component, source string, needs []string) (*Exec, error) {
	prefix := c.recipe.ComponentPrefix(name)
	dir := how.Workdir
	if !path.IsAbs(dir) {
		dir = path.Join(buildRoot, source, dir)
	}
	env := append(recipe.StepEnv(how.Env, c.opts.GPU), "PREFIX="+prefix)
	for _, other := range needs {
		env = append(env, PrefixVariable(other)+"="+c.recipe.ComponentPrefix(other))
	}
	op := &Exec{Inherit: true, Component: name, Jobs: true, MemoryPerJob: how.JobMemory(), Command: execop.Command{
		Args: []string{"/bin/sh", "-ec", "mkdir -p " + path.Dir(prefix) + "\n" + c.searchPaths(needs) + `exec /bin/sh -ec "$1"`, "sh", how.Run},
		Env:  env, WorkDir: dir, NoNetwork: !how.Network,
	}}
	mounts, err := c.recipe.ParseMount("cache:ccache")
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		op.addMount(m)
	}
	return op, nil
}

// searchPaths is the beginning of a script: compilers, programs and libraries are found in what the component needs.
func (c *components) searchPaths(needs []string) string {
	lists := map[string][]string{"PATH": {ccacheDirs}}
	for _, other := range needs {
		p := c.recipe.ComponentPrefix(other)
		lists["PATH"] = append(lists["PATH"], p+"/bin")
		lists["LD_LIBRARY_PATH"] = append(lists["LD_LIBRARY_PATH"], p+"/lib", p+"/lib64")
		lists["PKG_CONFIG_PATH"] = append(lists["PKG_CONFIG_PATH"], p+"/lib/pkgconfig", p+"/lib64/pkgconfig", p+"/share/pkgconfig")
		lists["CMAKE_PREFIX_PATH"] = append(lists["CMAKE_PREFIX_PATH"], p)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		fmt.Fprintf(&b, "export %s=%s${%s:+:$%s}\n", name, strings.Join(lists[name], ":"), name, name)
	}
	return b.String()
}

// PrefixVariable is the variable that says where a component is to whatever is built on it: LIBFABRIC_PREFIX, AWS_OFI_NCCL_PREFIX.
func PrefixVariable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name) + "_PREFIX"
}
