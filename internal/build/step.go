package build

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/event"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/step"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/system"
	"sconce.dev/sconce/internal/transfer"
)

// stepKind is the kind of the records that remember the layer made under a step's key. A step that changes nothing has an
// empty one.
const stepKind store.Kind = "step"

// Remote keeps what steps made where other machines find it.
type Remote interface {
	// Get brings what was put under key into the store, its JSON into v, and reports whether there is such a thing.
	Get(ctx context.Context, st *store.Store, kind, key string, v any) (bool, error)
	// Put keeps v and the blobs that it stands on.
	Put(ctx context.Context, st *store.Store, kind, key string, v any, blobs []store.Digest) error
}

// recorded returns what was made under key, if the store has it.
func (b *builder) recorded(key plan.Key) (layer.Descriptor, bool) {
	var d layer.Descriptor
	if b.opts.Again || key == "" {
		return d, false
	}
	found, err := b.opts.Store.GetRecord(stepKind, string(key), &d)
	return d, found && err == nil
}

// once makes the layer under key, unless this store has it or another machine has.
func (b *builder) once(ctx context.Context, key plan.Key, do func() (layer.Descriptor, error)) (layer.Descriptor, error) {
	if d, ok := b.recorded(key); ok {
		return d, nil
	}
	lock, err := b.opts.Store.Lock(ctx, "step "+string(key))
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer lock.Unlock()
	if d, ok := b.recorded(key); ok {
		return d, nil // another process made it while this one waited
	}
	if d, ok := b.fetched(ctx, string(key)); ok {
		return d, b.record(string(key), d)
	}
	d, err := do()
	if err != nil {
		return d, err
	}
	if err := b.record(string(key), d); err != nil {
		return d, err
	}
	b.share(ctx, string(key), d)
	return d, nil
}

func (b *builder) record(key string, d layer.Descriptor) error {
	return b.opts.Store.PutRecord(stepKind, key, blobsOf(d), d)
}

func blobsOf(d layer.Descriptor) []store.Digest {
	if d.Digest == "" {
		return nil
	}
	return []store.Digest{d.Digest}
}

// fetched takes a step's layer from another machine's work. A cache that fails is no reason for a build to fail.
func (b *builder) fetched(ctx context.Context, key string) (layer.Descriptor, bool) {
	var d layer.Descriptor
	if b.opts.Remote == nil || b.opts.Again {
		return d, false
	}
	found, err := b.opts.Remote.Get(ctx, b.opts.Store, string(stepKind), key, &d)
	if found && err == nil && d != (layer.Descriptor{}) { // that of a step that changed nothing
		err = d.Confirm(ctx, b.opts.Store)
	}
	b.doubt(ctx, "read", err)
	return d, found && err == nil
}

func (b *builder) share(ctx context.Context, key string, d layer.Descriptor) {
	if b.opts.Remote == nil || !b.opts.Share {
		return
	}
	b.doubt(ctx, "write", b.opts.Remote.Put(ctx, b.opts.Store, string(stepKind), key, d, blobsOf(d)))
}

// doubt warns once of a cache that does not do what it should.
func (b *builder) doubt(ctx context.Context, doing string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	b.doubted.Do(func() {
		event.Warn(ctx, fmt.Sprintf("cannot %s the registry's cache of steps: %v", doing, err), "see registry under [cache]; the build goes on without it")
	})
}

// stepError says where the step is written, and what it is unless the error does so itself.
func stepError(t *plan.Step, err error) error {
	if _, ok := t.Op.(*plan.Exec); ok { // whose errors begin with what it is
		return fmt.Errorf("%s: %w", t.Place, err)
	}
	return fmt.Errorf("%s: %s: %w", t.Place, t.Label(), err)
}

// change makes the layer of a step that depends on all below it.
func (r *stageRun) change(ctx context.Context, t *plan.Step) (layer.Descriptor, error) {
	switch op := t.Op.(type) {
	case *plan.OSPackages:
		return system.Layer(ctx, r.runner, r.opts.Fetch, string(t.Key), r.made.layers(), op.Pinned)
	case *plan.Exec:
		return r.exec(ctx, t.Label(), op)
	}
	task := event.Begin(ctx, "step", t.Label(), 0)
	d, err := r.changeFiles(ctx, t)
	return d, task.End(err)
}

// changeFiles makes the layer of a step that runs no program.
func (r *stageRun) changeFiles(ctx context.Context, t *plan.Step) (layer.Descriptor, error) {
	onto, err := image.NewTree(ctx, r.opts.Store, r.made.layers())
	if err != nil {
		return layer.Descriptor{}, err
	}
	switch op := t.Op.(type) {
	case *plan.Copy:
		return r.copyFiles(ctx, op, onto)
	case *plan.MakeDir:
		d, _, err := transfer.MakeDir(ctx, r.opts.Store, op.Path, op.Owner, onto, r.stage.Layer)
		return d, err
	case *plan.Patch:
		return op.Layer(ctx, r.opts.Store, onto, r.stage.Layer)
	}
	panic(fmt.Sprintf("build: no maker for %T", t.Op))
}

func (r *stageRun) copyFiles(ctx context.Context, c *plan.Copy, onto *image.Tree) (layer.Descriptor, error) {
	from, err := r.files(ctx, c.From)
	if err != nil {
		return layer.Descriptor{}, err
	}
	return c.Copy.Layer(ctx, r.opts.Store, from, onto, r.stage.Layer, r.openURL)
}

// files are what a source has; nil for the source of what comes from elsewhere.
func (b *builder) files(ctx context.Context, from plan.Source) (transfer.Files, error) {
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
	return transfer.FromTree(t), nil
}

// openURL opens what ADD takes from the network. The planner has decided which bytes those are.
func (b *builder) openURL(ctx context.Context, u transfer.URL) (io.ReadCloser, string, error) {
	request := fetch.Request{URL: u.Address, Digest: u.Digest, Name: fetch.Redact(u.Address)}
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

func (r *stageRun) exec(ctx context.Context, label string, op *plan.Exec) (layer.Descriptor, error) {
	c := op.Command
	if op.Inherit && r.made.base != nil {
		c = inherit(c, op.Venv, r.made.base)
	}
	for _, mount := range op.Mounts {
		filled, err := r.fill(ctx, mount)
		if err != nil {
			return layer.Descriptor{}, err
		}
		c.Mounts = append(c.Mounts, filled)
	}
	if err := r.runs.Acquire(ctx, 1); err != nil {
		return layer.Descriptor{}, err
	}
	defer r.runs.Release(1)
	d, err := r.runner.Run(ctx, label, r.made.layers(), c)
	if err != nil {
		return d, err
	}
	if empty, err := step.Empty(ctx, r.opts.Store, d); empty || err != nil {
		return layer.Descriptor{}, err
	}
	return d, nil
}

// inherit gives a recipe's command what the base's configuration says, and the virtual environment.
func inherit(c step.Command, venv string, base *image.Image) step.Command {
	env := environment(slices.Clone(base.Config.Config.Env))
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
func (r *stageRun) fill(ctx context.Context, m plan.Mount) (step.Mount, error) {
	filled := m.Mount
	switch {
	case m.Files.Stage != nil:
		other, err := r.builder.stage(ctx, m.Files.Stage)
		if err != nil {
			return filled, err
		}
		filled.Layers = other.layers()
	case m.Files.Dir != "":
		d, err := r.contextLayer(ctx, m, r.stage.Layer)
		if err != nil {
			return filled, err
		}
		filled.Layers = []layer.Descriptor{d}
	}
	return filled, nil
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
