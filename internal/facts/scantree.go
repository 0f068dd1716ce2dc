package facts

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

func (t treeFiles) scan(ctx context.Context) ([]scanned, error) {
	c := newCopies(t.st, 0) // each is read once
	defer c.Close()
	return scanTree(ctx, t, &passing{copies: c, pages: newPages(), looks: newLooks()})
}

// scanTree looks at the files of an image that were not looked at in passing. What the store knows of a layer is not read
// again, and what is found becomes known.
func scanTree(ctx context.Context, t treeFiles, p *passing) ([]scanned, error) {
	nodes, err := t.nodes()
	if err != nil {
		return nil, err
	}
	nodes = slices.DeleteFunc(nodes, func(n *image.Node) bool { return !mayHoldCode(n.Path) })
	s := treeScan{tree: t.tree, copies: p.copies, pages: p.pages, looks: p.looks, cache: cache{t.st}, ids: t.tree.DiffIDs()}
	s.known = make([]map[place]fileFacts, len(s.ids))
	s.fresh = make([]int, len(s.ids))
	for i := range s.ids {
		if s.known[i] = p.known(i); s.known[i] == nil {
			s.known[i] = s.cache.layer(s.ids[i])
		}
	}
	if err := s.lookAt(ctx, s.unknown(nodes)); err != nil {
		return nil, err
	}
	for i := range s.ids {
		if s.fresh[i] > 0 {
			if err := s.cache.keepLayer(s.ids[i], s.known[i]); err != nil {
				return nil, fmt.Errorf("keep what was found in layer %d: %w", i+1, err)
			}
		}
	}
	var found []scanned
	for _, n := range nodes {
		id := idOf(n)
		if c := s.known[id.layer][id.place]; !c.empty() {
			found = append(found, c.at(n.Path, n.Size))
		}
	}
	return sortScanned(found), nil
}

// treeScan is a scan of the layers side by side.
type treeScan struct {
	tree   *image.Tree
	copies *copies
	pages  *pages
	looks  looks
	cache  cache
	ids    []store.Digest // the layers' DiffIDs

	mu    sync.Mutex
	known []map[place]fileFacts // of each layer
	fresh []int                 // how many of them are new
	slow  [][]*image.Node       // of each layer: files that can only be read from beginning to end
}

func (s *treeScan) unknown(nodes []*image.Node) []*image.Node {
	var list []*image.Node
	for _, n := range nodes {
		id := idOf(n)
		if _, ok := s.known[id.layer][id.place]; !ok {
			list = append(list, n)
		}
	}
	return list
}

// maxScanners is how many files are looked at side by side. Each holds some megabytes.
const maxScanners = 4

