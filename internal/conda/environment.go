package conda

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

// Environment is what makes the laid-down packages an environment, and what one image says about them that another would not. Its
// layer is small and lies on top of theirs.
type Environment struct {
	Target    Target
	Root      string             // where activate and conda.sh are, and other environments would be: "/opt/cotainr/conda"; "" is the prefix
	Packages  []Package          // all of them
	Manifests []Manifest         // of their layers, the lowest first
	Layers    []layer.Descriptor // likewise
	Variables map[string]string  // set when the environment is activated (conda-meta/state)
	Specs     []string           // what was asked for, for the history
	Command   string             // what made it, for the history; "" is left out
	Time      time.Time          // when, for the history: of the lock, not of now
	Lock      []byte             // the packages as a lock that others read, which goes beside Root; nil: none
	Compiler  Compiler           // makes the byte code that the layer of Python lacks; nil: none
}

// LockPath is where the lock of an environment is in an image: "/opt/cotainr/conda-lock.yml" beside "/opt/cotainr/conda". root is as
// in [Environment].
func LockPath(root string) string { return root + "-lock.yml" }

// RootOf is where conda itself would be: above envs, or in the environment.
func RootOf(prefix string) string {
	if dir := path.Dir(prefix); path.Base(dir) == "envs" && path.Dir(dir) != "/" {
		return path.Dir(dir)
	}
	return prefix
}

// Activation returns the variables of an activated environment, sorted; PATH is the caller's, with PREFIX/bin first. root is as in
// [Environment].
func Activation(prefix, root string) []string {
	name := defaultName(prefix, cmp.Or(root, prefix))
	return []string{"CONDA_DEFAULT_ENV=" + name, "CONDA_PREFIX=" + prefix, "CONDA_PROMPT_MODIFIER=(" + name + ") ", "CONDA_SHLVL=1"}
}

// defaultName is CONDA_DEFAULT_ENV: a name for what conda finds by one, else the prefix.
func defaultName(prefix, root string) string {
	name, ok := strings.CutPrefix(prefix, root+"/envs/")
	switch {
	case prefix == root:
		return "base"
	case ok && !strings.Contains(name, "/"):
		return name
	}
	return prefix
}

//go:embed activate/conda.sh
var condaSh string

//go:embed activate/activate
var activateSh string

// BuildEnvironment makes the environment's layer, and warns of packages that are in each other's way.
func BuildEnvironment(ctx context.Context, st *store.Store, e Environment, o layer.Options) (layer.Descriptor, error) {
	e.Root = cmp.Or(e.Root, e.Target.Prefix)
	if err := e.validate(); err != nil {
		return layer.Descriptor{}, err
	}
	task := progress.Begin(ctx, "layer", "conda environment", 0)
	d, err := e.build(ctx, st, o)
	return d, task.End(err)
}

// variableName is what may stand in a shell before "=".
var variableName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (e Environment) validate() error {
	if err := (Target{Prefix: e.Root}).validate(); err != nil {
		return err
	}
	for name, value := range e.Variables {
		if !variableName.MatchString(name) || strings.Contains(value, "\x00") {
			return fmt.Errorf("%q cannot be the name of an environment variable", name)
		}
	}
	return e.Target.validate()
}

// object is an entry with its content.
type object struct {
	layer.Entry
	open layer.Content
}

func (e Environment) build(ctx context.Context, st *store.Store, o layer.Options) (layer.Descriptor, error) {
	objects, clobbers, err := e.objects(ctx, st)
	if err != nil {
		return layer.Descriptor{}, err
	}
	w, err := layer.NewWriter(ctx, st, o)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	dirs := map[string]bool{}
	for _, x := range objects {
		if err := addParents(w, x.Path, dirs); err != nil {
			return layer.Descriptor{}, err
		}
		if err := w.Add(x.Entry, x.open); err != nil {
			return layer.Descriptor{}, err
		}
	}
	d, err := w.Close()
	if err == nil {
		warn(ctx, clobbers)
	}
	return d, err
}

