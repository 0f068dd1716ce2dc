package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/report"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// errNoPage says what the options are for that go with --html.
var errNoPage = errors.New("--cluster and --force go with --html FILE; `sconce check IMAGE --cluster NAME` prints what a page would say")

// inspectHTML writes a page about an image.
func (a *app) inspectHTML(ctx context.Context, o inspectOptions) error {
	if err := report.Free(o.html, o.force); err != nil {
		return err // before anything is downloaded
	}
	var t target
	if err := t.find(o.cluster, ""); err != nil {
		return err
	}
	r := &report.Report{Target: t.Profile, TargetFrom: t.from, NotJudged: unknowns(t.Profile)}
	done, err := a.gatherReport(ctx, o, t.Platform, r)
	if err != nil {
		return err
	}
	if r.Findings, err = audit.Check(ctx, r.Facts, t.Profile); err == nil {
		err = r.WriteFile(o.html, o.force)
	}
	if err = errors.Join(err, done()); err != nil {
		return fmt.Errorf("inspect %s: %w", o.image, err)
	}
	a.say("%s: %s", o.html, countWords(audit.CountOf(r.Findings)))
	return nil
}

// gatherReport fills in what the image is and holds. targetPlatform is chosen where there are several and the user names none;
// an image for another will do, as the page says so. The caller calls done when the page is written.
func (a *app) gatherReport(ctx context.Context, o inspectOptions, targetPlatform string, r *report.Report) (done func() error, err error) {
	platform := o.platform
	if platform == "" {
		platform = targetPlatform
	}
	ref, open, err := a.sources(ctx, o.image, platform)
	if err != nil {
		return nil, err
	}
	if isClusterFile(ref) {
		return clusterFileReport(ctx, open.Store, ref.Value, o.image, r)
	}
	var im *image.Image
	if o.platform == "" {
		im, err = anyPlatform(ctx, ref, open, source.Import)
	} else {
		im, err = source.Import(ctx, ref, open)
	}
	if err != nil {
		return nil, source.Explain(err, o.image, ref, a.opened)
	}
	if err := addLayers(ctx, open.Store, im, r); err != nil {
		return nil, err
	}
	if r.Facts, err = facts.OfImage(ctx, open.Store, im, o.image); err != nil {
		return nil, err
	}
	return r.Facts.Close, nil
}

// addLayers says what each layer of an image holds, and what of it the image shows.
func addLayers(ctx context.Context, st *store.Store, im *image.Image, r *report.Report) error {
	r.Format = "OCI image"
	indexes := make([]*layer.Index, len(im.Layers))
	for i, made := range inspectLayers(&im.Manifest, &im.Config) {
		index, err := layer.OpenIndex(ctx, st, im.Layers[i])
		if err != nil {
			return err
		}
		indexes[i] = index
		l := report.Layer{Digest: made.Digest, CreatedBy: made.CreatedBy, Stored: made.Size}
		if l.CreatedBy == "" {
			l.CreatedBy = made.Comment
		}
		for i := range index.Entries {
			if e := &index.Entries[i]; e.Type == layer.Regular {
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

// clusterFileReport says what a squashfs or SIF file holds, which has no layers.
func clusterFileReport(ctx context.Context, st *store.Store, path, name string, r *report.Report) (done func() error, err error) {
	c, err := source.OpenClusterFile(path)
	if err != nil {
		return nil, err
	}
	if r.Facts, err = facts.OfClusterFile(ctx, st, c, name); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	r.Format, r.Stored = "squashfs, "+c.FS.Info().Compressor.String(), c.Partition.Size()
	if c.SIF != nil {
		r.Format = "SIF, " + c.FS.Info().Compressor.String()
	}
	seen := map[uint32]bool{} // by number, files with several names
	err = c.FS.Walk(func(p string, f *squashfs.File) error {
		if f.Type != squashfs.Regular || seen[f.Number] {
			return ctx.Err()
		}
		if f.Links > 1 {
			seen[f.Number] = true
		}
		r.Files = append(r.Files, report.File{Path: p, Size: f.Size})
		return ctx.Err()
	})
	done = func() error { return errors.Join(r.Facts.Close(), c.Close()) }
	if err != nil {
		return nil, errors.Join(err, done())
	}
	return done, nil
}

// completeClusters completes the names of profiles, and files.
func completeClusters(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, _ := cluster.List("") // a file that is wrong is no reason to complete nothing
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
	}
	return names, cobra.ShellCompDirectiveDefault
}
