package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/promote"
)

// RunOptions say how a pipeline is run.
type RunOptions struct {
	Jobs    int // images built at once; 0: 2
	Build   engine.BuildOptions
	Replace bool                                         // what nobody trusted has signed, under a canonical reference, is replaced by what is built
	Wait    func(context.Context) error                  // between two attempts to send an image that is being deleted; nil: some seconds
	After   func(context.Context, *Status) (bool, error) // what is done for each image once it is there, before what is based on it is built; false stops that. nil: nothing
	Afters  int                                          // images for which After works at once; 0: 1
	On      func(context.Context, *Status) error         // has an image built, and sent to its canonical reference, by another machine; nil: it is built here
	Tell    func(Done)                                   // what has been done for an image, in the order of events, one at a time; nil: nobody asks
}

// Done is what came of an image.
type Done struct {
	*Status
	Built  bool // it was built now, or put together from what the store had, and pushed
	Failed error
	Waited bool // it was left alone, as what it is based on failed
}

// buildsAtOnce is how many images are built side by side when nobody says: one keeps the cores busy, and another one the network.
const buildsAtOnce = 2

// Run builds what is missing of the given statuses and sends it to its canonical reference, in the order in which images stand on each
// other and several at once. What failed stops only what is based on it; the error is of all that failed. Whoever runs it again, or beside
// another, does what is missing then.
func (p *Pipeline) Run(ctx context.Context, s *engine.Session, all []*Status, o RunOptions) ([]Done, error) {
	if o.Jobs <= 0 {
		o.Jobs = buildsAtOnce
	}
	afters := semaphore.NewWeighted(int64(max(o.Afters, 1)))
	r := &runner{afters: afters, Pipeline: p, session: s, opts: o, slots: semaphore.NewWeighted(int64(o.Jobs)), ends: make(map[string]chan struct{}), failed: make(map[string]bool)}
	for _, st := range all {
		r.ends[st.Image.Ref] = make(chan struct{})
	}
	results := make([]Done, len(all))
	var wg sync.WaitGroup
	for n, st := range all {
		wg.Go(func() {
			defer close(r.ends[st.Image.Ref])
			results[n] = r.image(ctx, st)
			r.tell(results[n])
		})
	}
	wg.Wait()
	var failures []error
	for _, d := range results {
		if d.Failed != nil {
			failures = append(failures, fmt.Errorf("%s: %w", d.Image.Ref, d.Failed))
		}
	}
	if err := ctx.Err(); err != nil {
		return results, err
	}
	return results, errors.Join(failures...)
}

// runner is one run.
type runner struct {
	*Pipeline
	session *engine.Session
	opts    RunOptions
	slots   *semaphore.Weighted
	afters  *semaphore.Weighted

	ends   map[string]chan struct{} // by Image.Ref: closed when nothing more is done for it; never changed
	mu     sync.Mutex
	failed map[string]bool
}

// image does what is to be done for an image, once what it is based on is done.
func (r *runner) image(ctx context.Context, st *Status) Done {
	d := Done{Status: st}
	for _, below := range st.Below() {
		if end := r.ends[below.Ref]; end != nil {
			<-end
		}
	}
	for _, below := range st.Below() {
		if r.hasFailed(below.Ref) {
			r.fail(st.Image.Ref)
			d.Waited = true
			return d
		}
	}
	if st.Action == Withdrawn { // for a person: the recipe has to change
		r.fail(st.Image.Ref)
		return d
	}
	switch {
	case st.IsToBuild() && st.Parts != nil:
		d.Failed = r.join(ctx, st)
		d.Built = d.Failed == nil
	case st.IsToBuild():
		d.Failed = r.build(ctx, st)
		d.Built = d.Failed == nil
	case st.Action == Lock:
		d.Failed = st.Problem
	}
	good := d.Failed == nil
	if good && r.opts.After != nil {
		good, d.Failed = r.after(ctx, st)
	}
	if !good || d.Failed != nil {
		r.fail(st.Image.Ref)
	}
	return d
}

// after does what comes after an image.
func (r *runner) after(ctx context.Context, st *Status) (bool, error) {
	if err := r.afters.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer r.afters.Release(1)
	return r.opts.After(ctx, st)
}

