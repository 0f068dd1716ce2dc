package slim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// layerVersion changes when the same plans make other layers.
const layerVersion = "layer-v2"

// outcome is what became of a layer.
type outcome struct {
	Layer *layer.Descriptor `json:"layer,omitempty"` // what takes its place; nil when nothing changed
	Files []FileReport      `json:"files,omitempty"` // those with device code

	// A RECORD may list files of another layer, when only one of the two was changed later.
	Records []string  `json:"records,omitempty"` // the layer's, as paths
	Changed []*rehash `json:"changed,omitempty"` // files
}

// layers slims the layers of images.
type layers struct {
	st      *store.Store
	o       Options
	workers int // that compress a layer

	bring func(ctx context.Context, number int) error // puts a layer into the store; nil: all are there
}

// slim makes what takes a layer's place, or finds what was made before. Who needs the same at the same time, in any process,
// waits for it.
func (s *layers) slim(ctx context.Context, d layer.Descriptor) (*outcome, error) {
	return s.once(ctx, d, s.o.gpuKey(), func(ctx context.Context) (*outcome, error) { return s.make(ctx, d) })
}

func (s *layers) once(ctx context.Context, d layer.Descriptor, what string, do func(context.Context) (*outcome, error)) (*outcome, error) {
	once := store.Once[*outcome]{
		Does: "slims layer " + d.Digest.Short(),
		Kind: store.KindSlimLayer, Key: store.DigestOf([]byte(layerVersion + "\n" + string(d.Digest) + "\n" + what)).Hex(),
		Refs: func(out *outcome) []store.Digest {
			if out.Layer != nil {
				return []store.Digest{out.Layer.Digest}
			}
			return []store.Digest{d.Digest}
		},
	}
	out, found, err := once.Do(ctx, s.st, do)
	if found {
		progress.Begin(ctx, "slim", d.Digest.Short(), 0).EndCached()
	}
	return out, err
}

// candidate is a file of a layer that changes.
type candidate struct {
	entry layer.IndexEntry
	plan  *Plan
	sums  *rehash
}

// survey is what a layer holds that slimming is about.
type survey struct {
	*layers
	ix      *layer.Index
	task    *progress.Task
	scratch *os.File // for files that cannot be read at random; made when needed

	out     outcome
	found   []candidate
	records []record
}

// record is a RECORD with its content.
type record struct {
	entry layer.IndexEntry
	data  []byte
}

func (s *layers) make(ctx context.Context, d layer.Descriptor) (*outcome, error) {
	ix, err := layer.OpenIndex(ctx, s.st, d)
	if err != nil {
		return nil, err
	}
	v := &survey{layers: s, ix: ix, task: progress.Begin(ctx, "slim", d.Digest.Short(), ix.RawSize)}
	defer v.close()
	if err := v.task.End(v.look(ctx)); err != nil {
		return nil, fmt.Errorf("slim layer %s: %w", d.Digest.Short(), err)
	}
	if len(v.found) == 0 {
		return &v.out, nil
	}
	rewritten, err := layer.Rewrite(ctx, s.st, d, v.changes(ctx), layer.Options{Workers: s.workers})
	if err != nil {
		return nil, err
	}
	v.out.Layer = &rewritten
	return &v.out, nil
}

func (v *survey) close() {
	if v.scratch != nil {
		v.scratch.Close()
	}
}

// look goes through the layer once.
func (v *survey) look(ctx context.Context) error {
	for _, e := range v.ix.Entries {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		v.task.SetCurrent(e.Offset)
		var err error
		switch {
		case e.Type != layer.Regular:
		case isRecord(e.Path):
			err = v.keepRecord(e)
		case e.Size > fatbin.MinSize:
			err = v.lookAt(ctx, e)
		}
		if err != nil {
			return err
		}
	}
	v.names()
	return nil
}

