package wheelbuild

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/python"
)

// Needs returns the places in all of what has to be laid down before p is built: the packages of the image that it is built
// against and that are built themselves.
func (p Package) Needs(all []Package) []int {
	if p.Isolated {
		return nil
	}
	var needs []int
	for i, other := range all {
		if other.Name != p.Name && slices.Contains(p.Against, other.Name) {
			needs = append(needs, i)
		}
	}
	return needs
}

// Order returns the places of all in an order in which each comes after what it needs. That packages wait for each other in a
// circle is an error.
func Order(all []Package) ([]int, error) {
	const (
		visiting = 1
		visited  = 2
	)
	state := make([]int, len(all))
	order := make([]int, 0, len(all))
	var visit func(i int) error
	visit = func(i int) error {
		state[i] = visiting
		for _, n := range all[i].Needs(all) {
			if state[n] == visiting {
				return fault.Hint(fmt.Errorf("to be built, %s needs %s, which needs %s itself", all[n].Name, all[i].Name, all[n].Name),
					"take one of them out of the other's `requires` under [python.compile]")
			}
			if state[n] == visited {
				continue
			}
			if err := visit(n); err != nil {
				return err
			}
		}
		state[i] = visited
		order = append(order, i)
		return nil
	}
	for i := range all {
		if state[i] == 0 {
			if err := visit(i); err != nil {
				return nil, err
			}
		}
	}
	return order, nil
}

// BuildAll asks what the packages want to be built with, and builds each as soon as those are there that it is built against. It
// returns their wheels in the order of the packages. ground says what one is built on; lay makes the layer of a wheel, which goes on
// the ground of those that need it. Both may be called from many goroutines.
func (b *Builder) BuildAll(ctx context.Context, packages []Package, ground func(Package) (Ground, error), lay func(python.Item) (layer.Descriptor, error)) ([]python.Item, error) {
	if _, err := Order(packages); err != nil {
		return nil, err
	}
	sites, err := b.sites(ctx, packages, ground)
	if err == nil {
		err = askAll(ctx, sites)
	}
	if err != nil {
		return nil, err
	}
	items := make([]python.Item, len(packages))
	done := make([]chan struct{}, len(packages))
	for i := range done {
		done[i] = make(chan struct{})
	}
	g, ctx := errgroup.WithContext(ctx)
	for i, p := range packages {
		g.Go(func() error {
			needs := p.Needs(packages)
			for _, n := range needs {
				select {
				case <-done[n]:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			var err error
			if s := sites[i]; s != nil {
				items[i], err = s.wheel(ctx)
			} else {
				items[i], err = b.buildAfter(ctx, p, ground, pick(items, needs), lay)
			}
			if err == nil {
				close(done[i])
			}
			return err
		})
	}
	return items, g.Wait()
}

// buildAfter builds p with the wheels that it needs on its ground.
func (b *Builder) buildAfter(
	ctx context.Context, p Package, ground func(Package) (Ground, error), needed []python.Item, lay func(python.Item) (layer.Descriptor, error),
) (python.Item, error) {
	on, err := ground(p)
	if err != nil {
		return python.Item{}, err
	}
	on.Layers, on.Items = slices.Clone(on.Layers), slices.Clone(on.Items)
	for _, it := range needed {
		d, err := lay(it)
		if err != nil {
			return python.Item{}, err
		}
		on.Layers, on.Items = append(on.Layers, d), append(on.Items, it)
	}
	return b.Build(ctx, p, on)
}

func pick(items []python.Item, places []int) []python.Item {
	var picked []python.Item
	for _, i := range places {
		picked = append(picked, items[i])
	}
	return picked
}
