package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// once says how the layer of a step is made once. A step that changes nothing has an empty one.
func (b *builder) once(key plan.Key) store.Once[layer.Descriptor] {
	return store.Once[layer.Descriptor]{
		Kind: store.KindStep, Key: string(key), Again: b.opts.Again, Shared: b.opts.Shared, Refs: layer.Descriptor.Refs,
		Confirm: func(ctx context.Context, d layer.Descriptor) error {
			if d == (layer.Descriptor{}) {
				return nil
			}
			return d.Confirm(ctx, b.opts.Store)
		},
	}
}

// onceFor is once, with a name for those who wait.
func (b *builder) onceFor(t *plan.Step) store.Once[layer.Descriptor] {
	o := b.once(t.Key)
	o.Does = "makes the step " + t.Label()
	return o
}

// recorded reports whether the store has what a step makes.
func (b *builder) recorded(key plan.Key) bool {
	_, found, err := b.once(key).Recorded(b.opts.Store)
	return found && err == nil
}

// stepFailedError is an error that says which step it is about. What waits for the step has nothing to add.
type stepFailedError struct{ error }

func (e stepFailedError) Unwrap() error { return e.error }

// stepError says where the step is written, and what it is unless the error does so itself.
func stepError(t *plan.Step, err error) error {
	var said stepFailedError
	if errors.As(err, &said) {
		return err
	}
	if _, ok := t.Op.(*plan.Exec); ok { // whose errors begin with what it is
		return stepFailedError{fmt.Errorf("%s: %w", t.Place, err)}
	}
	return stepFailedError{fmt.Errorf("%s: %s: %w", t.Place, t.Label(), err)}
}

// change makes the layer of a step that depends on all below it.
func (r *stageRun) change(ctx context.Context, t *plan.Step) (layer.Descriptor, error) {
	if op, ok := t.Op.(*plan.Exec); ok {
		return r.exec(ctx, t.Label(), op)
	}
	if op, ok := t.Op.(*plan.Graft); ok { // which waits for the stage that it takes
		return r.graft(ctx, op)
	}
	task := progress.Begin(ctx, "step", t.Label(), 0)
	d, err := r.changeFiles(ctx, t)
	return d, task.End(err)
}

// changeFiles makes the layer of a step that runs no program.
func (r *stageRun) changeFiles(ctx context.Context, t *plan.Step) (layer.Descriptor, error) {
	switch op := t.Op.(type) {
	case *plan.Unpack:
		return r.unpack(ctx, op)
	case *plan.Output:
		return r.output(ctx, op)
	}
	onto, err := image.NewTree(ctx, r.opts.Store, r.made.layers())
	if err != nil {
		return layer.Descriptor{}, err
	}
	o := r.stage.Layer
	o.ModTime = onto.After(o.ModTime)
	switch op := t.Op.(type) {
	case *plan.Copy:
		return r.copyFiles(ctx, op, onto, o)
	case layered:
		return op.Layer(ctx, r.opts.Store, onto, o)
	}
	panic(fmt.Sprintf("build: no maker for %T", t.Op))
}

// layered is an op that makes its layer itself, of the tree below it and of what it says.
type layered interface {
	Layer(ctx context.Context, st *store.Store, onto *image.Tree, o layer.Options) (layer.Descriptor, error)
}

func (r *stageRun) copyFiles(ctx context.Context, c *plan.Copy, onto *image.Tree, o layer.Options) (layer.Descriptor, error) {
	from, err := r.files(ctx, c.From)
	if err != nil {
		return layer.Descriptor{}, err
	}
	if c.Copy.Link { // whose layer is the same on every image
		o = r.stage.Layer
	}
	return c.Copy.Layer(ctx, r.opts.Store, from, onto, o, r.openURL)
}

// files are what a source has; nil for the source of what comes from elsewhere.
func (b *builder) files(ctx context.Context, from plan.Source) (fileop.Files, error) {
	switch {
	case from.Dir != "":
		return b.opts.Open(from.Dir)
	case from.Stage == nil:
		return nil, nil
	}
	m, err := b.stage(ctx, from.Stage)
	if err != nil {
		return nil, err
	}
	t, err := image.NewTree(ctx, b.opts.Store, m.layers())
	if err != nil {
		return nil, err
	}
	return fileop.FromTree(t), nil
}

// openURL opens what ADD takes from the network. The planner has decided which bytes those are.
func (b *builder) openURL(ctx context.Context, u fileop.URL) (io.ReadCloser, string, error) {
	request := fetch.Request{URL: u.Address, Digest: u.Digest, Name: fetch.Redact(u.Address), OfRecipe: true}
	if err := b.opts.Fetch.Blob(ctx, request); err != nil {
		return nil, "", err
	}
	f, err := b.opts.Store.OpenBlob(u.Digest)
	return f, nameOf(u.Address), err
}

// nameOf is the name that a file from an address gets: the last part of its path, "" if it has none.
func nameOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.Trim(path.Base(u.Path), "/.")
}

// exec runs a command. What it sees of build contexts is served to it where this machine can do that, and else copied.
func (r *stageRun) exec(ctx context.Context, label string, op *plan.Exec) (layer.Descriptor, error) {
	d, err := r.execWith(ctx, label, op, fuse.Check() == nil)
	if errors.Is(err, sandbox.ErrNoFUSE) {
		return r.execWith(ctx, label, op, false)
	}
	return d, err
}