func (r *runner) hasFailed(ref string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[ref]
}

func (r *runner) fail(ref string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed[ref] = true
}

func (r *runner) tell(d Done) {
	if r.opts.Tell != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.opts.Tell(d)
	}
}

// build builds an image and sends it to its canonical reference, unless somebody else has done so meanwhile.
func (r *runner) build(ctx context.Context, st *Status) error {
	if err := r.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.slots.Release(1)
	if _, err := r.trusted(nil); err != nil { // before anything is taken or built
		return err
	}
	if r.opts.On != nil {
		return r.buildOn(ctx, st)
	}
	planned, err := r.Plan(ctx, r.session, st.Recipe)
	if err != nil {
		return err
	}
	defer planned.Close()
	if planned.Image.Key != st.Key {
		return errors.New("its files changed while the pipeline ran: run it again")
	}
	made, err := r.session.Build(ctx, planned, r.opts.Build)
	if err != nil {
		return err
	}
	digest, found, err := r.session.Head(ctx, st.Canonical)
	if err != nil {
		return err
	}
	if found {
		if found, err = r.belongs(ctx, st.Image, digest, made.Image.Digest); err != nil {
			return err
		}
	}
	if found {
		st.Digest = digest
		return nil
	}
	st.Digest = made.Image.Digest
	return r.untilKept(ctx, st, func() error { return r.send(ctx, st, planned, made) })
}

// buildOn has another machine build an image.
func (r *runner) buildOn(ctx context.Context, st *Status) error {
	if err := r.opts.On(ctx, st); err != nil {
		return err
	}
	digest, found, err := r.session.Head(ctx, st.Canonical)
	if err == nil && !found {
		err = fmt.Errorf("it was built, and is not under %s: did its files change meanwhile? Run it again", st.Canonical)
	}
	if err == nil {
		_, err = r.belongs(ctx, st.Image, digest, "")
	}
	st.Digest = digest
	return err
}

// untilKept sends an image. When the same one is being deleted, it is sent again once it is gone.
func (r *runner) untilKept(ctx context.Context, st *Status, send func() error) error {
	repository := repositoryOf(st.Canonical)
	began := time.Now()
	for try := 1; ; try++ {
		if err := send(); err != nil {
			return err
		}
		deleting, err := promote.IsBeingDeleted(ctx, repository, st.Digest, r.session.Store, r.session.Fetch)
		if err != nil || !deleting {
			return err
		}
		if try == deletionTries {
			return fmt.Errorf("the same image is being deleted from %s: run it again later", repository)
		}
		progress.Wait(ctx, st.Digest.Short()+" is being deleted from "+repository+": waiting to send it again", time.Since(began))
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
}

// deletionTries is how often an image is sent that is being deleted, and deletionWait how long is waited in between: a deletion takes
// seconds.
const (
	deletionTries = 60
	deletionWait  = 2 * time.Second
)

func (r *runner) wait(ctx context.Context) error {
	if r.opts.Wait != nil {
		return r.opts.Wait(ctx)
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(deletionWait):
		return nil
	}
}

// createdNow are the notes of what is sent for the first time now.
func createdNow() map[string]string {
	return map[string]string{promote.NoteCreated: time.Now().UTC().Format(time.RFC3339Nano)}
}

// send brings an image to its canonical reference. That comes last: first the image under its digest, and what tells of it, so that what is
// killed on the way leaves nothing that is taken for done.
func (r *runner) send(ctx context.Context, st *Status, planned *engine.Plan, made *engine.Built) error {
	repository := repositoryOf(st.Canonical)
	key, err := r.Key()
	if err != nil {
		return err
	}
	if err := r.session.PushUntagged(ctx, made.Image, repository); err != nil {
		return err
	}
	notes := createdNow()
	if st.Base != nil {
		notes[promote.NoteBase] = st.Base.Canonical
	}
	if err := r.session.Describe(ctx, repository, made.Image, made.Name, st.Recipe, planned, key, notes); err != nil {
		return err
	}
	if err := r.session.AttachOrigin(ctx, repository, made.Image.Digest, r.origin(ctx), key); err != nil {
		return err
	}
	_, err = r.session.Push(ctx, made.Image, st.Canonical)
	return err
}
