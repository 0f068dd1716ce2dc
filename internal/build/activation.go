package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
)

// What `conda activate` does is done when the image is built: its variables are in the image's configuration, and nothing is run
// when a container starts. Those of an environment itself are computed. Packages may bring scripts besides
// (etc/conda/activate.d, CEP 32); these are run once, in the sandbox, and what they change of the variables is kept. What cannot be
// kept, as it differs from user to user or is a shell's function, is done when a container starts: see start.go.

// activated is what is known of a conda environment that programs find themselves in.
type activated struct {
	plan.Activation
	packages []string // NAME=VALUE of packages
	scripts  []string // NAME=VALUE that scripts of packages set
	start    *start   // what is left to do when a container starts; nil: nothing
}

// enter makes programs see the environment, as a shell does after `conda activate`. What scripts set may be PATH too.
func (a *activated) enter(e *environment) {
	if a == nil {
		return
	}
	e.set("PATH", a.Prefix+"/bin:"+e.get("PATH", searchpath.Default))
	for _, kv := range slices.Concat(conda.Activation(a.Prefix, a.Root), a.packages, a.Variables, a.scripts) {
		name, value, _ := strings.Cut(kv, "=")
		e.set(name, value)
	}
	a.start.enter(e)
}

// forBuilds is the environment as packages are built in it: each is told of the variables of the files before its own.
func (a *activated) forBuilds() *activated {
	if a == nil {
		return nil
	}
	without := *a
	without.Variables = nil
	return &without
}

// makeActivation finds out what packages want set. It makes a layer only where something is left to do when a container starts.
func (r *stageRun) makeActivation(ctx context.Context, t *plan.Step, op *plan.CondaActivation) (layer.Descriptor, error) {
	a := &activated{Activation: op.Activation}
	packages := conda.PackageVariables(r.condaManifests())
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		a.packages = append(a.packages, name+"="+packages[name])
	}
	found, err := r.runScripts(ctx, t, op, a)
	if err != nil {
		return layer.Descriptor{}, err
	}
	a.scripts = found.Variables
	r.made.conda = a
	if a.start = newStart(op.Activation.Prefix, found); a.start == nil {
		return layer.Descriptor{}, nil
	}
	d, _, err := r.onceFor(t).Do(ctx, r.opts.Store, func(ctx context.Context) (layer.Descriptor, error) {
		return a.start.layer(ctx, r.opts.Store, r.stage.Layer)
	})
	return d, err
}

// scripted is what activation scripts do.
type scripted struct {
	Shell     string   `json:"shell"`               // the bash that they were run with
	Scripts   []string `json:"scripts"`             // their paths, in their order
	Variables []string `json:"variables"`           // NAME=VALUE by name
	Personal  []string `json:"personal,omitempty"`  // names of those that depend on the user
	Functions []string `json:"functions,omitempty"` // names of functions
}

// runScripts returns what activation scripts do. What is left for the start of a container is told every time.
func (r *stageRun) runScripts(ctx context.Context, t *plan.Step, op *plan.CondaActivation, a *activated) (none scripted, err error) {
	var scripts, names []string
	for _, s := range conda.ActivateScripts(r.condaManifests(), op.Activation.Prefix) {
		scripts, names = append(scripts, s.Path), append(names, path.Base(s.Path)+" ("+s.Package+")")
	}
	if len(scripts) == 0 {
		return none, nil
	}
	shell, err := r.shellFor(ctx, "activation scripts", names, op.Activation.Prefix, op.RunsHere)
	if shell == "" || err != nil {
		return none, err
	}
	once := store.Once[scripted]{Kind: store.KindActivation, Key: string(t.Key), Again: r.opts.Again, Does: "activates the conda environment"}
	found, _, err := once.Do(ctx, r.opts.Store, func(ctx context.Context) (scripted, error) {
		task := progress.Begin(ctx, "activate", "conda environment", 0)
		found, err := r.recordScripts(ctx, a, shell, scripts)
		return found, task.End(err)
	})
	if err == nil {
		found.warn(ctx)
	}
	return found, err
}

// warn says what is not done once and for all.
func (f *scripted) warn(ctx context.Context) {
	var left []string
	if len(f.Personal) > 0 {
		left = append(left, "set variables that depend on the user ("+strings.Join(f.Personal, ", ")+")")
	}
	if len(f.Functions) > 0 {
		left = append(left, "define functions of the shell ("+strings.Join(f.Functions, ", ")+")")
	}
	if len(left) > 0 {
		progress.Warn(ctx, "activation scripts of conda packages "+strings.Join(left, " and ")+", and are sourced whenever a container starts",
			"that takes a moment each time: where nothing needs it, take the package out")
	}
}

// shellFor returns the bash that scripts of conda packages can be run with. Where there is none it warns, and returns "".
func (r *stageRun) shellFor(ctx context.Context, what string, names []string, prefix string, runsHere bool) (string, error) {
	tree, err := image.NewTree(ctx, r.opts.Store, r.made.layers())
	if err != nil {
		return "", err
	}
	shell := findBash(tree, prefix)
	why, hint := "", ""
	switch {
	case !runsHere:
		why, hint = "programs of the image do not run on this machine", "build on a machine of that kind, or do by a [[step]] what they would"
	case shell == "":
		why, hint = "the image has no bash", `add "bash" to packages under [conda]`
	default:
		return shell, nil
	}
	progress.Warn(ctx, fmt.Sprintf("%s of conda packages are not run, since %s: %s", what, why, strings.Join(names, ", ")), hint)
	return "", nil
}

