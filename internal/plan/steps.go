package plan

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/step"
	"sconce.dev/sconce/internal/transfer"
)

// planSteps puts the recipe's own steps on top: of each, what is copied, then what is patched, then what is run.
func (p *Plan) planSteps(ctx context.Context, r *recipe.Recipe, o Options) error {
	for _, s := range r.Steps {
		place, before := fmt.Sprintf("%s:%d", r.Path, s.Line), len(p.Steps)
		if err := p.planStep(ctx, r, s, o); err != nil {
			return fmt.Errorf("%s: step %q: %w", place, s.Title(), err)
		}
		for _, t := range p.Steps[before:] {
			t.Place = place
		}
	}
	return nil
}

func (p *Plan) planStep(ctx context.Context, r *recipe.Recipe, s recipe.Step, o Options) error {
	for _, text := range s.Copy {
		if err := p.planCopy(ctx, r, s, text, o); err != nil {
			return fmt.Errorf("copy %q: %w", text, err)
		}
	}
	for _, text := range s.Patch {
		if err := p.planPatch(r, s, text); err != nil {
			return fmt.Errorf("patch %q: %w", text, err)
		}
	}
	if s.Run == "" {
		return nil
	}
	return p.planRun(ctx, r, s, o)
}

func (p *Plan) planCopy(ctx context.Context, r *recipe.Recipe, s recipe.Step, text string, o Options) error {
	c, err := s.ParseCopy(text)
	if err != nil {
		return err
	}
	dir, pattern := r.CopySource(c)
	from, err := o.Open(dir)
	if err != nil {
		return err
	}
	t := &Step{Title: "copy " + text, Copy: &CopyStep{
		Copy: transfer.Copy{Sources: []string{pattern}, Dest: c.Dest, Chown: s.User}, From: Source{Context: from},
	}}
	content, err := copyContent(ctx, t.Copy)
	if err != nil {
		return err
	}
	p.add(t, content)
	return nil
}

// maxPatch bounds a patch in bytes.
const maxPatch = 64 << 20

func (p *Plan) planPatch(r *recipe.Recipe, s recipe.Step, text string) error {
	parsed, err := s.ParsePatch(text)
	if err != nil {
		return err
	}
	f, err := os.Open(r.Resolve(parsed.File))
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPatch+1))
	if err != nil {
		return err
	}
	if len(data) > maxPatch {
		return fmt.Errorf("it is larger than %d MiB", maxPatch>>20)
	}
	t := &Step{Title: "patch " + text, Patch: &transfer.Patch{Text: data, Dir: parsed.Dir, Strip: 1}}
	p.add(t, t.Patch)
	return nil
}

func (p *Plan) planRun(ctx context.Context, r *recipe.Recipe, s recipe.Step, o Options) error {
	t := &Step{Title: "run " + s.Title(), Run: &RunStep{Inherit: true, Command: step.Command{
		Args: s.Args(), Env: stepEnv(s, o), WorkDir: s.Workdir, User: s.User, NoNetwork: !s.HasNetwork(),
	}}}
	for _, text := range s.Mounts {
		mounts, err := r.ParseMount(text)
		if err != nil {
			return err
		}
		for _, m := range mounts {
			if err := t.Run.addMount(m, o); err != nil {
				return fmt.Errorf("mount %q: %w", text, err)
			}
		}
	}
	content, err := runContent(ctx, t.Run, p.venv())
	if err != nil {
		return err
	}
	p.add(t, content)
	return nil
}

// venv is the virtual environment that commands find on their PATH.
func (p *Plan) venv() string {
	if p.Env == nil {
		return ""
	}
	return "/" + venvRoot
}

// stepEnv are a step's own variables, and what extensions of PyTorch are to be compiled for.
func stepEnv(s recipe.Step, o Options) []string {
	var env []string
	if _, given := s.Env[archList]; !given && len(o.GPU) > 0 {
		env = append(env, archList+"="+strings.Join(o.GPU, ";"))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, name+"="+s.Env[name])
	}
	return env
}

// archList is the variable from which torch.utils.cpp_extension takes what to compile for.
const archList = "TORCH_CUDA_ARCH_LIST"

// addMount gives the command a mount, and what programs find it by.
func (t *RunStep) addMount(m recipe.Mount, o Options) error {
	mount := Mount{Mount: step.Mount{
		Kind: step.Kind(m.Kind), Target: m.Target, ID: m.ID, Sharing: step.Sharing(m.Sharing), ReadOnly: m.ReadOnly,
		Size: m.Size, Mode: m.Mode, UID: m.UID, GID: m.GID, Required: m.Required, Env: m.Env,
	}}
	if mount.Kind == step.Bind {
		from, err := o.Open(filepath.Dir(m.Source))
		if err != nil {
			return err
		}
		mount.Files.Context, mount.Source = from, filepath.Base(m.Source)
	}
	t.Mounts = append(t.Mounts, mount)
	for _, kv := range m.Variables {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(t.Command.Env, func(set string) bool { return strings.HasPrefix(set, name+"=") }) {
			t.Command.Env = append(t.Command.Env, kv)
		}
	}
	for _, target := range slices.Sorted(maps.Keys(m.Files)) {
		t.Command.Files = append(t.Command.Files, step.File{Target: target, Content: []byte(m.Files[target])})
	}
	return nil
}
