package wheelbuild

import (
	"context"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fault"
)

// sites are the builds of the packages that wait for no other, in the places of the packages; the rest are nil. They are all nil
// where there are not two: what one backend wants, its own build tells soon enough.
func (b *Builder) sites(ctx context.Context, packages []Package, ground func(Package) (Ground, error)) ([]*site, error) {
	sites := make([]*site, len(packages))
	var first []int
	for i, p := range packages {
		if len(p.Needs(packages)) == 0 {
			first = append(first, i)
		}
	}
	if len(first) < 2 {
		return sites, nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, i := range first {
		g.Go(func() error {
			on, err := ground(packages[i])
			if err == nil {
				sites[i], err = b.site(ctx, packages[i], on)
			}
			return err
		})
	}
	return sites, g.Wait()
}

// askAll has the backends of all sites without a wheel say what they want, before the first of them compiles for an hour, and tells
// together what is not there.
func askAll(ctx context.Context, sites []*site) error {
	var open []*site
	for _, s := range sites {
		if s == nil {
			continue
		}
		made, err := s.isMade(ctx)
		if err != nil {
			return err
		}
		if !made {
			open = append(open, s)
		}
	}
	if len(open) < 2 {
		return nil
	}
	errs := make([]error, len(open))
	var g errgroup.Group
	for i, s := range open {
		g.Go(func() error {
			errs[i] = s.ask(ctx)
			return nil
		})
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fault.Join(errs...)
}

// isMade reports whether the wheel is in the store, or, as far as can be said without bringing it, with other machines.
func (s *site) isMade(ctx context.Context) (bool, error) {
	o := s.once(s.key())
	_, found, err := o.Recorded(s.builder.store())
	return found || err == nil && o.Shared.Has(ctx, o.Kind, o.Key), err
}