// maxServed is how many mounts of a command are served; a sandbox takes no more than 16.
const maxServed = 8

func (r *stageRun) execWith(ctx context.Context, label string, op *plan.Exec, serve bool) (layer.Descriptor, error) {
	c := op.Command
	if op.Inherit && r.made.base != nil {
		c = inherit(c, r.environment(r.made.conda), op.Venv)
	}
	served := 0
	for _, mount := range op.Mounts {
		filled, err := r.fill(ctx, mount, serve && served < maxServed)
		if err != nil {
			return layer.Descriptor{}, err
		}
		if filled.Tree != nil {
			served++
		}
		c.Mounts = append(c.Mounts, filled)
	}
	if op.Jobs {
		n, done, err := r.jobs.Take(ctx, op.MemoryPerJob)
		if err != nil {
			return layer.Descriptor{}, err
		}
		defer done()
		jobs := strconv.Itoa(n)
		c.Env = append(slices.Clone(c.Env), "JOBS="+jobs, "CMAKE_BUILD_PARALLEL_LEVEL="+jobs)
	}
	d, err := r.runCommand(ctx, label, c)
	if op.Component != "" {
		err = r.explainComponent(ctx, op.Component, err)
	}
	return d, err
}

// explainComponent says what to add to a component's packages, where its build failed for want of a program, a header or a library: those of
// [system] are in the image, and not where components are built.
func (r *stageRun) explainComponent(ctx context.Context, name string, err error) error {
	var f *execop.Failure
	if !errors.As(err, &f) || f.OutOfMemory || f.DiskFull {
		return err
	}
	tree, _ := image.NewTree(ctx, r.opts.Store, r.made.layers()) // without it, names are Debian's
	table := "[component." + name + "]"
	what := wheelbuild.MissingPackages(f, tree, table)
	if what == "" && f.Code == execop.CommandNotFound {
		what = "a command is not there: add the package that brings it to `packages` under " + table
	}
	if what == "" {
		return err
	}
	return fault.Hint(err, what+"; what is under [system] is not there while components are built; the whole output is in "+f.Log)
}

// runCommand runs a command on what is made so far. The layer is empty when it changed nothing.
func (r *stageRun) runCommand(ctx context.Context, label string, c execop.Command) (layer.Descriptor, error) {
	if err := r.runs.Acquire(ctx, 1); err != nil {
		return layer.Descriptor{}, err
	}
	defer r.runs.Release(1)
	c.Arch = r.arch()
	d, err := r.runner.Run(ctx, label, r.made.layers(), c)
	if err != nil {
		return d, err
	}
	if empty, err := execop.Empty(ctx, r.opts.Store, d); empty || err != nil {
		return layer.Descriptor{}, err
	}
	return d, nil
}

// arch is the architecture of the stage's programs, by Go's name.
func (r *stageRun) arch() string {
	if r.made.base == nil {
		return r.plan.Platform.Architecture
	}
	return r.made.base.Config.Architecture
}

// inherit gives a recipe's command an environment to begin with, and the virtual environment.
func inherit(c execop.Command, env environment, venv string) execop.Command {
	if venv != "" {
		env.enter(venv)
	}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		env.set(name, value)
	}
	c.Env = env
	return c
}

// fill says what a mount shows.
//
// With serve, files of a build context that are only read are served from where they are, and otherwise copied.
func (r *stageRun) fill(ctx context.Context, m plan.Mount, serve bool) (execop.Mount, error) {
	filled := m.Mount
	switch {
	case m.Files.Stage != nil:
		other, err := r.builder.stage(ctx, m.Files.Stage)
		if err != nil {
			return filled, err
		}
		filled.Layers = other.layers()
	case m.Files.Dir != "" && serve && m.Kind == execop.Bind && m.ReadOnly:
		from, err := r.opts.Open(m.Files.Dir)
		if err != nil {
			return filled, err
		}
		filled.Tree, err = from.Serve(path.Join(".", m.Source), timeOf(r.stage.Layer))
		return filled, err
	case m.Files.Dir != "":
		d, err := r.contextLayer(ctx, m, r.stage.Layer)
		if err != nil {
			return filled, err
		}
		filled.Layers = []layer.Descriptor{d}
	}
	return filled, nil
}

// timeOf is the time of files that a copy gives none.
func timeOf(o layer.Options) time.Time {
	if o.ModTime.IsZero() || o.ModTime.Equal(layer.KeepTimes) {
		return layer.DefaultModTime
	}
	return o.ModTime
}

// contextOf names what a mount shows of a build context.
type contextOf struct {
	from, source string
}

// contextLayer makes a layer of the part of a build context that a mount shows, once for all mounts of it.
func (b *builder) contextLayer(ctx context.Context, m plan.Mount, o layer.Options) (layer.Descriptor, error) {
	o.Compression = layer.None // it is unpacked at once, and sent nowhere
	id := contextOf{m.From, m.Source}
	b.mu.Lock()
	run, ok := b.contexts[id]
	if !ok {
		run = sync.OnceValues(func() (layer.Descriptor, error) {
			from, err := b.opts.Open(m.Files.Dir)
			if err != nil {
				return layer.Descriptor{}, err
			}
			return m.Part().Layer(ctx, b.opts.Store, from, nil, o, nil)
		})
		b.contexts[id] = run
	}
	b.mu.Unlock()
	return run()
}
