package plan

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// Op is what a step does: plain data. Package build has one maker for each type.
//
// A new one is a type here, with its inputs and its key, and a maker there unless it makes its layer itself, as
// [Patch] does by [fileop.Patch].
type Op interface {
	// Kind names the type, for people and in keys: "exec", "wheels".
	Kind() string
	// inputs is everything that decides what the op makes besides what it is based on. Order matters.
	inputs() []Input
	// key is the op's key on top of s, and what it is based on: which only the op knows. A layer that other rooms make without a plan, too,
	// has its key from the room that makes it.
	key(s *Stage, inputs []Input) (Key, []Key)
}

// onAll is the key of an op that is based on all before it.
func onAll(op Op, s *Stage, inputs []Input) (Key, []Key) {
	on := []Key{s.key}
	return keyOf(op.Kind(), stepVersion, on, append([]Input{{"layer", text(s.Layer)}}, inputs...)), on
}

// Base brings an image into the store, whose layers and configuration the stage begins with.
type Base struct {
	Pinned    base.Pinned
	Platform  v1.Platform
	Reference string // where to look for it, with paths made absolute; not part of the key
}

// Kind implements [Op].
func (*Base) Kind() string { return KindBase }

func (b *Base) inputs() []Input { return []Input{{"base", b.Pinned.Key()}} }

func (b *Base) key(*Stage, []Input) (Key, []Key) { return Key(b.Pinned.Key()), nil }

// OSPackages installs packages of the distribution by the base's own package manager.
type OSPackages struct {
	Pinned *ospackages.Pinned
}

// Kind implements [Op].
func (*OSPackages) Kind() string { return "system packages" }

func (o *OSPackages) inputs() []Input {
	var in []Input
	for _, p := range o.Pinned.Packages {
		in = append(in, Input{"package " + p.Name + ":" + p.Architecture, p.Version + " " + string(p.SHA256)})
	}
	return in
}

func (o *OSPackages) key(s *Stage, _ []Input) (Key, []Key) {
	return Key(ospackages.LayerKey(string(s.key), o.Pinned, s.Layer)), []Key{s.key}
}

// Wheels makes one layer of one or several wheels.
//
// Its key holds the wheels and the Python's version, not the base: the same wheel is the same layer in every image. The
// base is only what its byte code is compiled with.
type Wheels struct {
	Group    python.Group
	Target   python.Target
	Bytecode bool
	Options  python.LayerOptions
}

// Kind implements [Op].
func (*Wheels) Kind() string { return "wheels" }

func (w *Wheels) inputs() []Input {
	in := pythonInputs(w.Target.Python, w.Bytecode, w.Options)
	for _, it := range w.Group.Items {
		in = append(in, Input{"wheel " + it.Name, it.File + " " + string(it.Digest)})
	}
	return append(in, Input{"layer", text(w.Options.Options)})
}

func (w *Wheels) key(*Stage, []Input) (Key, []Key) {
	return Key(python.LayerKey(w.Group, w.Target, w.Bytecode, w.Options)), nil
}

// pythonInputs says what of an interpreter decides what a layer of wheels is like.
func pythonInputs(p python.Interpreter, bytecode bool, o python.LayerOptions) []Input {
	version := p.Minor()
	if bytecode {
		version = o.CompilerFor(p) // what the compiler emits may change between patch releases
	}
	return []Input{{"python", version}, codeInput(bytecode)}
}

// codeInput says what is compiled to byte code.
func codeInput(bytecode bool) Input {
	if !bytecode {
		return Input{"byte code", "false"}
	}
	return Input{"byte code", python.Compiled}
}

// Compile builds the wheel of a package that has none for the target, on what the stage has so far, and makes a layer of it.
//
// The wheel itself is kept under a key of package wheelbuild's, which does not depend on all that is below; this key is that of
// the layer.
type Compile struct {
	Package   wheelbuild.Package
	Requested bool         // see python.Item
	Source    store.Digest // what the directory holds that it is built from; "" of other sources
	Base      *Base        // the image that it is built in; nil: the stage itself
	Python    python.Interpreter
	Target    python.Target
	Bytecode  bool
	Options   python.LayerOptions
	Needs     []*Stage // components that are there while it is built
}

// Kind implements [Op].
func (*Compile) Kind() string { return "compile" }

// How many compilers run, and where the source comes from, are not among the inputs: they do not change what is made.
func (c *Compile) inputs() []Input {
	p := c.Package
	requires := p.Requires
	p.Jobs, p.MemoryPerJob, p.Source.URL, p.Source.Path, p.Requires = 0, 0, "", "", nil
	in := []Input{
		{"package " + p.Name, text(p)},
		{"source", string(c.Source)},
		{"requested", fmt.Sprint(c.Requested)},
		{"python", text(c.Python)},
		codeInput(c.Bytecode),
		{"compression", string(c.Options.Compression)},
		{"time", fmt.Sprint(c.Options.ModTime.Unix())},
	}
	if c.Options.Compiler != "" {
		in = append(in, Input{"byte code by", c.Options.Compiler})
	}
	for _, s := range c.Needs {
		in = append(in, Input{filesInput, sourceKey(Source{Stage: s}, "")})
	}
	if c.Base != nil {
		in = append(in, Input{"built in", c.Base.Pinned.Key()})
	}
	for _, w := range requires {
		in = append(in, Input{"build requirement " + w.Name, string(w.Digest)})
	}
	return in
}

func (c *Compile) key(s *Stage, inputs []Input) (Key, []Key) {
	on := s.keysOf(func(op Op) bool { return op.Kind() != c.Kind() })
	return keyOf(c.Kind(), compileVersion, on, inputs), on
}