// findBash returns the path of bash in an image: the environment's, or the base's.
func findBash(tree *image.Tree, prefix string) string {
	for _, file := range []string{prefix + "/bin/bash", "/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"} {
		if n, err := tree.Lookup(file); err == nil && n.Type == layer.Regular && n.Mode&0o111 != 0 {
			return file
		}
	}
	return ""
}

// Users for whom scripts are run: what differs between them depends on who starts the container, and is no fact of the image.
var scriptUsers = [2]string{"sconce-a", "sconce-b"}

// recordScripts sources the scripts for two users and returns what both have then, and neither had before.
func (r *stageRun) recordScripts(ctx context.Context, a *activated, shell string, scripts []string) (found scripted, err error) {
	before := r.environment(a)
	var after [2]map[string]string
	var functions [2][]string
	for i, user := range scriptUsers {
		if after[i], functions[i], err = r.sourceScripts(ctx, shell, scripts, before, user); err != nil {
			return found, err
		}
	}
	found.Shell, found.Scripts, found.Functions = shell, scripts, slices.Compact(slices.Sorted(slices.Values(slices.Concat(functions[:]...))))
	found.Variables, found.Personal = difference(before, after)
	return found, nil
}

// environment is that of a program in the image, in a conda environment if a is not nil.
func (r *stageRun) environment(a *activated) environment {
	var env environment
	if r.made.base != nil {
		env = slices.Clone(r.made.base.Config.Config.Env)
	}
	a.enter(&env)
	return env
}

// shellVariables are those that a shell sets for itself.
var shellVariables = []string{"_", "PWD", "OLDPWD", "SHLVL", "HOME", "USER", "LOGNAME", "BASHOPTS", "SHELLOPTS", "BASH_ENV", "BASH_EXECUTION_STRING"}

// difference returns what was set, NAME=VALUE by name, and the names of what is not the same for both users. A variable that
// scripts have taken away is empty then: an image's configuration cannot say that one is not there.
func difference(before environment, after [2]map[string]string) (vars, personal []string) {
	names := maps.Clone(after[0])
	maps.Copy(names, after[1])
	for _, kv := range before {
		name, _, _ := strings.Cut(kv, "=")
		names[name] = ""
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, b := after[0][name], after[1][name]
		switch {
		case slices.Contains(shellVariables, name):
		case a != b:
			personal = append(personal, name)
		case before.get(name, "") != a || before.find(name) < 0:
			vars = append(vars, name+"="+a)
		}
	}
	return vars, personal
}

// printVariables writes the names of functions and the exported variables, each behind a NUL, after the scripts: "compgen -e" lists
// their names. Functions whose name begins with an underscore are what scripts use themselves: activation of compilers leaves some.
const printVariables = `
for __sconce_name in $(compgen -A function); do case $__sconce_name in _*) ;; *) printf '\0%s' "$__sconce_name" ;; esac; done >&3
for __sconce_name in $(compgen -e); do printf '\0%s=%s' "$__sconce_name" "${!__sconce_name}"; done >&3
printf '\0end' >&3
`

// Limits of what scripts may take.
const (
	maxVariables = 4 << 20 // bytes of all that is printed
	scriptTime   = 5 * time.Minute
)

// sourceScripts runs the scripts in one shell, as `conda activate` does, and returns the variables and functions at the end.
func (r *stageRun) sourceScripts(
	ctx context.Context, shell string, scripts []string, env environment, user string,
) (vars map[string]string, functions []string, err error) {
	layers, err := sandbox.Layers(ctx, r.opts.Store, r.made.layers())
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, scriptTime, fmt.Errorf("activation scripts of conda packages have not ended after %s", scriptTime))
	defer cancel()
	env = append(slices.Clone(env), "HOME=/home/"+user, "USER="+user, "LOGNAME="+user)
	out, log := &limited{max: maxVariables}, &head{}
	args := append([]string{shell, "--noprofile", "--norc", "-c", "exec 3>&1 >&2\nfor __sconce_script; do . \"$__sconce_script\"; done\nunset __sconce_script" + printVariables, shell}, scripts...)
	code, err := sandbox.Run(ctx, sandbox.Options{
		Layers: layers, Args: args, Env: env, Stdout: out, Stderr: log, NoNetwork: true, NoMounts: true, MaxProcesses: sandbox.DefaultProcesses(),
	})
	if err != nil {
		return nil, nil, err
	}
	fields := strings.Split(out.String(), "\x00")
	if code != 0 || fields[len(fields)-1] != "end" {
		err := fmt.Errorf("an activation script of a conda package ends the shell, with code %d: %s: %s", code, strings.Join(scripts, ", "), strings.TrimSpace(string(log.text)))
		return nil, nil, fault.Hint(err, "take another build of the package that it belongs to")
	}
	vars = make(map[string]string)
	for _, kv := range fields[1 : len(fields)-1] {
		name, value, isVariable := strings.Cut(kv, "=")
		switch {
		case !isVariable:
			functions = append(functions, name)
		case !strings.HasPrefix(name, "BASH_FUNC_"):
			vars[name] = value
		}
	}
	delete(vars, "__sconce_name")
	return vars, functions, nil
}

// limited keeps what is written up to max bytes, and refuses more.
type limited struct {
	bytes.Buffer
	max int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.max {
		return 0, errors.New("more is printed than can be meant")
	}
	return l.Buffer.Write(p)
}
