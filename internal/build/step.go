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
func (b *builder) once(ctx context.Context, key string, do func() (layer.Descriptor, error)) (layer.Descriptor, error) {
	if d, ok := b.recorded(plan.Key(key)); ok {
		return d, nil
	}
	lock, err := b.opts.Store.Lock(ctx, "step "+key)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer lock.Unlock()
	if d, ok := b.recorded(plan.Key(key)); ok {
		return d, nil // another process made it while this one waited
	}
	if d, ok := b.fetched(ctx, key); ok {
		return d, b.record(key, d)
	}
	d, err := do()
	if err != nil {
		return d, err
	}
	if err := b.record(key, d); err != nil {
		return d, err
	}
	b.share(ctx, key, d)
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

// makeStep makes the layer of one step, on top of m.
func (b *builder) makeStep(ctx context.Context, s *plan.Stage, t *plan.Step, m *made) (layer.Descriptor, error) {
	if t.Key == "" {
		return layer.Descriptor{}, nil
	}
	d, err := b.once(ctx, string(t.Key), func() (layer.Descriptor, error) { return b.doStep(ctx, s, t, m) })
	if err != nil {
		return d, stepError(t, err)
	}
	return d, nil
}

// stepError says where the step is written, and what it is unless the error does so itself.
func stepError(t *plan.Step, err error) error {
	if t.Run != nil { // whose errors begin with what it is
		return fmt.Errorf("%s: %w", t.Place, err)
	}
	return fmt.Errorf("%s: %s: %w", t.Place, t.Label(), err)
}

func (b *builder) doStep(ctx context.Context, s *plan.Stage, t *plan.Step, m *made) (layer.Descriptor, error) {
	if t.Run != nil {
		return b.runStep(ctx, s, t, m)
	}
	task := event.Begin(ctx, "step", t.Label(), 0)
	onto, err := image.NewTree(ctx, b.opts.Store, m.layers())
	if err != nil {
		return layer.Descriptor{}, task.End(err)
	}
	var d layer.Descriptor
	switch {
	case t.Copy != nil:
		d, err = b.copyStep(ctx, s, t.Copy, onto)
	case t.Dir != nil:
		d, _, err = transfer.MakeDir(ctx, b.opts.Store, t.Dir.Path, t.Dir.Owner, onto, s.Layer)
	case t.Patch != nil:
		d, err = t.Patch.Layer(ctx, b.opts.Store, onto, s.Layer)
	}
	return d, task.End(err)
}

func (b *builder) copyStep(ctx context.Context, s *plan.Stage, c *plan.CopyStep, onto *image.Tree) (layer.Descriptor, error) {
	from, err := b.files(ctx, c.From)
	if err != nil {
		return layer.Descriptor{}, err
	}
	return c.Copy.Layer(ctx, b.opts.Store, from, onto, s.Layer, b.openURL)
}

// files are what a source has; nil for the source of what comes from elsewhere.
func (b *builder) files(ctx context.Context, from plan.Source) (transfer.Files, error) {
	switch {
	case from.Context != nil:
		return from.Context, nil
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

func (b *builder) runStep(ctx context.Context, s *plan.Stage, t *plan.Step, m *made) (layer.Descriptor, error) {
	c := t.Run.Command
	if t.Run.Inherit && m.base != nil {
		c = inherit(c, s, m.base)
	}
	for _, mount := range t.Run.Mounts {
		filled, err := b.fill(ctx, s, mount)
		if err != nil {
			return layer.Descriptor{}, err
		}
		c.Mounts = append(c.Mounts, filled)
	}
	if err := b.runs.Acquire(ctx, 1); err != nil {
		return layer.Descriptor{}, err
	}
	defer b.runs.Release(1)
	d, err := b.runner.Run(ctx, t.Label(), m.layers(), c)
	if err != nil {
		return d, err
	}
	if empty, err := step.Empty(ctx, b.opts.Store, d); empty || err != nil {
		return layer.Descriptor{}, err
	}
	return d, nil
}

// inherit gives a recipe's command what the base's configuration says, and the virtual environment.
func inherit(c step.Command, s *plan.Stage, base *image.Image) step.Command {
	env := environment(slices.Clone(base.Config.Config.Env))
	if s.Env != nil {
		env.enter("/" + s.Env.Environment.Target.Root)
	}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		env.set(name, value)
	}
	c.Env = env
	return c
}

// fill says what a mount shows.
func (b *builder) fill(ctx context.Context, s *plan.Stage, m plan.Mount) (step.Mount, error) {
	filled := m.Mount
	switch {
	case m.Files.Stage != nil:
		other, err := b.stage(ctx, m.Files.Stage)
		if err != nil {
			return filled, err
		}
		filled.Layers = other.layers()
	case m.Files.Context != nil:
		d, err := b.contextLayer(ctx, m, s.Layer)
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
			return m.Part().Layer(ctx, b.opts.Store, m.Files.Context, nil, o, nil)
		})
		b.contexts[id] = run
	}
	b.mu.Unlock()
	return run()
}
