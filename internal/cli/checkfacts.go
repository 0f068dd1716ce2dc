package cli

import (
	"context"
	"errors"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/source"
)

// gatherFacts finds out what is to be known of an image, wherever it is. platform is what it should be for: where there are
// several images, that one is taken, and where there is none, another, so that the check can say so. The caller closes the facts.
func (a *app) gatherFacts(ctx context.Context, name, platform string) (*facts.Facts, func() error, error) {
	ref, open, err := a.sources(ctx, name, platform)
	if err != nil {
		return nil, nil, err
	}
	if isClusterFile(ref) {
		return a.clusterFileFacts(ctx, ref.Value, name)
	}
	outline, err := anyPlatform(ctx, ref, open, source.Outline)
	if err != nil {
		return nil, nil, source.Explain(err, name, ref, a.opened)
	}
	facts, err := facts.OfOutline(ctx, open.Store, outline, name)
	if err != nil {
		return nil, nil, err
	}
	return facts, facts.Close, nil
}

// anyPlatform opens an image, and when there is none for the platform wanted, what there is: a check says so, and does not refuse.
func anyPlatform[T any](ctx context.Context, ref source.Ref, o source.Options,
	open func(context.Context, source.Ref, source.Options) (T, error),
) (T, error) {
	opened, err := open(ctx, ref, o)
	var wrong *source.PlatformError
	if errors.As(err, &wrong) {
		o.Platform.OS, o.Platform.Architecture = "", ""
		return open(ctx, ref, o)
	}
	return opened, err
}

func (a *app) clusterFileFacts(ctx context.Context, path, name string) (*facts.Facts, func() error, error) {
	st, err := a.store(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := source.OpenClusterFile(path)
	if err != nil {
		return nil, nil, err
	}
	facts, err := facts.OfClusterFile(ctx, st, c, name)
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return facts, func() error { return errors.Join(facts.Close(), c.Close()) }, nil
}
