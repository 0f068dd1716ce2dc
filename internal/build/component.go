package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/upstream"
)

// unpack makes the layer of a source's files.
func (r *stageRun) unpack(ctx context.Context, op *plan.Unpack) (layer.Descriptor, error) {
	if err := r.cpu.Acquire(ctx, 1); err != nil {
		return layer.Descriptor{}, err
	}
	defer r.cpu.Release(1)
	return op.Pinned.Layer(ctx, op.Name, op.Dir, op.Patches, upstream.Options{Store: r.opts.Store, Fetch: r.opts.Fetch, Reach: r.opts.Reach, Dir: op.From}, r.stage.Layer)
}

// output makes the layer of what the last step of a stage has put below a prefix. What it has put elsewhere is forgotten, and so is
// what was there before, if the prefix is a directory of the base.
func (r *stageRun) output(ctx context.Context, op *plan.Output) (layer.Descriptor, error) {
	m, err := r.builder.stage(ctx, op.Of)
	if err != nil {
		return layer.Descriptor{}, err
	}
	last := m.last()
	nothing := fault.Hint(fmt.Errorf("its script has put nothing into %s", op.Prefix), "PREFIX has that directory: ./configure --prefix=$PREFIX, cmake -DCMAKE_INSTALL_PREFIX=$PREFIX, make PREFIX=$PREFIX; then it has to be installed")
	if last.Digest == "" {
		return layer.Descriptor{}, nothing
	}
	tree, err := image.NewTree(ctx, r.opts.Store, []layer.Descriptor{last})
	if err != nil {
		return layer.Descriptor{}, err
	}
	if n, err := tree.Lstat(op.Prefix); errors.Is(err, fs.ErrNotExist) || err == nil && n.Type != layer.Dir {
		return layer.Descriptor{}, nothing
	} else if err != nil {
		return layer.Descriptor{}, err
	}
	c := fileop.Copy{Sources: []string{op.Prefix}, Dest: op.Prefix + "/"}
	return c.Layer(ctx, r.opts.Store, fileop.FromStep(tree), nil, r.stage.Layer, nil)
}

// graft is the layer that another stage has come to.
func (r *stageRun) graft(ctx context.Context, op *plan.Graft) (layer.Descriptor, error) {
	m, err := r.builder.stage(ctx, op.From)
	if err != nil {
		return layer.Descriptor{}, err
	}
	return m.last(), nil
}
