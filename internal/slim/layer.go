package slim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

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
}

// findings are what slimming finds in a layer.
type findings struct {
	Files   []FileReport `json:"files,omitempty"`   // those with device code
	Records []string     `json:"records,omitempty"` // the RECORDs of the layer, as paths
	Changed []*changed   `json:"changed,omitempty"` // files, in the layer's order
}

// changed is a file of a layer that loses device code.
type changed struct {
	rehash
	At    int    `json:"at"` // place in the layer's index
	Edits []edit `json:"edits"`
}

// layers slims the layers of images.
type layers struct {
	st      *store.Store
	o       Options
	workers int // that compress a layer

	bring func(ctx context.Context, number int) error // puts a layer into the store; nil: all are there
}

// look finds what slimming changes in a layer, or reads what was found before. Who needs the same at the same time, in any process,
// waits for it.
func (s *layers) look(ctx context.Context, d layer.Descriptor) (*findings, error) {
	once := store.Once[*findings]{
		Does: "looks for device code in layer " + d.Digest.Short(),
		Kind: store.KindSlimLook, Key: store.DigestOf([]byte(lookVersion + "\n" + string(d.Digest) + "\n" + s.o.gpuKey())).Hex(),
		Refs: func(*findings) []store.Digest { return d.Refs() },
	}
	found, known, err := once.Do(ctx, s.st, func(ctx context.Context) (*findings, error) { return s.find(ctx, d) })
	if known {
		progress.Begin(ctx, "slim", d.Digest.Short(), 0).EndCached()
	}
	return found, err
}

// lookVersion changes when the same layer has other findings.
const lookVersion = "look-v1"

// once makes what takes a layer's place, or finds what was made before.
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
	out, _, err := once.Do(ctx, s.st, do)
	return out, err
}

// survey is what a layer holds that slimming is about.
type survey struct {
	*layers
	ix      *layer.Index
	task    *progress.Task
	scratch *os.File // for files that cannot be read at random; made when needed

	out     findings
	records []record
}

// record is a RECORD with its content.
type record struct {
	name string
	data []byte
}

func (s *layers) find(ctx context.Context, d layer.Descriptor) (*findings, error) {
	ix, err := layer.OpenIndex(ctx, s.st, d)
	if err != nil {
		return nil, err
	}
	v := &survey{layers: s, ix: ix, task: progress.Begin(ctx, "slim", d.Digest.Short(), ix.RawSize)}
	defer v.close()
	if err := v.task.End(v.look(ctx)); err != nil {
		return nil, fmt.Errorf("slim layer %s: %w", d.Digest.Short(), err)
	}
	return &v.out, nil
}

func (v *survey) close() {
	if v.scratch != nil {
		v.scratch.Close()
	}
}

// look goes through the layer once.
func (v *survey) look(ctx context.Context) error {
	for at, e := range v.ix.Entries {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		v.task.SetCurrent(e.Offset)
		var err error
		switch {
		case e.Type != layer.Regular:
		case isRecord(e.Path):
			err = v.keepRecord(at)
		case e.Size > fatbin.MinSize:
			err = v.lookAt(ctx, at)
		}
		if err != nil {
			return err
		}
	}
	v.names()
	v.lists()
	return nil
}

func (v *survey) keepRecord(at int) error {
	e := v.ix.Entries[at]
	if e.Size > maxRecord || e.Sparse != 0 {
		return nil
	}
	data, err := contents{}.read(v.ix, at)
	if err != nil {
		return err
	}
	v.records = append(v.records, record{e.Path, data})
	v.out.Records = append(v.out.Records, e.Path)
	return nil
}

// lookAt plans for a file: where it lies, or else in a temporary copy.
func (v *survey) lookAt(ctx context.Context, at int) error {
	e := v.ix.Entries[at]
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
		return v.plan(ctx, at, r)
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
	return v.plan(ctx, at, v.scratch)
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
func (v *survey) plan(ctx context.Context, at int, r io.ReaderAt) error {
	e := v.ix.Entries[at]
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
	c := &changed{rehash: rehash{Names: []string{e.Path}}, At: at, Edits: plan.edits}
	if c.Old, c.New, err = plan.hashes(ctxio.Reader(ctx, io.NewSectionReader(r, 0, e.Size))); err != nil {
		return fmt.Errorf("read %q: %w", e.Path, err)
	}
	v.out.Changed = append(v.out.Changed, c)
	return nil
}

// names finds the other names of changed files.
func (v *survey) names() {
	at := map[string]*rehash{}
	for _, c := range v.out.Changed {
		at[v.ix.Entries[c.At].Path] = &c.rehash
	}
	for _, e := range v.ix.Entries {
		if sums := at[e.Link]; e.Type == layer.HardLink && sums != nil {
			sums.Names = append(sums.Names, e.Path)
			at[e.Path] = sums
		}
	}
}

// lists finds the RECORDs that have changed files. Of one that cannot be read a warning comes when it is to be changed.
func (v *survey) lists() {
	names := newChanges(v.out.rehashed())
	for _, r := range v.records {
		_, listed, _ := names.fix(r.name, r.data)
		for _, f := range listed {
			if !slices.Contains(f.Lists, r.name) {
				f.Lists = append(f.Lists, r.name)
			}
		}
	}
}

// rehashed are the changed files by their hashes.
func (f *findings) rehashed() []*rehash {
	list := make([]*rehash, 0, len(f.Changed))
	for _, c := range f.Changed {
		list = append(list, &c.rehash)
	}
	return list
}
