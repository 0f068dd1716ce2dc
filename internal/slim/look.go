package slim

import (
	"context"
	"errors"
	"fmt"
	"io"

	"sconce.dev/sconce/internal/fatbin"
)

// Look finds what slimming changes in the size bytes of r, and reads only headers for it. A file with anything unexpected in it
// gives an empty plan whose report says why. Errors wrap [fatbin.ErrFormat] for files without GPU code; others are those of r and
// of ctx, or of options that mean nothing.
func Look(ctx context.Context, r io.ReaderAt, size int64, o Options) (*Plan, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("slim: %w", err)
	}
	if len(o.GPUs) == 0 {
		return nil, errors.New("slim: no GPU is named to slim for")
	}
	in := &input{ctx: ctx, r: r}
	plan, err := look(in, size, o)
	var doubt doubtError
	switch {
	case in.err != nil:
		return nil, fmt.Errorf("slim: %w", in.err)
	case errors.As(err, &doubt):
		return &Plan{Report: FileReport{Refused: doubt.Error()}}, nil
	case err != nil:
		return nil, fmt.Errorf("slim: %w", err)
	}
	return plan, nil
}

// look makes a plan. Errors are a doubtError for files that are left alone.
func look(r io.ReaderAt, size int64, o Options) (*Plan, error) {
	f, err := scan(r, size)
	if err != nil {
		return nil, err
	}
	if len(f.Regions)+len(f.Problems)+len(f.Bundles) == 0 {
		return nil, fatbin.ErrFormat
	}
	if err := doubt(r, size, f); err != nil {
		return nil, err
	}
	p := &Plan{}
	keeps, err := p.choose(r, f, o)
	if err != nil {
		return nil, err
	}
	if err := p.sortEdits(); err != nil {
		return nil, err
	}
	for _, e := range p.edits {
		p.Report.Zeroed += e.Size - int64(len(e.Data))
	}
	if p.Empty() {
		return p, nil
	}
	return p, p.prove(r, size, f, keeps, o)
}

func scan(r io.ReaderAt, size int64) (*fatbin.File, error) {
	return fatbin.Scan(r, size, fatbin.Options{SectionsOnly: true})
}

// choose selects what stays of each region, and plans and counts the rest.
func (p *Plan) choose(r io.ReaderAt, f *fatbin.File, o Options) (keeps [][]bool, err error) {
	s := newSelector(f, o)
	kept, dropped := tally{}, tally{}
	for i := range f.Regions {
		region := &f.Regions[i]
		if len(region.Entries) == 0 {
			keeps = append(keeps, nil)
			continue
		}
		keep := s.keep(region)
		keeps = append(keeps, keep)
		for j, stays := range keep {
			if stays {
				kept.add(&region.Entries[j])
			} else {
				dropped.add(&region.Entries[j])
			}
		}
		if err := p.absorb(r, region, keep); err != nil {
			return nil, err
		}
	}
	p.Report.Kept, p.Report.Dropped = kept.list(), dropped.list()
	return keeps, nil
}

// prove reads the changed file as others will, and compares it with what should be in it.
func (p *Plan) prove(r io.ReaderAt, size int64, before *fatbin.File, keeps [][]bool, o Options) error {
	after, err := scan(p.ReaderAt(r), size)
	if err != nil {
		return err
	}
	if len(after.Problems) > 0 {
		return doubtf("the slimmed file would be damaged: %v", after.Problems[0])
	}
	if err := sameFile(before, after, keeps); err != nil {
		return doubtf("the slimmed file would be another: %v", err)
	}
	if err := p.spares(before, keeps); err != nil {
		return err
	}
	was, is := before.Coverage(o.gpus()...), after.Coverage(o.gpus()...)
	for i := range was {
		if was[i] != is[i] {
			return doubtf("the slimmed file would not run as before on compute capability %d.%d", was[i].SM/10, was[i].SM%10)
		}
	}
	return nil
}

// spares makes sure that no edit touches a payload that stays.
func (p *Plan) spares(f *fatbin.File, keeps [][]bool) error {
	for i := range f.Regions {
		for j, stays := range keeps[i] {
			e := &f.Regions[i].Entries[j]
			if stays && p.touches(e.Offset+e.HeaderSize, e.End()) {
				return doubtf("the slimmed file would lose a part of the image at byte %d", e.Offset)
			}
		}
	}
	return nil
}

func sameFile(before, after *fatbin.File, keeps [][]bool) error {
	if before.Format != after.Format || before.Linked != after.Linked || len(before.Bundles) != len(after.Bundles) {
		return fmt.Errorf("a file of format %s", after.Format)
	}
	if len(before.Wrappers) != len(after.Wrappers) || len(before.Regions) != len(after.Regions) {
		return fmt.Errorf("%d regions and %d wrappers", len(after.Regions), len(after.Wrappers))
	}
	for i, w := range before.Wrappers {
		if w != after.Wrappers[i] {
			return fmt.Errorf("the wrapper at byte %d", w.Offset)
		}
	}
	for i := range before.Regions {
		if err := sameRegion(&before.Regions[i], &after.Regions[i], keeps[i]); err != nil {
			return err
		}
	}
	return nil
}

func sameRegion(before, after *fatbin.Region, keep []bool) error {
	same := before.Offset == after.Offset && before.Size == after.Size && before.Place == after.Place &&
		before.Section == after.Section && before.Wrapper == after.Wrapper && before.Headerless == after.Headerless
	if !same {
		return fmt.Errorf("the region at byte %d", before.Offset)
	}
	rest := after.Entries
	for i := range before.Entries {
		if !keep[i] {
			continue
		}
		if len(rest) == 0 || !sameEntry(&before.Entries[i], &rest[0]) {
			return fmt.Errorf("the entry at byte %d", before.Entries[i].Offset)
		}
		rest = rest[1:]
	}
	if len(rest) > 0 {
		return fmt.Errorf("the entry at byte %d", rest[0].Offset)
	}
	return nil
}

// sameEntry is whether two entries have the same image at the same place. The padding may have grown.
func sameEntry(a, b *fatbin.Entry) bool {
	same := a.Offset+a.HeaderSize == b.Offset+b.HeaderSize && a.Kind == b.Kind && a.Arch == b.Arch && a.Flags == b.Flags &&
		a.Major == b.Major && a.Minor == b.Minor && a.PaddedSize <= b.PaddedSize && len(a.Parts) == len(b.Parts)
	if !same || a.Compression != fatbin.Stored && (a.PayloadSize != b.PayloadSize || a.UncompressedSize != b.UncompressedSize) {
		return false
	}
	for i := range a.Parts {
		if p, q := &a.Parts[i], &b.Parts[i]; p.Offset != q.Offset || p.PaddedSize != q.PaddedSize || !sameEntry(p, q) {
			return false
		}
	}
	return true
}

// input ends a long scan with its context, and keeps the first error that is not the file's fault.
type input struct {
	ctx context.Context
	r   io.ReaderAt
	err error
}

func (in *input) ReadAt(b []byte, off int64) (int, error) {
	if in.err == nil {
		in.err = in.ctx.Err()
	}
	if in.err != nil {
		return 0, in.err
	}
	n, err := in.r.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) {
		in.err = err
	}
	return n, err
}