func (v *survey) keepRecord(e layer.IndexEntry) error {
	if e.Size > maxRecord || e.Sparse != 0 {
		return nil
	}
	r, err := v.ix.OpenContent(e)
	if err != nil {
		return err
	}
	defer r.Close()
	data := make([]byte, e.Size)
	if _, err := io.ReadFull(r, data); err != nil {
		return fmt.Errorf("read %q: %w", e.Path, err)
	}
	v.records = append(v.records, record{e, data})
	v.out.Records = append(v.out.Records, e.Path)
	return nil
}

// lookAt plans for a file: where it lies, or else in a temporary copy.
func (v *survey) lookAt(ctx context.Context, e layer.IndexEntry) error {
	head := make([]byte, fatbin.HeadSize)
	r, err := v.ix.OpenAt(e)
	if err != nil {
		return err
	}
	if r != nil {
		defer r.Close()
		if _, err := r.ReadAt(head, 0); err != nil {
			return fmt.Errorf("read %q: %w", e.Path, err)
		}
		if !fatbin.MayHold(e.Path, head) {
			return nil
		}
		return v.plan(ctx, e, r)
	}
	c, err := v.ix.OpenContent(e)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.ReadFull(c, head); err != nil {
		return fmt.Errorf("read %q: %w", e.Path, err)
	}
	if !fatbin.MayHold(e.Path, head) {
		return nil
	}
	if err := v.copyOut(io.MultiReader(bytes.NewReader(head), ctxio.Reader(ctx, c)), e.Size); err != nil {
		return fmt.Errorf("read %q: %w", e.Path, err)
	}
	return v.plan(ctx, e, v.scratch)
}

// copyOut makes the temporary file hold size bytes of r.
func (v *survey) copyOut(r io.Reader, size int64) (err error) {
	if v.scratch == nil {
		if v.scratch, err = v.st.TempFile(); err != nil {
			return err
		}
	}
	if err := v.scratch.Truncate(0); err != nil {
		return err
	}
	if _, err := v.scratch.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(v.scratch, r, size)
	return err
}

// plan finds out what changes in a file.
func (v *survey) plan(ctx context.Context, e layer.IndexEntry, r io.ReaderAt) error {
	plan, err := Look(ctx, r, e.Size, v.o)
	switch {
	case errors.Is(err, fatbin.ErrFormat):
		return nil
	case err != nil:
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	if e.Sparse != 0 && !plan.Empty() {
		plan = &Plan{Report: FileReport{Refused: "the layer stores it with holes"}}
	}
	plan.Report.Path = e.Path
	v.out.Files = append(v.out.Files, plan.Report)
	if plan.Empty() {
		return nil
	}
	sums := &rehash{Names: []string{e.Path}}
	if sums.Old, sums.New, err = plan.hashes(ctxio.Reader(ctx, io.NewSectionReader(r, 0, e.Size))); err != nil {
		return fmt.Errorf("read %q: %w", e.Path, err)
	}
	v.found = append(v.found, candidate{e, plan, sums})
	return nil
}

// names finds the other names of changed files.
func (v *survey) names() {
	at := map[string]*rehash{}
	for _, c := range v.found {
		at[c.entry.Path] = c.sums
	}
	for _, e := range v.ix.Entries {
		if sums := at[e.Link]; e.Type == layer.HardLink && sums != nil {
			sums.Names = append(sums.Names, e.Path)
			at[e.Path] = sums
		}
	}
}

// changes are what to rewrite: files, and RECORDs that list them.
func (v *survey) changes(ctx context.Context) []layer.Change {
	var list []layer.Change
	sums := make([]*rehash, 0, len(v.found))
	for _, c := range v.found {
		list = append(list, layer.Change{Entry: c.entry, Content: c.plan.Reader})
		sums = append(sums, c.sums)
	}
	fixed, listed := fixRecords(ctx, v.records, newChanges(sums))
	for _, s := range sums {
		s.Lists = listed[s]
	}
	v.out.Changed = sums
	return append(list, fixed...)
}
