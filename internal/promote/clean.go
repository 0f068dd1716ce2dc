package promote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/store"
)

// Cleaning says what stays in repositories of images that can be made again, with what is known of them.
//
// Registries do not say when an image came, or was last asked for. So what nobody needs is marked with the time when that was seen
// first, and goes when the mark is old enough. What sconce has not written stays, and so does all that it leads to.
type Cleaning struct {
	Repositories []string                                               // HOST/PATH
	Canonical    func(repository, tag string) (line string, found bool) // the line that an image is of, by its tag; found is false for other tags
	Tags         map[string]string                                      // HOST/PATH:TAG that stay, and why
	Images       map[store.Digest]string                                // likewise, wherever they are
	Keep         time.Duration                                          // how long an image stays that nobody needs; negative: for ever
	Newest       int                                                    // how many images of a line stay in any case
}

// CleanOptions say how it is done.
type CleanOptions struct {
	Store  *store.Store
	Fetch  *fetch.Client
	Delete bool             // otherwise it is only told what would be done
	Now    func() time.Time // nil is the clock
}

// The states of what was found.
const (
	Kept    = "kept"
	Waiting = "waiting" // nobody needs it, and it stays for now
	Due     = "due"     // it is to be deleted
	Deleted = "deleted"
)

// Cleaned is what became of an image and what is known of it.
type Cleaned struct {
	Repository string         `json:"repository"`
	Tags       []string       `json:"tags"`   // of the image
	Images     []store.Digest `json:"images"` // none: what is left of one that is gone
	Said       int            `json:"said"`   // how many verdicts, logs and documents lie beside it
	State      string         `json:"state"`
	Because    string         `json:"because"`
	Unused     *time.Time     `json:"unused,omitempty"` // since when nobody needs it
}

// cleaner is one cleaning.
type cleaner struct {
	Cleaning
	opts    CleanOptions
	owner   string
	started time.Time
	surveys []*survey
}

// Clean tells what stays in repositories and what does not, and deletes the latter when it is asked to. All that is said before an error
// has been done. It may be run again, and beside promotions and builds: an image that is given a tag meanwhile stays.
func Clean(ctx context.Context, c Cleaning, o CleanOptions) ([]Cleaned, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &cleaner{Cleaning: c, opts: o, owner: newOwner(), started: o.Now().UTC()}
	if err := r.survey(ctx); err != nil {
		return nil, err
	}
	r.decide()
	if !o.Delete {
		return r.report(), nil
	}
	if err := r.mark(ctx); err != nil {
		return nil, err
	}
	due := r.due()
	if len(due) > 0 {
		// What came before the marks is seen now; who comes after them sees the marks.
		if err := r.survey(ctx); err != nil {
			return nil, errors.Join(err, r.unmark(ctx))
		}
		r.decide()
	}
	failed := r.delete(ctx, due)
	return r.report(), errors.Join(failed, r.unmark(ctx))
}

