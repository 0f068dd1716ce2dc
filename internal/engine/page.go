package engine

import (
	"context"
	"errors"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/report"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
)

// Page writes a page about an image to file, judged for a target, and returns how much was found. Anything in the file's place but
// an older page is replaced only with force.
func (s *Session) Page(ctx context.Context, subject *Subject, t Target, file string, force bool) (n audit.Count, err error) {
	if err := report.Free(file, force); err != nil {
		return n, err // before anything is downloaded
	}
	r := &report.Report{Target: t.Profile, TargetFrom: t.From, NotJudged: t.Unknown()}
	if r.Facts, err = subject.Facts(ctx); err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, r.Facts.Close()) }()
	if err := addFiles(ctx, subject, r); err != nil {
		return n, err
	}
	if r.Findings, err = audit.Check(ctx, r.Facts, t.Profile); err != nil {
		return n, err
	}
	return audit.CountOf(r.Findings), r.WriteFile(file, force)
}

// Sizes says where the room in an image goes. Layers that are not in the store are brought.
func (s *Session) Sizes(ctx context.Context, subject *Subject) (sizes *report.Sizes, err error) {
	r := &report.Report{}
	if r.Facts, err = subject.listed(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Facts.Close()) }()
	if err := errors.Join(r.Facts.FindPackages(ctx), addFiles(ctx, subject, r), r.Facts.Missing()); err != nil {
		return nil, err
	}
	return r.Sizes(), nil
}

func addFiles(ctx context.Context, subject *Subject, r *report.Report) error {
	if subject.IsClusterFile() {
		return addClusterFile(ctx, subject.file, r)
	}
	return addLayers(ctx, subject.outline, r)
}

// addLayers says what each layer of an image holds, and what of it the image shows. It brings no layer of which the store knows
// what it holds.
func addLayers(ctx context.Context, o *image.Outline, r *report.Report) error {
	r.Format = "OCI image"
	indexes, err := o.Indexes(ctx)
	if err != nil {
		return err
	}
	for i, made := range LayersOf(&o.Image.Manifest, &o.Image.Config) {
		l := report.Layer{Digest: made.Digest, CreatedBy: made.CreatedBy, Stored: made.Size}
		if l.CreatedBy == "" {
			l.CreatedBy = made.Comment
		}
		for j := range indexes[i].Entries {
			if e := &indexes[i].Entries[j]; e.Type == layer.Regular {
				l.Unpacked += e.Size
			}
		}
		r.Stored += l.Stored
		r.Layers = append(r.Layers, l)
	}
	tree, err := image.TreeOf(indexes)
	if err != nil {
		return err
	}
	seen := map[int]bool{} // by number, files with several names
	return tree.Walk(func(n *image.Node) error {
		if n.Type != layer.Regular || seen[n.Inode] {
			return ctx.Err()
		}
		if n.Links > 1 {
			seen[n.Inode] = true
		}
		number, _ := n.Content()
		r.Files = append(r.Files, report.File{Path: n.Path, Size: n.Size, Layer: number})
		return ctx.Err()
	})
}

// addClusterFile says what a squashfs or SIF file holds, which has no layers.
func addClusterFile(ctx context.Context, c *source.ClusterFile, r *report.Report) error {
	r.Format, r.Stored = "squashfs, "+c.FS.Info().Compressor.String(), c.Partition.Size()
	if c.SIF != nil {
		r.Format = "SIF, " + c.FS.Info().Compressor.String()
	}
	seen := map[uint32]bool{} // by number, files with several names
	return c.FS.Walk(func(p string, f *squashfs.File) error {
		if f.Type != squashfs.Regular || seen[f.Number] {
			return ctx.Err()
		}
		if f.Links > 1 {
			seen[f.Number] = true
		}
		r.Files = append(r.Files, report.File{Path: p, Size: f.Size})
		return ctx.Err()
	})
}
