package build

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/spelling"
)

// condaLayer is a layer of conda packages with the list of their files.
type condaLayer struct {
	layer    layer.Descriptor
	manifest conda.Manifest
}

// beginConda starts the steps that lay conda packages down.
func (r *stageRun) beginConda(ctx context.Context, g *errgroup.Group) {
	runsOn := r.condaPythonRunsOn()
	for _, t := range r.stage.Steps {
		if op, ok := t.Op.(*plan.CondaPackages); ok {
			run := sync.OnceValues(func() (condaLayer, error) { return r.makeCondaPackages(ctx, op) })
			r.conda[t] = run
			if runsOn(op.Group) {
				r.condaPython = append(r.condaPython, run)
			}
		}
	}
	for _, t := range r.stage.Steps {
		if run := r.conda[t]; run != nil {
			g.Go(func() error { _, err := run(); return err })
		}
	}
}

// condaPythonRunsOn returns what tells the layers that the environment's Python runs on: its own, and those of what it needs, so far as none
// of these waits for Python itself.
func (r *stageRun) condaPythonRunsOn() func(conda.Group) bool {
	var all []conda.Package
	for _, t := range r.stage.Steps {
		if op, ok := t.Op.(*plan.CondaPackages); ok {
			all = append(all, op.Group.Packages...)
		}
	}
	needed := conda.Needed(all, "python")
	return func(g conda.Group) bool {
		return g.HasPython() || !g.UsesPython() && slices.ContainsFunc(g.Packages, func(p conda.Package) bool { return needed[p.Name] })
	}
}

func (r *stageRun) makeCondaPackages(ctx context.Context, op *plan.CondaPackages) (condaLayer, error) {
	var compiler conda.Compiler
	if op.Bytecode && op.Group.UsesPython() && !op.Group.HasPython() {
		compiler = r.bytecode
	}
	bring := func(ctx context.Context) (func(), error) {
		if err := r.downloadConda(ctx, op.Group.Packages); err != nil {
			return nil, err
		}
		if compiler != nil {
			if err := r.pythonLaid(); err != nil {
				return nil, err
			}
		}
		if err := r.cpu.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		return func() { r.cpu.Release(1) }, nil
	}
	d, m, err := conda.BuildLayer(ctx, r.opts.Store, op.Group, op.Target, compiler, op.Options, bring)
	return condaLayer{d, m}, err
}