// objects lists everything in the layer, in its order.
func (e Environment) objects(ctx context.Context, st *store.Store) ([]object, []Clobber, error) {
	at := map[string]object{}
	add := func(p string, mode uint32, data []byte) {
		p = strings.TrimPrefix(p, "/")
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		at[p] = object{layer.Entry{Path: p, Type: layer.Regular, Mode: mode, Size: int64(len(data))}, open}
	}
	below := &layersBelow{e: e, st: st, layers: map[int]*layerContents{}}
	clobbers, err := e.repair(ctx, below, at)
	if err == nil {
		err = e.compile(ctx, below, add)
	}
	if err != nil {
		return nil, nil, err
	}
	prefix := e.Target.Prefix
	add(prefix+"/conda-meta/history", 0o644, e.history())
	if e.Lock != nil {
		add(LockPath(e.Root), 0o644, e.Lock)
	}
	if len(e.Variables) > 0 {
		state, err := json.MarshalIndent(map[string]any{"env_vars": e.Variables}, "", "  ")
		if err != nil {
			return nil, nil, err
		}
		add(prefix+"/conda-meta/state", 0o644, append(state, '\n'))
	}
	if script := e.variables(); script != nil {
		add(prefix+"/etc/conda/variables.sh", 0o644, script)
	}
	texts := strings.NewReplacer("@ROOT@", e.Root, "@PREFIX@", prefix)
	for p, text := range map[string]string{"/etc/profile.d/conda.sh": condaSh, "/bin/activate": activateSh} {
		if !e.has(e.Root + p) {
			add(e.Root+p, 0o644, []byte(texts.Replace(text)))
		}
	}
	for _, p := range e.clients() {
		p = strings.TrimPrefix(p, "/")
		at[p] = object{layer.Entry{Path: p, Type: layer.Symlink, Mode: 0o777, Link: prefix + "/bin/" + path.Base(p)}, nil}
	}
	return slices.SortedFunc(maps.Values(at), func(a, b object) int { return layer.Compare(a.Path, b.Path) }), clobbers, nil
}

// clients are the programs that stand in the root, where conda has its own and scripts call it, for those that the environment below
// it brings.
func (e Environment) clients() (all []string) {
	for _, name := range []string{"conda", "mamba"} {
		if e.Root != e.Target.Prefix && e.has(e.Target.Prefix+"/bin/"+name) {
			all = append(all, e.Root+"/bin/"+name)
		}
	}
	return all
}

// has reports whether a package has a file at an absolute path.
func (e Environment) has(at string) bool {
	rest, inside := strings.CutPrefix(at, e.Target.Prefix+"/")
	for _, m := range e.Manifests {
		for _, p := range m.Packages {
			if inside && slices.ContainsFunc(p.Files, func(f ManifestFile) bool { return f.Path == rest }) {
				return true
			}
		}
	}
	return false
}

// repair adds what is to stand in the place of what the layers below have.
func (e Environment) repair(ctx context.Context, below *layersBelow, at map[string]object) ([]Clobber, error) {
	files, gone, clobbers := repairs(e.Packages, e.Manifests, e.Target.Prefix)
	root := e.Target.root() + "/"
	for p, f := range files {
		if f.Type == "l" {
			at[root+p] = object{layer.Entry{Path: root + p, Type: layer.Symlink, Mode: 0o777, Link: f.Link}, nil}
			continue
		}
		open, err := below.open(ctx, f)
		if err != nil {
			return nil, err
		}
		at[root+p] = object{layer.Entry{Path: root + p, Type: layer.Regular, Mode: f.Mode, Size: f.Size}, open}
	}
	for _, p := range gone {
		p = whiteout(root + p)
		at[p] = object{Entry: layer.Entry{Path: p, Type: layer.Regular, Mode: 0o644}}
	}
	return clobbers, nil
}

// layersBelow opens files in the layers of packages.
type layersBelow struct {
	e  Environment
	st *store.Store

	layers map[int]*layerContents
}

// layerContents is a layer's index, and the places of its files in it.
type layerContents struct {
	index *layer.Index
	at    map[string]int
}

