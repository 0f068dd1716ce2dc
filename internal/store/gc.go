package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/progress"
)

// DefaultPruneAge is how long an object may go unused before prune removes it.
const DefaultPruneAge = 30 * 24 * time.Hour

// partialAge is how old a download may be and still be resumed.
const partialAge = 24 * time.Hour

// PruneOptions says what to remove. What a named image is based on always stays.
type PruneOptions struct {
	All       bool          // keep only what images need, whatever its age
	OlderThan time.Duration // remove what was not used for this long; 0: DefaultPruneAge
	KeepBytes int64         // when > 0: then remove what was used longest ago until the store holds no more than this
	Unpacked  bool          // of that, what is unpacked goes first: it is made again without network
	DryRun    bool          // only report
	OfUser    OfUser        // then remove of each user who has more what they used longest ago; nil: nobody has too much
	NoWait    bool          // fail at once, instead of waiting, when another process uses the store
}

// OfUser says how many bytes a user may have in the store, in blobs that they have brought and in what is unpacked; 0 is no limit.
type OfUser func(uid uint32) int64

// Over is a user who has more than they may, in what images need.
type Over struct {
	UID   uint32 `json:"uid"`
	Bytes int64  `json:"bytes"`
	Limit int64  `json:"limit"`
}

// PruneReport says what was removed, or, after a dry run, what would be.
type PruneReport struct {
	Blobs   int   `json:"blobs"`
	Records int   `json:"records"`
	Trees   int   `json:"trees"`
	Temps   int   `json:"temporary"` // leftovers of processes that were killed, stale downloads, old logs
	Bytes   int64 `json:"bytes"`     // of all these files
	Kept    int64 `json:"kept"`      // bytes of blobs and trees that stay

	Over []Over `json:"over,omitempty"`
}

// ErrBusy is wrapped when the store is used by another process and PruneOptions.NoWait forbids to wait for it.
var ErrBusy = errors.New("another process uses the store")

// prunes is what the only user of a store does, for those who wait to open it.
const prunes = "removes what the store needs no more"

// Prune removes what no image needs and nothing has used lately. It waits until no other process has the store open and
// keeps others from opening it meanwhile. This process must not use s in other goroutines until it returns.
//
// A prune that is killed leaves a good store: records whose blobs are gone are no records.
func (s *Store) Prune(ctx context.Context, o PruneOptions) (PruneReport, error) {
	if err := s.writable(); err != nil {
		return PruneReport{}, err
	}
	if err := s.lockOut(ctx, o.NoWait); err != nil {
		return PruneReport{}, fmt.Errorf("prune store %s: %w", s.dir, err)
	}
	filelock.Claim(s.inUse.f, prunes)
	report, err := s.prune(ctx, o)
	filelock.Disclaim(s.inUse.f)
	if shareErr := unix.Flock(int(s.inUse.f.Fd()), unix.LOCK_SH); shareErr != nil {
		err = errors.Join(err, shareErr)
	}
	if err != nil {
		return report, fmt.Errorf("prune store %s: %w", s.dir, err)
	}
	return report, nil
}

// lockOut makes this process the only user of the store. Its shared lock goes first: two prunes that both kept theirs
// would wait for each other for ever.
func (s *Store) lockOut(ctx context.Context, noWait bool) error {
	fd := int(s.inUse.f.Fd())
	var waiting filelock.Wait
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return lockError(useLock, err)
		case noWait:
			return s.shareAgain(fault.Hint(ErrBusy, "try again when the builds and runs that use it have ended, or leave out --no-wait"))
		}
		if note := s.noteOnUsers(&waiting); note != "" {
			progress.Wait(ctx, note, waiting.Waited())
		}
		select {
		case <-ctx.Done():
			return s.shareAgain(ctx.Err())
		case <-time.After(wait):
		}
	}
}

// noteOnUsers names those that this process waits for to be the only user: another one that is that says so itself.
func (s *Store) noteOnUsers(waiting *filelock.Wait) string {
	does := "uses the store " + s.dir
	if _, alone := filelock.ReadHolder(s.inUse.f.Name()); alone {
		return waiting.Note(s.inUse.f.Name(), does)
	}
	return waiting.NoteOn(s.inUse.f, does)
}

// shareAgain takes back the shared lock that a failed attempt at the exclusive one has lost.
func (s *Store) shareAgain(err error) error {
	return errors.Join(err, unix.Flock(int(s.inUse.f.Fd()), unix.LOCK_SH))
}

func (s *Store) prune(ctx context.Context, o PruneOptions) (PruneReport, error) {
	task := progress.Begin(ctx, "prune", s.dir, 0)
	p := &pruner{store: s, opts: o, task: task, cutoff: cutoff(o), blobs: map[Digest]*prunable{}, needed: map[Digest]bool{}}
	steps := []func() error{
		p.listMembers, p.listBlobs, p.readRecords, p.listTrees, p.choose,
		p.removeRecords, p.removeObjects, p.removeTemps, p.removeLogs, p.removeLocks,
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return p.report, task.End(err)
		}
		if err := step(); err != nil {
			return p.report, task.End(err)
		}
	}
	return p.report, task.End(nil)
}