func (s *treeScan) lookAt(ctx context.Context, nodes []*image.Node) error {
	if len(nodes) == 0 {
		return nil
	}
	task := progress.Begin(ctx, "scan", "machine code", totalSize(nodes))
	s.slow = make([][]*image.Node, len(s.ids))
	err := sideBySide(ctx, nodeRuns(nodes), func(ctx context.Context, run []*image.Node) error {
		for _, n := range run {
			if err := s.fast(ctx, n, task); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return task.End(err)
	}
	later, err := s.readLater()
	if err != nil {
		return task.End(err)
	}
	return task.End(sideBySide(ctx, s.slow, func(ctx context.Context, run []*image.Node) error {
		number, _ := run[0].Content()
		run = slices.Concat(run, later[number])
		slices.SortFunc(run, compareContent)
		return s.slowly(ctx, run, task)
	}))
}

// slowly looks at copies of the files of a layer that can only be read from its beginning.
func (s *treeScan) slowly(ctx context.Context, run []*image.Node, task *progress.Task) error {
	var looking sync.WaitGroup
	defer looking.Wait()
	for _, n := range run {
		if err := s.copied(ctx, n, &looking, task); err != nil {
			return err
		}
	}
	looking.Wait()
	return ctx.Err()
}

// maxLater is how large a file may be to be copied unasked, in bytes.
const maxLater = 1 << 20

// readLater returns files of the slow layers that are read when all is looked at together: to get at one of them after the
// others were passed is to begin again. There is no need of copies that nothing will read, so a scan for GPU code has none.
func (s *treeScan) readLater() (map[int][]*image.Node, error) {
	later := map[int][]*image.Node{}
	if s.copies.room == 0 {
		return later, nil
	}
	seen := map[contentID]bool{}
	err := s.tree.Walk(func(n *image.Node) error {
		number, _ := n.Content()
		if n.Type != layer.Regular || n.Size == 0 || n.Size > maxLater || len(s.slow[number]) == 0 || !isReadLater(n.Path, n.Size) || seen[idOf(n)] {
			return nil
		}
		seen[idOf(n)] = true
		later[number] = append(later[number], n)
		return nil
	})
	return later, err
}

func totalSize(nodes []*image.Node) int64 {
	var sum int64
	for _, n := range nodes {
		sum += n.Size
	}
	return sum
}

// sideBySide works on runs of files, those with the most bytes first.
func sideBySide(ctx context.Context, runs [][]*image.Node, work func(context.Context, []*image.Node) error) error {
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b []*image.Node) int { return cmp.Compare(totalSize(b), totalSize(a)) })
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(min(runtime.GOMAXPROCS(0), maxScanners))
	for _, run := range runs {
		if len(run) > 0 && working.Err() == nil {
			group.Go(func() error { return work(working, run) })
		}
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

// runSize is how many bytes of files that lie side by side are one piece of work: so many that few chunks are decompressed twice.
const runSize = 32 << 20

// nodeRuns cuts a list in the order of the contents into runs.
func nodeRuns(nodes []*image.Node) [][]*image.Node {
	var runs [][]*image.Node
	start, size, last := 0, int64(0), 0
	for i, n := range nodes {
		number, _ := n.Content()
		if i > start && (number != last || size+n.Size > runSize) {
			runs = append(runs, nodes[start:i])
			start, size = i, 0
		}
		size += n.Size
		last = number
	}
	return append(runs, nodes[start:])
}

func compareContent(a, b *image.Node) int {
	layerA, atA := a.Content()
	layerB, atB := b.Content()
	return cmp.Or(cmp.Compare(layerA, layerB), cmp.Compare(atA.Offset, atB.Offset), cmp.Compare(atA.Sparse, atB.Sparse))
}

func (s *treeScan) found(n *image.Node, c fileFacts) {
	id := idOf(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[id.layer][id.place] = c
	s.fresh[id.layer]++
}

// fast looks at a file where it lies, or puts it off.
func (s *treeScan) fast(ctx context.Context, n *image.Node, task *progress.Task) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r, err := s.tree.OpenAt(n)
	if err != nil {
		return err
	}
	if r == nil {
		number, _ := n.Content()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.slow[number] = append(s.slow[number], n)
		return nil
	}
	defer task.Add(n.Size)
	f := candidateOf(n)
	h, err := contentOf{at: sizedHandle{r, n.Size}}.take(ctx, f, fatbin.MayHold)
	if err != nil {
		return err
	}
	return s.look(ctx, n, f, h, false)
}

// copied looks at a copy of a file. It returns when that is made.
func (s *treeScan) copied(ctx context.Context, n *image.Node, looking *sync.WaitGroup, task *progress.Task) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if isReadLater(n.Path, n.Size) {
		h, _, err := openNode(ctx, s.tree, n, s.copies)
		if err != nil {
			return err
		}
		return h.Close()
	}
	r, err := s.tree.Open(n)
	if err != nil {
		return err
	}
	f := candidateOf(n)
	h, err := contentOf{stream: r, copies: s.copies}.take(ctx, f, fatbin.MayHold)
	if err != nil {
		return err
	}
	s.looks.begin(looking, func() {
		defer task.Add(n.Size)
		_ = s.look(ctx, n, f, h, true) // which ends with ctx alone
	})
	return nil
}

// look looks at a file that was taken, and remembers its headers for the loader. There is nothing in one that was not. The error is
// that of ctx.
func (s *treeScan) look(ctx context.Context, n *image.Node, f candidate, h elfx.Handle, slow bool) error {
	var c fileFacts
	if h != nil {
		var err error
		if c, err = lookAt(ctx, f, h, slow, s.pages); err != nil {
			return err
		}
	}
	s.found(n, c)
	return nil
}
