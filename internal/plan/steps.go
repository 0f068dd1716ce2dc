package plan

import (
	"context"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/recipe"
)

// recipeSteps are the recipe's own steps: of each, what is copied, then what is patched, then what is linked, then what is run.
//
// Their titles are the user's words, for progress and messages. The history says what they do in a form that does not depend on
// how it is spelled, so that a step's name or ./ before a path change neither key nor image.
func (n *planner) recipeSteps(ctx context.Context) ([]*Step, error) {
	var all []*Step
	for _, s := range n.recipe.Steps {
		place := fmt.Sprintf("%s:%d", n.recipe.Path, s.Line)
		steps, err := n.stepsOf(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%s: step %q: %w", place, s.Title(), err)
		}
		for _, t := range steps {
			t.Place = place
		}
		all = append(all, steps...)
	}
	return all, nil
}

func (n *planner) stepsOf(ctx context.Context, s recipe.Step) ([]*Step, error) {
	var steps []*Step
	for _, text := range s.Copy {
		t, err := n.copyStep(ctx, s, text)
		if err != nil {
			return nil, fmt.Errorf("copy %q: %w", text, err)
		}
		steps = append(steps, t)
	}
	for _, text := range s.Patch {
		t, err := n.patchStep(s, text)
		if err != nil {
			return nil, fmt.Errorf("patch %q: %w", text, err)
		}
		steps = append(steps, t)
	}
	for _, text := range s.Link {
		t, err := linkStep(s, text)
		if err != nil {
			return nil, fmt.Errorf("link %q: %w", text, err)
		}
		steps = append(steps, t)
	}
	if s.Run == "" {
		return steps, nil
	}
	t, err := n.runStep(ctx, s)
	return append(steps, t), err
}

func (n *planner) copyStep(ctx context.Context, s recipe.Step, text string) (*Step, error) {
	c, err := s.ParseCopy(text)
	if err != nil {
		return nil, err
	}
	dir, pattern := n.recipe.CopySource(c)
	op := &Copy{Copy: fileop.Copy{Sources: []string{pattern}, Dest: c.Dest, Chown: s.User}, From: Source{Dir: dir}}
	if err := op.hash(ctx, n.opts.Open); err != nil {
		return nil, err
	}
	return &Step{Title: "copy " + text, History: "copy " + pattern + ":" + c.Dest, Op: op}, nil
}

// maxPatch bounds a patch in bytes.
const maxPatch = 64 << 20

func (n *planner) patchStep(s recipe.Step, text string) (*Step, error) {
	parsed, err := s.ParsePatch(text)
	if err != nil {
		return nil, err
	}
	data, err := ctxio.ReadRegular(n.recipe.Resolve(parsed.File), maxPatch)
	if err != nil {
		return nil, err
	}
	op := &Patch{fileop.Patch{Text: data, Dir: parsed.Dir, Strip: 1}}
	return &Step{Title: "patch " + text, History: "patch " + path.Base(parsed.File) + ":" + parsed.Dir, Op: op}, nil
}

func linkStep(s recipe.Step, text string) (*Step, error) {
	l, err := s.ParseLink(text)
	if err != nil {
		return nil, err
	}
	op := &Link{fileop.Link{Target: l.Target, Path: l.Path, Owner: s.User}}
	return &Step{Title: "link " + text, History: "link " + l.Target + ":" + l.Path, Op: op}, nil
}

func (n *planner) runStep(ctx context.Context, s recipe.Step) (*Step, error) {
	op := &Exec{Inherit: true, Venv: n.venv(), Conda: n.activation(), Command: execop.Command{
		Args: s.Args(), Env: recipe.StepEnv(s.Env, n.opts.GPU), WorkDir: s.Workdir, User: s.User, NoNetwork: !s.HasNetwork(),
	}}
	for _, text := range s.Mounts {
		mounts, err := n.recipe.ParseMount(text)
		if err != nil {
			return nil, err
		}
		for _, m := range mounts {
			op.addMount(m)
		}
	}
	if err := op.hash(ctx, n.opts.Open); err != nil {
		return nil, err
	}
	nameless := recipe.Step{Run: s.Run}
	return &Step{Title: "run " + s.Title(), History: "run " + nameless.Title(), Op: op}, nil
}

// venv is the virtual environment that commands find on their PATH.
func (n *planner) venv() string {
	if n.lock.Python == nil || n.lock.Conda != nil || n.target().Added { // the base's PATH leads there
		return ""
	}
	return "/" + n.target().Root
}

// addMount gives the command a mount, and what programs find it by.
func (x *Exec) addMount(m recipe.Mount) {
	mount := Mount{Mount: execop.Mount{
		Kind: execop.Kind(m.Kind), Target: m.Target, ID: m.ID, Sharing: execop.Sharing(m.Sharing), ReadOnly: m.ReadOnly,
		Size: m.Size, Mode: m.Mode, UID: m.UID, GID: m.GID, Required: m.Required, Env: m.Env,
	}}
	if mount.Kind == execop.Bind {
		mount.Files.Dir, mount.Source = filepath.Dir(m.Source), filepath.Base(m.Source)
	}
	x.Mounts = append(x.Mounts, mount)
	for _, kv := range m.Variables {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(x.Command.Env, func(set string) bool { return strings.HasPrefix(set, name+"=") }) {
			x.Command.Env = append(x.Command.Env, kv)
		}
	}
	for _, target := range slices.Sorted(maps.Keys(m.Files)) {
		x.Command.Files = append(x.Command.Files, execop.File{Target: target, Content: []byte(m.Files[target])})
	}
}