func (c *cleaner) survey(ctx context.Context) error {
	var all []*survey
	for _, name := range c.Repositories {
		repo, err := registry.OpenForWriting(name, registry.Options{Fetch: c.opts.Fetch, Push: c.opts.Delete})
		if err != nil {
			return err
		}
		s, err := c.look(ctx, &claims{repo, name, c.opts.Store, c.opts.Fetch})
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	c.surveys = all
	return nil
}

// all yields the groups of all repositories, in order.
func (c *cleaner) all() []*group {
	var all []*group
	for _, s := range c.surveys {
		for _, digits := range slices.Sorted(maps.Keys(s.groups)) {
			slices.Sort(s.groups[digits].tags)
			all = append(all, s.groups[digits])
		}
	}
	return all
}

// decide finds out of each group whether it stays, and why. Nothing goes that something is based on that stays.
func (c *cleaner) decide() {
	all := c.all()
	for _, s := range c.surveys {
		for _, g := range s.groups {
			g.because = c.needed(s, g)
		}
	}
	c.keepNewest(all)
	at := make(map[string]*group) // by NAME:TAG
	parts := make(map[string]*group)
	for _, g := range all {
		for _, tag := range g.tags {
			at[path.Base(g.repository+":"+tag)] = g
		}
		for d := range g.images {
			parts[g.repository+"@"+string(d)] = g
		}
		g.waits = g.because == "" && !c.isOver(g)
	}
	todo := slices.DeleteFunc(slices.Clone(all), (*group).due)
	for len(todo) > 0 {
		g := todo[0]
		todo = todo[1:]
		stays := func(other *group, because string) {
			if other != nil && other != g && other.due() {
				other.because = because
				todo = append(todo, other)
			}
		}
		stays(at[path.Base(g.base)], g.title()+" is based on it")
		for _, listed := range g.images {
			for _, d := range listed {
				stays(parts[g.repository+"@"+string(d)], "it is part of "+g.title())
			}
		}
	}
}

// title is what people know a group by.
func (g *group) title() string {
	if len(g.tags) > 0 {
		return g.repository + ":" + g.tags[0]
	}
	return g.repository + " " + g.digits
}

// needed says why a group is needed by itself; "" when it is not.
func (c *cleaner) needed(s *survey, g *group) string {
	for _, tag := range slices.Sorted(slices.Values(g.tags)) {
		if why := c.Tags[s.name+":"+tag]; why != "" {
			return why
		}
	}
	for _, d := range slices.Sorted(maps.Keys(g.images)) {
		if why := c.Images[d]; why != "" {
			return why
		}
		if tag := s.foreign[d]; tag != "" {
			return "the tag " + tag + " leads to it"
		}
	}
	if g.claimed != "" {
		return "it is being promoted to " + g.claimed
	}
	return ""
}

// keepNewest keeps the newest images of each line. Of which it is not known when they came, they are the oldest.
func (c *cleaner) keepNewest(all []*group) {
	lines := make(map[string][]*group)
	for _, g := range all {
		var own []string
		for _, tag := range g.tags {
			if line, ok := c.Canonical(g.repository, tag); ok && !slices.Contains(own, line) {
				own = append(own, line)
				lines[g.repository+" "+line] = append(lines[g.repository+" "+line], g)
			}
		}
	}
	for _, line := range lines {
		slices.SortStableFunc(line, func(a, b *group) int { return cmp.Or(b.created.Compare(a.created), cmp.Compare(a.digits, b.digits)) })
		for _, g := range line[:min(c.Newest, len(line))] {
			if g.because == "" {
				g.because = "it is one of the newest"
			}
		}
	}
}

// isOver reports whether nobody has needed a group for long enough.
func (c *cleaner) isOver(g *group) bool {
	if len(g.images) == 0 && len(g.said) == 0 { // marks alone are left
		return true
	}
	return c.Keep >= 0 && g.unused != nil && c.started.Sub(g.unused.Since) >= c.Keep
}

func (c *cleaner) due() map[string]bool {
	due := make(map[string]bool)
	for _, g := range c.all() {
		if g.due() {
			due[g.repository+" "+g.digits] = true
		}
	}
	return due
}

// mark writes down what nobody needs, since now, and what is about to be deleted; of what is needed again the mark goes.
func (c *cleaner) mark(ctx context.Context) error {
	for _, s := range c.surveys {
		for _, digits := range slices.Sorted(maps.Keys(s.groups)) {
			g := s.groups[digits]
			var m *mark
			switch {
			case g.due():
				m = &mark{Image: g.digits, Since: c.started, Owner: c.owner}
			case g.waits && g.unused == nil && c.Keep >= 0:
				m = &mark{Image: g.digits, Since: c.started}
				g.unused = m
			case !g.waits && g.unused != nil:
				if err := s.lift(ctx, g, &mark{Image: g.digits, Since: c.started}); err != nil {
					return err
				}
				g.unused = nil
			}
			if m == nil {
				continue
			}
			var err error
			if g.marks[m.name()], err = s.put(ctx, m.name(), markField, m); err != nil {
				return fmt.Errorf("mark %s: %w", g.title(), err)
			}
		}
	}
	return nil
}

// unmark takes the marks of this run back, also when it was stopped.
func (c *cleaner) unmark(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var failures []error
	for _, s := range c.surveys {
		for _, g := range s.groups {
			over := &mark{Image: g.digits, Since: c.started.Add(-claimLife), Owner: c.owner}
			if g.marks[over.name()] != "" {
				failures = append(failures, s.lift(ctx, g, over))
			}
		}
	}
	return errors.Join(failures...)
}

// lift deletes a mark. In a registry where nobody may, it is written anew as over.
func (s *survey) lift(ctx context.Context, g *group, over *mark) error {
	if s.drop(ctx, over.name(), g.marks[over.name()]) == nil {
		return nil
	}
	_, err := s.put(ctx, over.name(), markField, over)
	return err
}

// delete deletes what was due before and is still.
func (c *cleaner) delete(ctx context.Context, before map[string]bool) error {
	for _, s := range c.surveys {
		needed := s.neededDigests()
		for _, digits := range slices.Sorted(maps.Keys(s.groups)) {
			g := s.groups[digits]
			if !g.due() || !before[g.repository+" "+g.digits] {
				continue
			}
			if err := c.deleteGroup(ctx, s, g, needed); err != nil {
				return fmt.Errorf("%s: %w", g.title(), err)
			}
			g.deleted = true
		}
		for _, tag := range slices.Sorted(maps.Keys(s.old)) {
			if err := s.drop(ctx, tag, s.old[tag]); err != nil {
				return err
			}
		}
	}
	return nil
}

// neededDigests are all digests that something leads to that stays.
func (s *survey) neededDigests() map[store.Digest]bool {
	needed := make(map[store.Digest]bool)
	for d := range s.foreign {
		needed[d] = true
	}
	for _, g := range s.groups {
		if g.due() {
			continue
		}
		for d, listed := range g.images {
			needed[d] = true
			for _, one := range listed {
				needed[one] = true
			}
		}
		for _, d := range g.said {
			needed[d] = true
		}
	}
	return needed
}

// deleteGroup deletes an image first and then what is known of it, so that who is killed in between leaves what the next one cleans up.
func (c *cleaner) deleteGroup(ctx context.Context, s *survey, g *group, needed map[store.Digest]bool) error {
	var about []store.Digest
	for d := range g.images {
		found, err := s.about(ctx, d)
		if err != nil {
			return err
		}
		about = append(about, found...)
	}
	var order []store.Digest
	for d := range g.images {
		order = append(order, d)
	}
	for _, listed := range g.images {
		order = append(order, listed...)
	}
	order = append(order, about...)
	order = append(order, slices.Collect(maps.Values(g.said))...)
	for _, d := range order {
		if needed[d] {
			continue
		}
		if c.opts.Now().Sub(c.started) > claimLife/2 {
			return errors.New("it took so long that others may believe nobody deletes it: run it again")
		}
		if err := s.repo.Delete(ctx, d); err != nil {
			return err
		}
	}
	for _, tag := range slices.Concat(g.tags, slices.Sorted(maps.Keys(g.said))) {
		if err := s.dropTag(ctx, tag, order, needed); err != nil {
			return err
		}
	}
	own := (&mark{Image: g.digits, Owner: c.owner}).name()
	for tag, d := range g.marks {
		if tag == own {
			continue // it comes last
		}
		if err := s.drop(ctx, tag, d); err != nil {
			return err
		}
	}
	return nil
}

// maxAbout bounds how much of what refers to an image is deleted with it.
const maxAbout = 4096

// about lists what refers to an image. A list is only believed where what it names says so itself.
func (s *survey) about(ctx context.Context, image store.Digest) ([]store.Digest, error) {
	list, err := s.repo.Referrers(ctx, image)
	if err != nil {
		return nil, err
	}
	var all []store.Digest
	for _, r := range list[:min(len(list), maxAbout)] {
		d, err := store.ParseDigest(r.Digest.String())
		if err != nil {
			continue
		}
		data, _, err := s.repo.Manifest(ctx, string(d))
		if registry.IsAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var c content
		if json.Unmarshal(data, &c) == nil && c.Subject != nil && c.Subject.Digest.String() == string(image) {
			all = append(all, d)
		}
	}
	return all, nil
}

// drop deletes a small artifact of one's own, and its tag.
func (s *survey) drop(ctx context.Context, tag string, d store.Digest) error {
	if err := s.repo.Delete(ctx, d); err != nil {
		return err
	}
	return s.dropTag(ctx, tag, []store.Digest{d}, nil)
}

// dropTag deletes a tag in registries that keep it when what it leads to is deleted. One that was moved since leads to something else.
func (s *survey) dropTag(ctx context.Context, tag string, was []store.Digest, needed map[store.Digest]bool) error {
	d, err := s.repo.Resolve(ctx, tag)
	if err != nil || d == "" || !slices.Contains(was, d) || needed[d] {
		return err
	}
	return s.repo.DeleteTag(ctx, tag)
}

// report tells what was found, and what was done.
func (c *cleaner) report() []Cleaned {
	all := []Cleaned{}
	for _, g := range c.all() {
		if len(g.images)+len(g.said) == 0 {
			continue
		}
		one := Cleaned{
			Repository: g.repository, Tags: append([]string{}, g.tags...), Images: append([]store.Digest{}, slices.Sorted(maps.Keys(g.images))...),
			Said: len(g.said), State: Kept, Because: g.because,
		}
		if g.unused != nil {
			one.Unused = &g.unused.Since
		}
		switch {
		case g.waits:
			one.State, one.Because = Waiting, c.whyWaits(g)
		case g.because == "":
			one.State, one.Because = Due, "nothing refers to it any more"
			if g.deleted {
				one.State = Deleted
			}
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b Cleaned) int { return strings.Compare(a.Repository, b.Repository) })
	return all
}

func (c *cleaner) whyWaits(g *group) string {
	switch {
	case c.Keep < 0:
		return "nothing refers to it any more, and it stays for ever"
	case g.unused == nil:
		return "nothing refers to it any more"
	}
	return "nothing has referred to it since " + g.unused.Since.UTC().Format(time.DateOnly)
}