func cutoff(o PruneOptions) time.Time {
	now := time.Now()
	switch {
	case o.All:
		return now.Add(24 * time.Hour) // whatever the clocks of other machines made of it
	case o.OlderThan <= 0:
		return now.Add(-DefaultPruneAge)
	}
	return now.Add(-o.OlderThan)
}

// prunable is a blob or a tree that prune may remove.
type prunable struct {
	path string
	uid  uint32 // whose it is
	size int64
	used time.Time
	tree bool
	gone bool // chosen to be removed
	kept bool // another member's, and not this one's to remove

	unpacked bool // a tree that can be made again from the blobs
}

type record struct {
	path string
	size int64
	used time.Time
	refs []Digest
	kept bool // as of a prunable
}

type pruner struct {
	store  *Store
	opts   PruneOptions
	task   *progress.Task // counts the bytes of blobs and trees that are removed
	cutoff time.Time

	members []*Store // the parts of a group's store, all of them
	blobs   map[Digest]*prunable
	trees   []*prunable
	records []record
	needed  map[Digest]bool // by images
	report  PruneReport
}

func (p *pruner) listMembers() error {
	var err error
	p.members, err = p.store.members()
	return err
}

// ours are the parts of the store in which this process may remove things.
func (p *pruner) ours() []*Store {
	return slices.DeleteFunc(slices.Clone(p.members), func(m *Store) bool { return !p.store.mayRemove(m) })
}

// each calls fn for members until it fails.
func each(members []*Store, fn func(*Store) error) error {
	for _, m := range members {
		if err := fn(m); err != nil {
			return err
		}
	}
	return nil
}

func (p *pruner) listBlobs() error {
	return walkFiles(p.store.path(blobBucket), func(path string, info fs.FileInfo) error {
		d := Digest(digestPrefix + filepath.Base(path))
		uid := ownerOf(info)
		p.blobs[d] = &prunable{path: path, uid: uid, size: info.Size(), used: lastUse(info), kept: !p.store.Keeps() && uid != p.store.group.me}
		return nil
	})
}

// readRecords reads those of all members: what is based on a blob, whoever has brought it, keeps it.
func (p *pruner) readRecords() error {
	return each(p.members, func(m *Store) error {
		err := p.readMember(m)
		if err != nil && !p.store.mayRemove(m) && errors.Is(err, fs.ErrPermission) {
			return nil // who hides what they need keeps nothing
		}
		return err
	})
}

// readMember marks what a member's images need, and counts the use of a record as use of its blobs.
func (p *pruner) readMember(m *Store) error {
	images := m.path(recordBucket, string(KindImage)) + string(filepath.Separator)
	foreign := !p.store.mayRemove(m)
	return walkFiles(m.path(recordBucket), func(path string, info fs.FileInfo) error {
		env, err := readEnvelope(path)
		if foreign && errors.Is(err, errDamaged) {
			return nil // no reason to stop for everybody else
		}
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		if strings.HasPrefix(path, images) {
			if err != nil {
				return fault.Hint(err, "run `sconce cache verify --remove` first: without this record prune cannot tell what its image needs")
			}
			for _, d := range env.Refs {
				p.needed[d] = true
			}
			return nil
		}
		r := record{path: path, size: info.Size(), used: info.ModTime(), refs: env.Refs, kept: foreign}
		if err != nil {
			r.used = time.Time{} // damaged: of no use to anyone
		}
		p.records = append(p.records, r)
		for _, d := range r.refs {
			if b := p.blobs[d]; b != nil && r.used.After(b.used) {
				b.used = r.used
			}
		}
		return nil
	})
}

func (p *pruner) listTrees() error {
	return each(p.ours(), func(m *Store) error {
		uid, err := m.uid()
		if err != nil {
			return err
		}
		trees, err := m.listTrees()
		for _, t := range trees {
			u := &prunable{path: t.path, uid: uid, used: t.used, tree: true}
			u.size, u.unpacked = measureTree(t.path)
			p.trees = append(p.trees, u)
		}
		if p.store.group != nil && errors.Is(err, fs.ErrNotExist) { // a part that is being made
			return nil
		}
		return err
	})
}

