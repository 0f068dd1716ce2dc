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
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// rootFiles are the files of a [Root] that can be read in any order.
type rootFiles struct {
	root  Root
	id    store.Digest // of everything in it; "" when nothing is to be kept of it
	cache cache
}

func (r *rootFiles) Walk(ctx context.Context, wanted Filter, visit func(File) error) error {
	files, err := r.files(ctx)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := cmp.Or(ctx.Err(), r.look(ctx, f, wanted, visit)); err != nil {
			return err
		}
	}
	return nil
}

// files returns one name of each large enough file.
func (r *rootFiles) files(ctx context.Context) ([]candidate, error) {
	var list []candidate
	seen := map[int]bool{} // files with several names
	err := r.root.All(func(i Info) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i.Type != layer.Regular || i.Size <= minSize || seen[i.Inode] {
			return nil
		}
		if i.Inode != 0 {
			seen[i.Inode] = true
		}
		list = append(list, candidate{path: i.Path, size: i.Size})
		return nil
	})
	return list, err
}

func (r *rootFiles) look(ctx context.Context, f candidate, wanted Filter, visit func(File) error) error {
	h, err := r.root.Open(absolute(f.path))
	if err != nil {
		return err
	}
	return contentOf{at: h, tolerant: true}.show(ctx, f, wanted, func(h elfx.Handle) error { return visit(File{f.path, f.size, h}) })
}

func (r *rootFiles) scan(ctx context.Context) ([]scanned, error) {
	var known pathFacts
	key := r.cache.key(string(r.id))
	if r.id != "" && r.cache.get(store.KindAuditFile, key, &known) {
		return known.files(), nil
	}
	found, err := r.scanAll(ctx)
	if err != nil || r.id == "" || slices.ContainsFunc(found, func(f scanned) bool { return f.unread }) {
		return found, err
	}
	for i := range found {
		known.Files = append(known.Files, pathFact{found[i].path, found[i].size, found[i].fileFacts})
	}
	if err := r.cache.put(store.KindAuditFile, key, known); err != nil {
		return nil, fmt.Errorf("keep what was found: %w", err)
	}
	return found, nil
}

func (p pathFacts) files() []scanned {
	list := make([]scanned, len(p.Files))
	for i := range p.Files {
		f := &p.Files[i]
		list[i] = f.at(f.Path, f.Size)
	}
	return list
}

// scanAll looks at all files, several side by side, the largest first.
func (r *rootFiles) scanAll(ctx context.Context) ([]scanned, error) {
	files, err := r.files(ctx)
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(f candidate) bool { return !mayHoldCode(f.path) })
	slices.SortStableFunc(files, func(a, b candidate) int { return cmp.Compare(b.size, a.size) })
	var size int64
	for _, f := range files {
		size += f.size
	}
	task := progress.Begin(ctx, "scan", "machine code", size)
	var mu sync.Mutex
	var found []scanned
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(min(runtime.GOMAXPROCS(0), maxScanners))
	for _, f := range files {
		if working.Err() != nil {
			break
		}
		group.Go(func() error {
			defer task.Add(f.size)
			return r.look(working, f, fatbin.MayHold, func(file File) error {
				c, err := look(working, file)
				if err != nil || c.empty() {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				found = append(found, c.at(file.Path, file.Size))
				return nil
			})
		})
	}
	err = task.End(cmp.Or(group.Wait(), ctx.Err()))
	return sortScanned(found), err
}