// pythonLaid waits until the conda environment's Python is there with what it runs on, if there is one. Whoever makes byte code waits for
// it before he takes one of the places for making layers: all of these may wait for byte code, and Python's own layers want some, too.
func (r *stageRun) pythonLaid() error {
	for _, run := range r.condaPython {
		if _, err := run(); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) downloadConda(ctx context.Context, packages []conda.Package) error {
	missing := slices.DeleteFunc(slices.Clone(packages), func(p conda.Package) bool { return b.opts.Store.HasBlob(p.SHA256) })
	requests := make([]fetch.Request, len(missing))
	for i, p := range missing {
		requests[i] = fetch.Request{URL: p.URL, Digest: p.SHA256, Size: p.Size, Name: p.Name + " " + p.Version}
	}
	if b.opts.CondaRequests != nil && len(missing) > 0 {
		var err error
		if requests, err = b.opts.CondaRequests(missing); err != nil {
			return err
		}
	}
	return b.opts.Fetch.Blobs(ctx, requests)
}

// condaGround is what the Python of the conda environment runs on to make byte code: all that is below the environment, and the
// layers with Python itself and its libraries. Its packages need not be there.
func (r *stageRun) condaGround(ctx context.Context) (*made, error) {
	if err := wait(ctx, r.founded); err != nil {
		return nil, err
	}
	m := r.foundation.top()
	for _, run := range r.condaPython {
		l, err := run()
		if err != nil {
			return nil, err
		}
		m.add(l.layer, &plan.Step{History: "python"})
	}
	return m, nil
}

// addConda keeps what is known of a layer of conda packages for the environment that it becomes part of.
func (r *stageRun) addConda(l condaLayer, err error) (layer.Descriptor, error) {
	if err == nil {
		r.laid = append(r.laid, l)
	}
	return l.layer, err
}

func (r *stageRun) condaManifests() []conda.Manifest {
	manifests := make([]conda.Manifest, len(r.laid))
	for i, l := range r.laid {
		manifests[i] = l.manifest
	}
	return manifests
}

func (r *stageRun) makeCondaEnvironment(ctx context.Context, op *plan.CondaEnvironment) (layer.Descriptor, error) {
	e := op.Environment
	e.Manifests = r.condaManifests()
	for _, l := range r.laid {
		e.Layers = append(e.Layers, l.layer)
	}
	if op.Bytecode && r.condaPython != nil {
		e.Compiler = r.bytecode
	}
	return conda.BuildEnvironment(ctx, r.opts.Store, e, op.Options)
}

// makeCondaScripts runs the link scripts of packages, all in one command.
func (r *stageRun) makeCondaScripts(ctx context.Context, t *plan.Step, op *plan.CondaScripts) (layer.Descriptor, error) {
	prefix := op.Activation.Prefix
	var scripts []conda.Script
	var names []string
	all := conda.LinkScripts(op.Packages, r.condaManifests(), prefix, op.Activation.Root)
	for _, s := range all {
		if op.Only == nil || slices.Contains(*op.Only, s.Package) {
			scripts, names = append(scripts, s), append(names, s.Package)
		}
	}
	warnOfNoScript(ctx, op.Only, all)
	if len(scripts) == 0 {
		return layer.Descriptor{}, nil
	}
	shell, err := r.shellFor(ctx, "link scripts", slices.Compact(names), prefix, op.RunsHere)
	if shell == "" || err != nil {
		return layer.Descriptor{}, err
	}
	d, _, err := r.onceFor(t).Do(ctx, r.opts.Store, func(ctx context.Context) (layer.Descriptor, error) {
		env := r.environment(nil)
		return r.runCommand(ctx, "conda link scripts: "+strings.Join(slices.Compact(names), ", "), execop.Command{
			Args: []string{shell, "--noprofile", "--norc", "-c", linkCommand(scripts, shell, prefix)}, Env: env,
		})
	})
	return d, err
}

// warnOfNoScript tells of packages that are asked for by name and have no script: most are slips.
func warnOfNoScript(ctx context.Context, only *[]string, all []conda.Script) {
	if only == nil {
		return
	}
	var have []string
	for _, s := range all {
		have = append(have, s.Package)
	}
	for _, name := range *only {
		if slices.Contains(have, name) {
			continue
		}
		hint := "take it out of link-scripts in [conda]"
		if near := spelling.Nearest(name, have); near != "" {
			hint = "did you mean " + near + "?"
		}
		progress.Warn(ctx, "link-scripts names "+name+", and the environment has no package of that name with a link script", hint)
	}
}

// linkCommand is what a shell does to run scripts. Prefixes and names of packages are plain words.
func linkCommand(scripts []conda.Script, shell, prefix string) string {
	var b strings.Builder
	for _, s := range scripts {
		var words []string
		for _, kv := range s.Env {
			name, value, _ := strings.Cut(kv, "=")
			words = append(words, name+"="+quote.Single(value))
		}
		fmt.Fprintf(&b, "( export %s PATH=%s:\"$PATH\"; exec %s %s ) || { echo %s >&2; exit 1; }\n",
			strings.Join(words, " "), quote.Single(prefix+"/bin"), quote.Single(shell), quote.Single(s.Path), quote.Single("the "+s.Kind+" script of "+s.Package+" failed"))
	}
	messages := quote.Single(prefix + "/.messages.txt")
	fmt.Fprintf(&b, "if [ -f %[1]s ]; then while IFS= read -r line; do printf '%%s\\n' \"$line\"; done < %[1]s; rm -f %[1]s; fi\n", messages)
	return b.String()
}

// warnReplaced says which files of conda packages lie below other files of wheels, which are laid over them.
func (r *stageRun) warnReplaced(ctx context.Context) {
	owners := make(map[string]conda.ManifestFile)
	packages := make(map[string]string)
	for _, l := range r.laid {
		for _, p := range l.manifest.Packages {
			for _, f := range p.Files {
				if f.Type != "d" && !f.Lost {
					owners[f.Path], packages[f.Path] = f, p.Name
				}
			}
		}
	}
	for _, w := range r.made.wheels {
		for _, p := range w.manifest.Packages {
			i := slices.IndexFunc(p.Files, func(f python.ManifestFile) bool {
				below, there := owners[f.Path]
				return there && !sameHash(below.SHA256, f.SHA256)
			})
			if i >= 0 {
				at := p.Files[i].Path
				progress.Warn(ctx, fmt.Sprintf("the Python package %s replaces %s of the conda package %s", p.Name, at, packages[at]),
					"take one of the two out; pip and conda do not know of each other's files")
			}
		}
	}
}

// sameHash compares a SHA-256 in hexadecimal digits with one in URL-safe base64.
func sameHash(digits, text string) bool {
	a, err1 := hex.DecodeString(digits)
	b, err2 := base64.RawURLEncoding.DecodeString(text)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}