// choose marks what goes: what is too old, then, to get users and the store below their limits, what was used longest ago.
func (p *pruner) choose() error {
	var free []*prunable // what no image needs, and is not too old
	total := int64(0)
	users := map[uint32]int64{}
	consider := func(u *prunable, needed bool) {
		if u.kept {
			return
		}
		u.gone = !needed && u.used.Before(p.cutoff)
		if u.gone {
			return
		}
		total += u.size
		users[u.uid] += u.size
		if !needed {
			free = append(free, u)
		}
	}
	for d, u := range p.blobs {
		consider(u, p.needed[d])
	}
	for _, u := range p.trees {
		consider(u, false)
	}
	slices.SortFunc(free, p.order)
	for _, u := range free {
		if p.tooMuch(u.uid, users[u.uid]) || p.opts.KeepBytes > 0 && total > p.opts.KeepBytes {
			u.gone = true
			total -= u.size
			users[u.uid] -= u.size
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(users)) {
		if p.tooMuch(uid, users[uid]) {
			p.report.Over = append(p.report.Over, Over{UID: uid, Bytes: users[uid], Limit: p.opts.OfUser(uid)})
		}
	}
	p.report.Kept = total
	p.task.SetTotal(p.going())
	return nil
}

// going is how many bytes of blobs and trees are chosen to be removed.
func (p *pruner) going() (bytes int64) {
	for _, u := range p.blobs {
		if u.gone {
			bytes += u.size
		}
	}
	for _, u := range p.trees {
		if u.gone {
			bytes += u.size
		}
	}
	return bytes
}

func (p *pruner) tooMuch(uid uint32, bytes int64) bool {
	if p.opts.OfUser == nil {
		return false
	}
	limit := p.opts.OfUser(uid)
	return limit > 0 && bytes > limit
}

// order puts first what goes first.
func (p *pruner) order(a, b *prunable) int {
	if p.opts.Unpacked && a.unpacked != b.unpacked {
		if a.unpacked {
			return -1
		}
		return 1
	}
	return cmp.Or(a.used.Compare(b.used), strings.Compare(a.path, b.path))
}

// removeRecords removes the records that stand on what goes or is gone, and the old ones that stand on nothing.
func (p *pruner) removeRecords() error {
	for _, r := range p.records {
		stale := len(r.refs) == 0 && r.used.Before(p.cutoff)
		if r.kept || !stale && !slices.ContainsFunc(r.refs, p.goes) {
			continue
		}
		p.report.Records++
		if err := p.remove(r.path, r.size); err != nil {
			return err
		}
	}
	return nil
}

func (p *pruner) goes(d Digest) bool {
	if u := p.blobs[d]; u != nil {
		return u.gone
	}
	at, _ := p.store.findBlob(d) // a shared store may have it
	return at == nil
}

func (p *pruner) removeObjects() error {
	for _, u := range p.blobs {
		if !u.gone {
			continue
		}
		p.report.Blobs++
		if err := p.remove(u.path, u.size); err != nil {
			return err
		}
		p.count(u)
	}
	for _, u := range p.trees {
		if !u.gone {
			continue
		}
		p.report.Trees++
		if err := p.removeTree(u); err != nil {
			return err
		}
		p.count(u)
	}
	return nil
}

// count shows that u is removed.
func (p *pruner) count(u *prunable) {
	if !p.opts.DryRun {
		p.task.Add(u.size)
	}
}

// removeTree takes the marker first: half a tree must not be believed.
func (p *pruner) removeTree(u *prunable) error {
	if !p.opts.DryRun {
		if err := os.Remove(u.path + doneSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Remove(u.path + sizeSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return p.remove(u.path, u.size)
}

// removeTemps removes what killed processes left: nobody else has the store open.
func (p *pruner) removeTemps() error { return each(p.ours(), p.removeTempsOf) }

func (p *pruner) removeTempsOf(m *Store) error {
	dir := m.path(tmpBucket)
	entries, err := os.ReadDir(dir)
	if p.store.group != nil && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		if strings.HasPrefix(e.Name(), partialPrefix) && !p.opts.All && time.Since(info.ModTime()) < partialAge {
			continue
		}
		path := filepath.Join(dir, e.Name())
		p.report.Temps++
		if err := p.remove(path, treeSize(path)); err != nil {
			return err
		}
	}
	return nil
}

// removeLocks removes the files of locks: only a process that has the store open can hold one.
func (p *pruner) removeLocks() error {
	if p.opts.DryRun {
		return nil
	}
	remove := func(path string, info fs.FileInfo) error {
		foreign := !p.store.Keeps() && ownerOf(info) != p.store.group.me
		if filepath.Base(path) == useLock || foreign {
			return nil
		}
		return os.Remove(path)
	}
	err := each(p.ours(), func(m *Store) error { return walkFiles(m.path(lockBucket), remove) })
	if err == nil && p.store.group != nil {
		err = walkFiles(filepath.Join(p.store.dir, lockBucket), remove)
	}
	return err
}

func (p *pruner) remove(path string, size int64) error {
	p.report.Bytes += size
	if p.opts.DryRun {
		return nil
	}
	return RemoveAll(path)
}
