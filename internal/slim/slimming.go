package slim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// slimming is the slimming of one image.
type slimming struct {
	*layers
	from  []layer.Descriptor
	found []*findings // by layer
	slims []bool      // by layer, once that is done: whether slimming changes it
}

// newSlimming looks for device code in layers side by side, the largest first. Without a GPU nothing is found.
func newSlimming(ctx context.Context, st *store.Store, from []layer.Descriptor, o Options) (*slimming, error) {
	cores := runtime.GOMAXPROCS(0)
	s := &slimming{from: from, found: make([]*findings, len(from)), slims: make([]bool, len(from))}
	// Twice as many as there are cores for all layers: large ones are few, and go on alone.
	s.layers = &layers{st: st, o: o, workers: (2*cores + s.atOnce() - 1) / s.atOnce()}
	return s, inParallel(ctx, bySize(from), s.atOnce(), func(ctx context.Context, n int) (err error) {
		s.found[n] = &findings{}
		if len(o.GPUs) > 0 {
			s.found[n], err = s.layers.look(ctx, from[n])
		}
		return err
	})
}

// atOnce is how many layers are slimmed side by side.
func (s *slimming) atOnce() int { return max(1, min(runtime.GOMAXPROCS(0), len(s.from))) }

// bySize is the order of work on layers, the largest first.
func bySize(list []layer.Descriptor) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(list[b].Size, list[a].Size) })
	return order
}

// make makes what takes the place of layers that are slimmed and not trimmed.
func (s *slimming) make(ctx context.Context) ([]layer.Descriptor, error) {
	made := make([]layer.Descriptor, len(s.from))
	return made, inParallel(ctx, bySize(s.from), s.atOnce(), func(ctx context.Context, n int) (err error) {
		made[n], err = s.layer(ctx, n)
		return err
	})
}

// layer makes what takes the place of a layer that slimming alone changes, in two rounds: what it has itself to change, and the
// RECORDs that list files of other layers.
func (s *slimming) layer(ctx context.Context, n int) (layer.Descriptor, error) {
	d, err := s.rewrite(ctx, s.from[n], s.o.gpuKey(), s.found[n].Changed, s.found[n].Records, newChanges(s.found[n].rehashed()))
	if err != nil {
		return d, err
	}
	near, lists := s.elsewhere(n)
	key, err := json.Marshal(near)
	if err != nil {
		return d, err
	}
	d, err = s.rewrite(ctx, d, string(key), nil, lists, newChanges(near))
	s.slims[n] = d != s.from[n]
	return d, err
}

// rewrite makes a layer like d with less device code in files and other hashes in RECORDs; d itself when no file has changed.
func (s *slimming) rewrite(ctx context.Context, d layer.Descriptor, what string, files []*changed, lists []string, hashes changes) (layer.Descriptor, error) {
	if len(hashes) == 0 {
		return d, nil
	}
	out, err := s.once(ctx, d, what, func(ctx context.Context) (*outcome, error) {
		ix, err := layer.OpenIndex(ctx, s.st, d)
		if err != nil {
			return nil, err
		}
		contents := lessCode(files)
		if err := fixRecords(ctx, ix, contents, lists, hashes); err != nil || len(contents) == 0 {
			return &outcome{}, err
		}
		list := make([]layer.Change, 0, len(contents))
		for at, content := range contents {
			list = append(list, layer.Change{Entry: ix.Entries[at], Content: content})
		}
		made, err := layer.Rewrite(ctx, s.st, d, list, layer.Options{Workers: s.workers})
		return &outcome{Layer: &made}, err
	})
	if err != nil || out.Layer == nil {
		return d, err
	}
	return *out.Layer, nil
}

// contents are new contents of files of a layer, by their places in its index. They are as long as the old ones.
type contents map[int]func(old io.Reader) io.Reader

// view is a layer as slimming leaves it, which nobody has written.
type view struct {
	*layer.Index
	contents contents
	key      string // a line for keys that names the contents; "" when there are none
}

// view gives a layer as slimming leaves it.
func (s *slimming) view(ctx context.Context, n int, ix *layer.Index) (*view, error) {
	near, lists := s.elsewhere(n)
	v := &view{Index: ix, contents: lessCode(s.found[n].Changed)}
	err := fixRecords(ctx, ix, v.contents, s.found[n].Records, newChanges(s.found[n].rehashed()))
	if err == nil {
		err = fixRecords(ctx, ix, v.contents, lists, newChanges(near))
	}
	if s.slims[n] = len(v.contents) > 0; err != nil || !s.slims[n] {
		return v, err
	}
	key, err := json.Marshal(near)
	v.key = "\n" + s.o.gpuKey() + " " + string(key)
	return v, err
}

// new gives the new content of an entry of which old is the content.
func (c contents) new(at int, old io.Reader) io.Reader {
	if content := c[at]; content != nil {
		return content(old)
	}
	return old
}

// lessCode are files without the device code that they lose.
func lessCode(files []*changed) contents {
	list := contents{}
	for _, c := range files {
		list[c.At] = (&Plan{edits: c.Edits}).Reader
	}
	return list
}

// elsewhere are the changed files of other layers that RECORDs of a layer may list, and these RECORDs.
func (s *slimming) elsewhere(n int) (near []*rehash, lists []string) {
	wanted := map[string]bool{}
	for i, found := range s.found {
		if i == n {
			continue
		}
		for _, c := range found.Changed {
			for _, p := range s.found[n].Records {
				if c.mayBeIn(p) {
					wanted[p] = true
					near = append(near, &c.rehash)
				}
			}
		}
	}
	return slices.Compact(near), slices.Sorted(maps.Keys(wanted))
}

// fixRecords puts new hashes into RECORDs of a layer. One that cannot be read is left as it is, with a warning.
func fixRecords(ctx context.Context, ix *layer.Index, list contents, lists []string, hashes changes) error {
	if len(hashes) == 0 {
		return nil
	}
	for at, e := range ix.Entries {
		if e.Type != layer.Regular || !slices.Contains(lists, e.Path) || e.Size > maxRecord || e.Sparse != 0 {
			continue
		}
		data, err := list.read(ix, at)
		if err != nil {
			return err
		}
		fixed, _, err := hashes.fix(e.Path, data)
		if err != nil {
			progress.Warn(ctx, fmt.Sprintf("the hashes of slimmed files are not updated: %v", err), "")
			continue
		}
		if fixed != nil {
			list[at] = func(io.Reader) io.Reader { return bytes.NewReader(fixed) }
		}
	}
	return nil
}

// read reads a file of a layer that is small.
func (c contents) read(ix *layer.Index, at int) ([]byte, error) {
	e := ix.Entries[at]
	r, err := ix.OpenContent(e)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data := make([]byte, e.Size)
	if _, err := io.ReadFull(c.new(at, r), data); err != nil {
		return nil, fmt.Errorf("read %q: %w", e.Path, err)
	}
	return data, nil
}

// report adds what was found in layers, and what takes their place.
func (s *slimming) report(r *Report, made []layer.Descriptor) {
	r.GPUs, r.Files = capabilities(s.o.gpus()), []FileReport{}
	seen := map[string]bool{}
	for i, found := range slices.Backward(s.found) {
		for _, f := range found.Files {
			if seen[f.Path] { // hidden by a layer above
				continue
			}
			seen[f.Path] = true
			r.Files = append(r.Files, f)
		}
		r.Layers = append(r.Layers, LayerReport{s.from[i].Digest, s.from[i].Size, made[i].Digest, made[i].Size})
	}
	slices.Reverse(r.Layers)
	r.sum()
}
