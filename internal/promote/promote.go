// Package promote gives a tested image the tags that users pull, in one or several registries.
//
// Registries know no conditions: a tag that is written twice belongs to the last writer, and who looked before cannot know. So who is
// about to write a tag claims it first, with an artifact under claim.<tag>.<image>.<owner> beside the image:
//
//	write the claim, active; list the tags
//	another's claim is active   → overwrite the own one as withdrawn, wait at random, begin again
//	none is                     → look once more at the tag, write it, read it back; withdraw the claim
//
// Of two who claim at once at least one sees the other, because each writes before it lists; so two never both write. A claim that is
// an hour old without its tag is that of somebody who died. Clocks of those who promote may differ by some minutes.
//
// Everything that takes long is done before: blobs and manifests are in all registries before the first claim, and tags come last. Each
// step may be the last one of a process that is killed; who runs again finds what is done, and does the rest.
package promote

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// Promotion is what is to be done.
type Promotion struct {
	From  string       // HOST/PATH of the repository that holds the image, its evidence, and the claims
	Image store.Digest // of its manifest or index
	To    []Target

	// By what right, see [Demand].
	Recipe   bool
	Required []Required
	Untested []string
	Allowed  bool

	Below []Place // what the image is based on or lists, none of which may be withdrawn

	Origin *evidence.Origin // of who promotes, for the record
}

// Target is a tag for users.
type Target struct {
	Repository string // HOST/PATH
	Tag        string
	Mutable    bool // it may be moved from another image to this one
}

// String returns HOST/PATH:TAG.
func (t Target) String() string { return t.Repository + ":" + t.Tag }

// Options say how it is done.
type Options struct {
	Store  *store.Store
	Fetch  *fetch.Client
	Trust  []*attest.PublicKey // who signs evidence
	Key    *attest.PrivateKey  // signs the record of a promotion by a recipe; nil: none is kept
	DryRun bool                // only look

	Tries int                                      // how often a tag is claimed; 0 means 20
	Wait  func(ctx context.Context, try int) error // between two claims; nil waits some seconds, at random
	Now   func() time.Time                         // nil is the clock
}

// Report is what was found and done.
type Report struct {
	Image    store.Digest `json:"image"`
	From     string       `json:"from"`
	DryRun   bool         `json:"dryRun,omitempty"`
	Evidence []Verdict    `json:"evidence"`
	Untested []string     `json:"untested,omitempty"` // what nothing tests, and need not
	Targets  []Outcome    `json:"targets"`
}

// Outcome is what became of a target.
type Outcome struct {
	Target string       `json:"target"` // HOST/PATH:TAG
	State  string       `json:"state"`  // "there", "written", "moved"; of a dry run "would write", "would move"
	Was    store.Digest `json:"was,omitempty"`
}

// WrittenError says that a tag that is written once leads to another image.
type WrittenError struct {
	Target Target
	Is     store.Digest
	Wanted store.Digest
}

func (e *WrittenError) Error() string {
	return fmt.Sprintf("%s is written already: it is %s, and not %s", e.Target, e.Is.Short(), e.Wanted.Short())
}

// Hint says what can be done.
func (*WrittenError) Hint() string {
	return "what users have pulled stays what it is: give the image a version of its own, or declare the tag mutable (--mutable)"
}

// ExitCode is that of a problem that was found.
func (*WrittenError) ExitCode() int { return fault.CodeProblem }

// promoter does one promotion.
type promoter struct {
	Promotion
	opts    Options
	from    *registry.Repository
	targets []*registry.Repository // beside To
	claims  *claims
	owner   string // of the claims
	report  *Report
}

// Run promotes an image. What it reports with an error is what was found so far.
func Run(ctx context.Context, p Promotion, o Options) (*Report, error) {
	r, err := newPromoter(p, o)
	if err != nil {
		return nil, err
	}
	err = r.run(ctx)
	return r.report, err
}

func newPromoter(p Promotion, o Options) (*promoter, error) {
	if o.Tries <= 0 {
		o.Tries = 20
	}
	if o.Wait == nil {
		o.Wait = waitAtRandom
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if len(p.To) == 0 {
		return nil, fault.Usage(fmt.Errorf("promote %s: nothing says where to", p.From))
	}
	r := &promoter{Promotion: p, opts: o, owner: newOwner(), report: &Report{Image: p.Image, From: p.From, DryRun: o.DryRun, Evidence: []Verdict{}, Targets: []Outcome{}}}
	var err error
	if r.from, err = registry.OpenForWriting(p.From, registry.Options{Fetch: o.Fetch, Push: !o.DryRun}); err != nil {
		return nil, err
	}
	for _, t := range p.To {
		repo, err := registry.OpenForWriting(t.Repository, registry.Options{Fetch: o.Fetch, Push: !o.DryRun})
		if err != nil {
			return nil, err
		}
		r.targets = append(r.targets, repo)
	}
	r.claims = &claims{r.from, p.From, o.Store, o.Fetch}
	return r, nil
}

// waitStep is what waits grow by.
const waitStep = 2 * time.Second

func waitAtRandom(ctx context.Context, try int) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(time.Duration(min(try, 5)) * waitStep)):
		return nil
	}
}