// Environment makes the small layer that turns the wheels' directory into a virtual environment of the base's Python.
type Environment struct {
	Environment python.Environment // without the manifests, which are known once the wheels are laid down
	Options     layer.Options
}

// Kind implements [Op].
func (*Environment) Kind() string { return "environment" }

func (e *Environment) inputs() []Input {
	in := []Input{
		{"python", text(e.Environment.Target)},
		{"system site packages", fmt.Sprint(e.Environment.SystemSitePackages)},
		{"prompt", e.Environment.Prompt},
		{"layer", text(e.Options)},
	}
	if len(e.Environment.Chain) > 0 {
		in = append(in, Input{"on top of", text(e.Environment.Chain)})
	}
	if len(e.Environment.Commands) > 0 {
		in = append(in, Input{"commands of the base", text(e.Environment.Commands)})
	}
	for _, it := range sortedItems(e.Environment.Items) {
		in = append(in, Input{"package " + it.Name, text(it)})
	}
	return in
}

func (e *Environment) key(s *Stage, inputs []Input) (Key, []Key) {
	on := s.keysOf(func(op Op) bool {
		switch op.(type) {
		case *Wheels, *Compile:
			return true
		}
		return false
	})
	version := environmentVersion
	if e.Environment.Target.Relocatable {
		version = relocatableVersion
	}
	return keyOf(e.Kind(), version, on, inputs), on
}

func sortedItems(items []python.Item) []python.Item {
	sorted := slices.Clone(items)
	slices.SortFunc(sorted, func(a, b python.Item) int { return strings.Compare(a.File, b.File) })
	return sorted
}

// Exec runs a command.
type Exec struct {
	Command execop.Command // without mounts
	Inherit bool           // the environment of the base's configuration comes before the command's
	Venv    string         // the virtual environment that the command finds on its PATH, absolute; "" is none
	Conda   *Activation    // the conda environment that it finds itself in; nil: none
	Mounts  []Mount

	// JOBS says how many compilers may run, of which each needs so many bytes; 0 is what is usual. Neither is in the key: they do
	// not change what is made.
	Jobs         bool
	MemoryPerJob int64

	Component string // that it builds, "" for none; for people
}

// Mount is a mount together with where its files come from.
type Mount struct {
	execop.Mount
	Files  Source
	Listed []fileop.FileSum // the files of a directory that it shows, for people; in no key by itself
}

// Kind implements [Op].
func (*Exec) Kind() string { return "exec" }

func (x *Exec) inputs() []Input {
	c := x.Command
	in := []Input{
		{"command", text(c.Args)},
		{"workdir", c.WorkDir},
		{"user", c.User},
		{"network", fmt.Sprint(!c.NoNetwork)},
		{"inherit", fmt.Sprint(x.Inherit)},
		{"environment", x.Venv},
	}
	in = append(in, activationInputs(x.Conda)...)
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		in = append(in, Input{"variable " + name, value})
	}
	for _, f := range c.Files {
		in = append(in, Input{"file " + f.Target, fmt.Sprintf("%o %s", f.Mode, store.DigestOf(f.Content))})
	}
	for _, m := range x.Mounts {
		in = append(in, Input{string(m.Kind) + " mount " + m.Target, text(m.Mount)})
	}
	return in
}

func (x *Exec) key(s *Stage, inputs []Input) (Key, []Key) { return onAll(x, s, inputs) }

// Copy copies files.
type Copy struct {
	Copy   fileop.Copy
	From   Source
	Digest store.Digest     // of the files of a directory, and of how they are copied
	Listed []fileop.FileSum // the files of a directory, for people; in no key by itself
}

// Kind implements [Op].
func (*Copy) Kind() string { return "copy" }

func (c *Copy) inputs() []Input {
	how := c.Copy
	how.Inline = nil
	if c.From.Dir != "" { // whose digest has what the patterns match, however they are spelled
		how.Exclude = nil
		if !how.Nest { // which gives directories the names that they are asked for by
			how.Sources = nil
		}
	}
	in := []Input{{"copy", text(how)}, {"files", sourceKey(c.From, c.Digest)}}
	if c.Copy.Link && c.Copy.Chmod != "" {
		in = append(in, Input{"directories on the way", "755"}) // earlier ones got the permissions of the files
	}
	for _, f := range c.Copy.Inline {
		in = append(in, Input{"file " + f.Name, string(store.DigestOf(f.Content))})
	}
	return in
}

func (c *Copy) key(s *Stage, inputs []Input) (Key, []Key) { return onAll(c, s, inputs) }

// MakeDir makes a directory, unless there is one.
type MakeDir struct {
	fileop.Dir
}

// Kind implements [Op].
func (*MakeDir) Kind() string { return "directory" }

func (d *MakeDir) inputs() []Input { return []Input{{"directory", d.Path}, {"owner", d.Owner}} }

func (d *MakeDir) key(s *Stage, inputs []Input) (Key, []Key) { return onAll(d, s, inputs) }

// Link makes a symlink.
type Link struct {
	fileop.Link
}

// Kind implements [Op].
func (*Link) Kind() string { return "link" }

func (l *Link) inputs() []Input {
	return []Input{{"link", l.Path}, {"target", l.Target}, {"owner", l.Owner}}
}

func (l *Link) key(s *Stage, inputs []Input) (Key, []Key) { return onAll(l, s, inputs) }

// Patch applies a patch.
type Patch struct {
	fileop.Patch
}

// Kind implements [Op].
func (*Patch) Kind() string { return "patch" }

func (p *Patch) inputs() []Input {
	return []Input{{"patch", string(store.DigestOf(p.Text))}, {"directory", p.Dir}, {"strip", fmt.Sprint(p.Strip)}}
}

func (p *Patch) key(s *Stage, inputs []Input) (Key, []Key) { return onAll(p, s, inputs) }
