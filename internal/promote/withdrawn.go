package promote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// Place is an image, and where it lies: each of the repositories may say that it is withdrawn.
type Place struct {
	Name         string // as people know it
	Image        store.Digest
	Repositories []string // HOST/PATH
	How          string   // what it is to another image: see [evidence.WithdrawnError]
}

// Withdrawal looks whether an image is withdrawn, and returns the note that says so, or nil, and others that do not count. A registry that does not
// answer is an error; a repository of what another image is based on need not be readable.
func Withdrawal(ctx context.Context, p Place, o Options) (counts *evidence.Note, others []*evidence.Note, err error) {
	notes := make([]*evidence.Note, len(p.Repositories))
	g, inner := errgroup.WithContext(ctx)
	for n, name := range p.Repositories {
		g.Go(func() error {
			b, err := evidence.Open(name, evidence.Options{Store: o.Store, Fetch: o.Fetch, Trust: o.Trust})
			if err == nil {
				notes[n], err = b.Note(inner, p.Image)
			}
			if p.How != "" && registry.IsDenied(err) { // what users' images stand on need not be theirs to read
				err = nil
			}
			if err != nil {
				return fmt.Errorf("look whether %s is withdrawn: %w", p.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	counts, others = evidence.Judge(notes, o.Trust)
	return counts, others, nil
}

// TellOthers tells of notes about an image that do not count.
func TellOthers(ctx context.Context, p Place, others []*evidence.Note) {
	for _, n := range others {
		progress.Warn(ctx, fmt.Sprintf("somebody has written beside %s in %s that it is withdrawn, and no trusted key has signed that: %s", p.Name, n.Repository, n.Because),
			"it does not count: find out who wrote it")
	}
}

// checkWithdrawn refuses an image that is withdrawn, or that is based on one that is.
func (r *promoter) checkWithdrawn(ctx context.Context) error {
	own := Place{Name: r.From + "@" + r.Image.Short(), Image: r.Image, Repositories: []string{r.From}}
	for _, t := range r.To {
		if !slices.Contains(own.Repositories, t.Repository) {
			own.Repositories = append(own.Repositories, t.Repository)
		}
	}
	for _, p := range append([]Place{own}, r.Below...) {
		note, others, err := Withdrawal(ctx, p, r.opts)
		if err != nil {
			return err
		}
		TellOthers(ctx, p, others)
		if note != nil {
			return &evidence.WithdrawnError{Image: own.Name, Note: note, How: p.How}
		}
	}
	return nil
}

// Withdrawing is what is to be withdrawn.
type Withdrawing struct {
	From    string       // HOST/PATH of the repository that it is promoted from
	Image   store.Digest // of its manifest or index
	Users   []string     // HOST/PATH of the repositories for users
	Because string       // in one line
	Lift    bool         // it is withdrawn no longer; tags stay as they are

	KeepTags bool // tags for users stay
	Delete   bool // where a registry deletes no tags, the image itself goes
}

// Withdrawn is what came of it.
type Withdrawn struct {
	Image  store.Digest `json:"image"`
	DryRun bool         `json:"dryRun,omitempty"`
	Notes  []Outcome    `json:"notes"` // by repository: "written", "there", "would write"; "no image"
	Tags   []Outcome    `json:"tags"`  // for users: "removed", "deleted with the image", "would remove"; "stays: " and why
}

// WithdrawOptions say how it is done. Its Trust is that of the key.
type WithdrawOptions struct {
	Options
	Key *attest.PrivateKey // nil: notes are not signed
}

// Withdraw says beside an image, wherever it is, that it is withdrawn, and takes away the tags by which users pull it. Notes come first, so that
// whoever is killed in between leaves an image that nobody promotes any more; who runs it again does the rest.
func Withdraw(ctx context.Context, w Withdrawing, o WithdrawOptions) (*Withdrawn, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wait == nil {
		o.Wait = waitAtRandom
	}
	if o.Tries <= 0 {
		o.Tries = 20
	}
	done := &Withdrawn{Image: w.Image, DryRun: o.DryRun, Notes: []Outcome{}, Tags: []Outcome{}}
	found := false
	var failures []error // a registry that is away keeps the image in no other
	for _, name := range append([]string{w.From}, w.Users...) {
		outcome, err := w.note(ctx, name, o)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		found = found || outcome.State != noImage
		done.Notes = append(done.Notes, outcome)
	}
	if !found && len(failures) == 0 {
		return done, fault.Hint(fmt.Errorf("there is no image %s in %s", w.Image, w.From), "name it as HOST/NAME@DIGEST, in the repository that has it")
	}
	if w.Lift || w.KeepTags || !found {
		return done, errors.Join(failures...)
	}
	if !o.DryRun {
		if err := w.awaitPromotions(ctx, o); err != nil {
			failures = append(failures, err)
		}
	}
	for _, name := range w.Users {
		tags, err := w.removeTags(ctx, name, o)
		done.Tags = append(done.Tags, tags...)
		failures = append(failures, err)
	}
	return done, errors.Join(failures...)
}

// noImage is the state of a repository that does not hold the image.
const noImage = "no image"

func (w *Withdrawing) note(ctx context.Context, name string, o WithdrawOptions) (Outcome, error) {
	outcome := Outcome{Target: name, State: noImage}
	b, err := evidence.Open(name, evidence.Options{Store: o.Store, Fetch: o.Fetch, Key: o.Key, Trust: o.Trust, Write: !o.DryRun})
	if err != nil {
		return outcome, err
	}
	there, err := b.Repository().Resolve(ctx, string(w.Image))
	if err != nil || there == "" {
		return outcome, err
	}
	if o.DryRun {
		outcome.State = "would write"
		return outcome, nil
	}
	var tags []string
	if slices.Contains(w.Users, name) && !w.Lift {
		if tags, _, err = w.tagsOf(ctx, b.Repository()); err != nil {
			return outcome, err
		}
	}
	written, err := b.Withdraw(ctx, w.Image, w.Because, w.Lift, tags, o.Now())
	outcome.State = map[bool]string{true: "written", false: "there"}[written]
	if err != nil {
		err = fmt.Errorf("withdraw %s from %s: %w", w.Image.Short(), name, err)
	}
	return outcome, err
}

// awaitPromotions waits for who promotes the image now and may not have seen the note: of two who each write first and look then, one sees the other.
func (w *Withdrawing) awaitPromotions(ctx context.Context, o WithdrawOptions) error {
	repo, err := registry.OpenForWriting(w.From, registry.Options{Fetch: o.Fetch})
	if err != nil {
		return err
	}
	cs := &claims{repo, w.From, o.Store, o.Fetch}
	began := time.Now()
	for try := 1; ; try++ {
		c, err := cs.activeOn(ctx, w.Image, o.Now())
		if err != nil || c == nil {
			return err
		}
		if try == o.Tries {
			err := fmt.Errorf("somebody has been promoting %s to %s since %s", w.Image.Short(), c.Tag, c.Since.UTC().Format(time.RFC3339))
			return fault.Hint(err, "the note is written; run it again in a while, so that the tags go as well")
		}
		progress.Wait(ctx, fmt.Sprintf("%s is being promoted to %s: waiting", w.Image.Short(), c.Tag), time.Since(began))
		if err := o.Wait(ctx, try); err != nil {
			return err
		}
	}
}

// activeOn returns a claim for an image that is alive, or nil.
func (cs *claims) activeOn(ctx context.Context, image store.Digest, now time.Time) (*claim, error) {
	tags, err := cs.repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	for _, tag := range tags {
		if !claimForm.MatchString(tag) {
			continue
		}
		c, _, err := cs.read(ctx, tag)
		if err != nil {
			return nil, err
		}
		if c != nil && c.Image == image && c.alive(now) {
			return c, nil
		}
	}
	return nil, nil
}

// removeTags takes the tags away that lead to the image.
func (w *Withdrawing) removeTags(ctx context.Context, name string, o WithdrawOptions) ([]Outcome, error) {
	repo, err := registry.OpenForWriting(name, registry.Options{Fetch: o.Fetch, Push: !o.DryRun})
	if err != nil {
		return nil, err
	}
	tags, listedBy, err := w.tagsOf(ctx, repo)
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(tags))
	for i, tag := range tags {
		outcomes[i] = Outcome{Target: name + ":" + tag, State: "would remove"}
	}
	if o.DryRun {
		return outcomes, nil
	}
	for i, tag := range tags {
		if outcomes[i].State, err = w.removeTag(ctx, repo, tag); err != nil {
			return outcomes[:i], err
		}
	}
	if w.Delete && slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.State == onlyWhole }) {
		return outcomes, w.deleteWhole(ctx, repo, listedBy, outcomes)
	}
	return outcomes, nil
}

// onlyWhole is why a tag stays in registries that delete by digest, as docker-registry does: what users have named by digest would go as well.
const onlyWhole = "stays: this registry deletes no tags for you; with --delete the whole image is deleted"

// removeTag removes one tag, if it still leads to the image.
func (w *Withdrawing) removeTag(ctx context.Context, repo *registry.Repository, tag string) (string, error) {
	if is, err := repo.Resolve(ctx, tag); err != nil || is != w.Image {
		return "removed", err // somebody has done it, or moved it on
	}
	err := repo.DeleteTag(ctx, tag)
	if registry.DeletesNoTags(err) {
		return onlyWhole, nil
	}
	if err != nil {
		return "", err
	}
	if is, err := repo.Resolve(ctx, tag); err != nil || is != w.Image {
		return "removed", err
	}
	return onlyWhole, nil // it has said yes, and done nothing
}

// deleteWhole deletes the image itself, unless an index needs it.
func (w *Withdrawing) deleteWhole(ctx context.Context, repo *registry.Repository, listedBy string, outcomes []Outcome) error {
	state := "deleted with the image"
	if listedBy != "" {
		state = "stays: the index under the tag " + listedBy + " lists this image"
	} else if err := repo.Delete(ctx, w.Image); err != nil {
		if !registry.DeletesNoTags(err) {
			return err
		}
		state = "stays: this registry deletes nothing for you"
	}
	for i := range outcomes {
		if outcomes[i].State == onlyWhole {
			outcomes[i].State = state
		}
	}
	return nil
}

// tagsOf lists the tags that lead to the image, and one under which an index lists it.
func (w *Withdrawing) tagsOf(ctx context.Context, repo *registry.Repository) (own []string, listedBy string, err error) {
	tags, err := repo.Tags(ctx)
	if err != nil {
		return nil, "", err
	}
	tags = slices.DeleteFunc(tags, func(tag string) bool {
		_, said := evidence.ImageOf(tag)
		return said || listForm.MatchString(tag) || claimForm.MatchString(tag) || markForm.MatchString(tag)
	})
	slices.Sort(tags)
	leads, lists := make([]bool, len(tags)), make([]bool, len(tags))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(asksAtOnce)
	for i, tag := range tags {
		g.Go(func() error {
			data, listed, err := repo.Reach(inner, tag)
			if registry.IsAbsent(err) {
				return nil
			}
			leads[i], lists[i] = err == nil && store.DigestOf(data) == w.Image, slices.Contains(listed, w.Image)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, "", errors.Join(fmt.Errorf("look which tags lead to %s", w.Image.Short()), err)
	}
	for i, tag := range tags {
		if leads[i] {
			own = append(own, tag)
		}
		if lists[i] {
			listedBy = tag
		}
	}
	return own, listedBy, nil
}