func (r *promoter) run(ctx context.Context) error {
	there, err := r.from.Resolve(ctx, string(r.Image))
	if err != nil {
		return err
	}
	if there == "" {
		return fmt.Errorf("%s holds no image %s", r.From, r.Image)
	}
	if err := r.checkWithdrawn(ctx); err != nil {
		return err
	}
	found, err := r.checkEvidence(ctx)
	if err != nil {
		return err
	}
	missing, err := r.look(ctx)
	if err != nil || r.opts.DryRun {
		return err
	}
	recorded, err := r.record(ctx, found, len(missing) > 0)
	if err != nil || len(missing) == 0 && !recorded {
		return err
	}
	manifest, err := r.transfer(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	return r.writeTags(ctx, manifest)
}

// look finds out what each target is now, notes it, and returns the indexes of those that are to be written.
func (r *promoter) look(ctx context.Context) ([]int, error) {
	var missing []int
	before := r.report.Targets
	r.report.Targets = make([]Outcome, len(r.To))
	for i, t := range r.To {
		is, err := r.targets[i].Resolve(ctx, t.Tag)
		if err != nil {
			r.report.Targets = before
			return nil, err
		}
		outcome := Outcome{Target: t.String(), State: "there"}
		switch {
		case is == r.Image:
			if len(before) > 0 && before[i].State == "written" {
				outcome = before[i]
			}
		case is == "":
			outcome.State = "would write"
			missing = append(missing, i)
		case t.Mutable:
			outcome.State, outcome.Was = "would move", is
			missing = append(missing, i)
		default:
			r.report.Targets = before
			return nil, &WrittenError{t, is, r.Image}
		}
		r.report.Targets[i] = outcome
	}
	return missing, nil
}

// transfer brings the image to all repositories of targets, and to those that list what is about an image also its evidence.
func (r *promoter) transfer(ctx context.Context) (registry.Manifest, error) {
	var m registry.Manifest
	var done []string
	for i, t := range r.To {
		if slices.Contains(done, t.Repository) {
			continue
		}
		done = append(done, t.Repository)
		var err error
		how := registry.PushOptions{Store: r.opts.Store, Fetch: r.opts.Fetch}
		if m, err = registry.Transfer(ctx, r.from, r.Image, t.Repository, how); err != nil {
			return m, err
		}
		if lists, err := r.targets[i].ListsReferrers(ctx, r.Image); err != nil || !lists {
			if err != nil {
				return m, err
			}
			continue
		}
		if err := r.transferEvidence(ctx, t.Repository, how); err != nil {
			return m, err
		}
	}
	return m, nil
}

// transferEvidence copies what is known of the image, and of what an index lists, without tags: users' repositories have none that are not for them.
func (r *promoter) transferEvidence(ctx context.Context, to string, how registry.PushOptions) error {
	if to == r.From {
		return nil
	}
	tags, err := r.from.Tags(ctx)
	if err != nil {
		return err
	}
	_, parts, err := r.from.Reach(ctx, string(r.Image))
	if err != nil {
		return err
	}
	prefixes := evidence.Tags(r.Image)
	for _, part := range parts {
		prefixes = append(prefixes, evidence.Tags(part)...)
	}
	slices.Sort(tags)
	for _, tag := range tags {
		known := func(prefix string) bool { return strings.HasPrefix(tag, prefix) }
		if !slices.ContainsFunc(prefixes, known) {
			continue
		}
		d, err := r.from.Resolve(ctx, tag)
		if err != nil {
			return err
		}
		if d == "" {
			continue
		}
		if _, err := registry.Transfer(ctx, r.from, d, to, how); err != nil {
			return err
		}
	}
	return nil
}

// writeTags claims the tags, and writes them when nobody else does.
func (r *promoter) writeTags(ctx context.Context, m registry.Manifest) error {
	began := time.Now()
	for try := 1; ; try++ {
		rival, err := r.attempt(ctx, m)
		if err != nil || rival == nil {
			return err
		}
		if try == r.opts.Tries && rival.State == deletion {
			return fmt.Errorf("promote to %s: %s is being deleted from %s: run it again later", rival.Tag, rival.Image.Short(), r.From)
		}
		if try == r.opts.Tries {
			err := fmt.Errorf("somebody else has been promoting %s to %s since %s", rival.Image.Short(), rival.Tag, rival.Since.UTC().Format(time.RFC3339))
			return fault.Hint(err, fmt.Sprintf("if they died, their claim, %s:%s, no longer counts an hour after that", r.From, rival.name()))
		}
		what := fmt.Sprintf("%s is being promoted to %s by somebody else", rival.Image.Short(), rival.Tag)
		if rival.State == deletion {
			what = fmt.Sprintf("%s is being deleted from %s", rival.Image.Short(), r.From)
		}
		progress.Wait(ctx, what+": waiting", time.Since(began))
		if err := r.opts.Wait(ctx, try); err != nil {
			return err
		}
		missing, err := r.look(ctx)
		if err != nil || len(missing) == 0 {
			return err
		}
	}
}

// attempt is one claim. With a rival nothing was written.
func (r *promoter) attempt(ctx context.Context, m registry.Manifest) (rival *claim, err error) {
	mine := r.makeClaims()
	for _, c := range mine {
		if err := r.claims.write(ctx, c); err != nil {
			return nil, fmt.Errorf("claim %s: %w", c.Tag, err)
		}
	}
	rival, err = r.claims.against(ctx, mine, r.opts.Now)
	if err == nil && rival == nil {
		err = r.checkWithdrawn(ctx) // once more: who withdraws it from here on sees the claim
	}
	if err == nil && rival == nil {
		var missing []int
		missing, err = r.look(ctx) // once more: who was before may have withdrawn because it had written
		if err == nil {
			// What is tried from here on may arrive later than an error about it: the claim stays until it is known what happened.
			if err := r.put(ctx, m, missing, mine[0].Since); err != nil {
				return nil, err
			}
		}
	}
	return rival, r.withdraw(ctx, mine, err)
}

// makeClaims returns a claim for each different tag.
func (r *promoter) makeClaims() []*claim {
	var all []*claim
	for _, t := range r.To {
		i := slices.IndexFunc(all, func(c *claim) bool { return c.Tag == t.Tag })
		if i < 0 {
			all = append(all, &claim{Tag: t.Tag, Image: r.Image, State: active, Since: r.opts.Now().UTC(), Owner: r.owner})
			i = len(all) - 1
		}
		all[i].Targets = append(all[i].Targets, t.Repository)
	}
	return all
}

// withdraw ends claims. err is what happened before.
func (r *promoter) withdraw(ctx context.Context, mine []*claim, err error) error {
	for _, c := range mine {
		c.State = withdrawn
		if failed := r.claims.write(ctx, c); failed != nil && err == nil {
			err = fmt.Errorf("withdraw the claim to %s: %w", c.Tag, failed)
		}
	}
	return err
}

// putTag writes a tag. One that is written once is not moved any more, where the registry looks: somebody may have written it by other means.
func (r *promoter) putTag(ctx context.Context, m registry.Manifest, i int) error {
	t, only := r.To[i], registry.Condition{}
	if !t.Mutable {
		only = registry.IfAbsent()
	}
	err := r.targets[i].PutManifestIf(ctx, only, m.Data, m.MediaType, t.Tag)
	if registry.IsRefused(err) {
		is, unknown := r.targets[i].Resolve(ctx, t.Tag)
		switch {
		case unknown != nil:
			return unknown
		case is == r.Image: // written by an earlier try, of which the answer was lost, or by somebody with the same image
			return nil
		case is != "":
			return &WrittenError{t, is, r.Image}
		}
	}
	if err != nil {
		return fmt.Errorf("promote to %s: %w", t, err)
	}
	return nil
}

// put writes the tags that are missing and reads all of them back.
func (r *promoter) put(ctx context.Context, m registry.Manifest, missing []int, since time.Time) error {
	for _, i := range missing {
		if r.opts.Now().Sub(since) > claimLife/2 {
			return fmt.Errorf("promote to %s: it took so long that others may believe nobody does: run it again", r.To[i])
		}
		if err := r.putTag(ctx, m, i); err != nil {
			return err
		}
		o := &r.report.Targets[i]
		o.State = map[string]string{"would write": "written", "would move": "moved"}[o.State]
	}
	for i, t := range r.To {
		is, err := r.targets[i].Resolve(ctx, t.Tag)
		if err != nil {
			return err
		}
		if is != r.Image {
			err := fmt.Errorf("%s was written, and is %q when it is read back", t, is)
			return fault.Hint(err, "somebody writes it by other means than sconce promote")
		}
	}
	return nil
}
