package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// PruneOptions says what to remove. What a named image stands on always stays.
type PruneOptions struct {
	All       bool          // keep only what images need, whatever its age
	OlderThan time.Duration // remove what was not used for this long; 0: DefaultPruneAge
	KeepBytes int64         // when > 0: then remove what was used longest ago until the store holds no more than this
	Unpacked  bool          // of that, what is unpacked goes first: it is made again without network
	DryRun    bool          // only report
	NoWait    bool          // fail at once, instead of waiting, when another process uses the store
}

// PruneReport says what was removed, or, after a dry run, what would be.
type PruneReport struct {
	Blobs   int   `json:"blobs"`
	Records int   `json:"records"`
	Trees   int   `json:"trees"`
	Temps   int   `json:"temporary"` // leftovers of processes that were killed, stale downloads, old logs
	Bytes   int64 `json:"bytes"`     // of all these files
	Kept    int64 `json:"kept"`      // bytes of blobs and trees that stay
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
	said := false
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
		if !said && wait > 50*time.Millisecond {
			progress.Notef(ctx, "waiting for other sconce processes that use the store "+s.dir)
			said = true
		}
		select {
		case <-ctx.Done():
			return s.shareAgain(ctx.Err())
		case <-time.After(wait):
		}
	}
}

// shareAgain takes back the shared lock that a failed attempt at the exclusive one has lost.
func (s *Store) shareAgain(err error) error {
	return errors.Join(err, unix.Flock(int(s.inUse.f.Fd()), unix.LOCK_SH))
}

func (s *Store) prune(ctx context.Context, o PruneOptions) (PruneReport, error) {
	task := progress.Begin(ctx, "prune", s.dir, 0)
	p := &pruner{store: s, opts: o, cutoff: cutoff(o), blobs: map[Digest]*prunable{}, needed: map[Digest]bool{}}
	steps := []func() error{
		p.listBlobs, p.readRecords, p.listTrees, p.choose,
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
	size int64
	used time.Time
	tree bool
	gone bool // chosen to be removed

	unpacked bool // a tree that can be made again from the blobs
}

type record struct {
	path string
	size int64
	used time.Time
	refs []Digest
}

type pruner struct {
	store  *Store
	opts   PruneOptions
	cutoff time.Time

	blobs   map[Digest]*prunable
	trees   []*prunable
	records []record
	needed  map[Digest]bool // by images
	report  PruneReport
}

func (p *pruner) listBlobs() error {
	return walkFiles(p.store.path(blobBucket), func(path string, info fs.FileInfo) error {
		d := Digest(digestPrefix + filepath.Base(path))
		p.blobs[d] = &prunable{path: path, size: info.Size(), used: lastUse(info)}
		return nil
	})
}

// readRecords marks what images need, and counts the use of a record as use of its blobs.
func (p *pruner) readRecords() error {
	images := p.store.path(recordBucket, string(KindImage)) + string(filepath.Separator)
	return walkFiles(p.store.path(recordBucket), func(path string, info fs.FileInfo) error {
		env, err := readEnvelope(path)
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
		r := record{path: path, size: info.Size(), used: info.ModTime(), refs: env.Refs}
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
	trees, err := p.store.listTrees()
	for _, t := range trees {
		u := &prunable{path: t.path, used: t.used, tree: true}
		u.size, u.unpacked = measureTree(t.path)
		p.trees = append(p.trees, u)
	}
	return err
}

// choose marks what goes: what is too old, then, to get below KeepBytes, what was used longest ago.
func (p *pruner) choose() error {
	var free []*prunable // what no image needs, and is not too old
	total := int64(0)
	consider := func(u *prunable, needed bool) {
		u.gone = !needed && u.used.Before(p.cutoff)
		if !u.gone {
			total += u.size
		}
		if !needed && !u.gone {
			free = append(free, u)
		}
	}
	for d, u := range p.blobs {
		consider(u, p.needed[d])
	}
	for _, u := range p.trees {
		consider(u, false)
	}
	if p.opts.KeepBytes > 0 {
		slices.SortFunc(free, p.order)
		for _, u := range free {
			if total <= p.opts.KeepBytes {
				break
			}
			u.gone = true
			total -= u.size
		}
	}
	p.report.Kept = total
	return nil
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
		if !stale && !slices.ContainsFunc(r.refs, p.goes) {
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
	}
	for _, u := range p.trees {
		if !u.gone {
			continue
		}
		p.report.Trees++
		if err := p.removeTree(u); err != nil {
			return err
		}
	}
	return nil
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
func (p *pruner) removeTemps() error {
	dir := p.store.path(tmpBucket)
	entries, err := os.ReadDir(dir)
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
	return walkFiles(p.store.path(lockBucket), func(path string, _ fs.FileInfo) error {
		if filepath.Base(path) == useLock {
			return nil
		}
		return os.Remove(path)
	})
}

func (p *pruner) remove(path string, size int64) error {
	p.report.Bytes += size
	if p.opts.DryRun {
		return nil
	}
	return RemoveAll(path)
}