func (c *layersBelow) layer(ctx context.Context, i int) (*layerContents, error) {
	if l := c.layers[i]; l != nil {
		return l, nil
	}
	if i >= len(c.e.Layers) {
		return nil, fmt.Errorf("%d layers of packages are known, and there are more manifests", len(c.e.Layers))
	}
	index, err := layer.OpenIndex(ctx, c.st, c.e.Layers[i])
	if err != nil {
		return nil, err
	}
	l := &layerContents{index, make(map[string]int, len(index.Entries))}
	for i, e := range index.Entries {
		l.at[e.Path] = i
		if first, ok := l.at[e.Link]; ok && e.Type == layer.HardLink {
			l.at[e.Path] = first
		}
	}
	c.layers[i] = l
	return l, nil
}

// open returns the content of a file.
func (c *layersBelow) open(ctx context.Context, f owned) (layer.Content, error) {
	l, err := c.layer(ctx, f.layer)
	if err != nil {
		return nil, err
	}
	i, ok := l.at[c.e.Target.root()+"/"+f.Path]
	if !ok || l.index.Entries[i].Type != layer.Regular {
		return nil, fmt.Errorf("the layer of %s lacks %s", f.label, f.Path)
	}
	return func() (io.ReadCloser, error) { return l.index.Open(i) }, nil
}

// compile makes the byte code that the layer of Python lacks, as compilers run on that.
func (e Environment) compile(ctx context.Context, below *layersBelow, add func(p string, mode uint32, data []byte)) error {
	if e.Compiler == nil {
		return nil
	}
	for i, m := range e.Manifests {
		for _, p := range m.Packages {
			for _, source := range p.Stale {
				if err := e.compileOne(ctx, below, owned{ManifestFile{Path: source}, p.Name, i}, add); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (e Environment) compileOne(ctx context.Context, below *layersBelow, f owned, add func(p string, mode uint32, data []byte)) error {
	open, err := below.open(ctx, f)
	if err != nil {
		return err
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	source, err := io.ReadAll(io.LimitReader(r, maxSource))
	if err != nil {
		return err
	}
	pyc, ok, err := e.Compiler.Compile(ctx, e.Target.Prefix+"/"+f.Path, source)
	if err == nil && ok {
		add(e.Target.Prefix+"/"+e.Target.pycPath(f.Path), 0o644, pyc)
	}
	return err
}

// history says what was installed (CEP 32). conda and mamba read from it what the user asked for.
func (e Environment) history() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "==> %s <==\n", e.Time.UTC().Format(time.DateTime))
	if e.Command != "" {
		fmt.Fprintf(&b, "# cmd: %s\n", strings.Join(strings.Fields(e.Command), " "))
	}
	var lines []string
	for _, p := range e.Packages {
		lines = append(lines, "+"+channelName(p.Channel)+"/"+p.Subdir+"::"+p.dist()+"\n")
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	if len(e.Specs) > 0 {
		var specs bytes.Buffer
		j := json.NewEncoder(&specs)
		j.SetEscapeHTML(false)
		if err := j.Encode(e.Specs); err != nil {
			panic(err) // strings only
		}
		fmt.Fprintf(&b, "# update specs: %s", specs.Bytes())
	}
	return b.Bytes()
}

// channelName is what conda calls a channel: the name on the server that knows channels by names, elsewhere the address.
func channelName(url string) string {
	url = strings.TrimSuffix(url, "/")
	if name, ok := strings.CutPrefix(url, "https://conda.anaconda.org/"); ok {
		return name
	}
	return url
}

// variables is a script that exports what is set in the environment; nil where nothing is.
func (e Environment) variables() []byte {
	all := PackageVariables(e.Manifests)
	maps.Copy(all, e.Variables)
	if len(all) == 0 {
		return nil
	}
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if variableName.MatchString(name) && !strings.Contains(all[name], "\x00") {
			fmt.Fprintf(&b, "export %s=%s\n", name, quote.Single(all[name]))
		}
	}
	return b.Bytes()
}

// pycPath is where the environment's Python looks for the byte code of a source.
func (t Target) pycPath(source string) string {
	dir, name := path.Split(source)
	return dir + "__pycache__/" + strings.TrimSuffix(name, ".py") + "." + t.Python.cacheTag() + ".pyc"
}
