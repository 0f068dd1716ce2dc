package lock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/upstream"
)

// Component is what a lock says of a component: the packages that are there while it is built. Its sources are pinned by themselves.
type Component struct {
	System *ospackages.Pinned `toml:"system,omitempty"`
}

// componentInputs are the lines about sources and about packages of components. What a source is has a line of its own, so that only
// those are pinned anew that a line of was changed.
func componentInputs(r *recipe.Recipe) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(r.Source)) {
		lines = append(lines, sourceInput(name, r.Source[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Component)) {
		for _, p := range r.Component[name].Packages {
			lines = append(lines, componentLine(name)+p)
		}
	}
	return lines
}

func componentLine(name string) string { return "component " + name + " package " }

func sourceInput(name string, s recipe.Source) string {
	line := "source " + name
	switch {
	case s.Git != "":
		line += " git " + fetch.WithoutLogins(s.Git) + " " + s.Commit
	case s.Debian != "":
		line += " debian " + s.Debian
	default:
		line += " url " + fetch.WithoutLogins(s.URL)
		if s.SHA256 != "" {
			line += " sha256 " + s.SHA256
		}
	}
	return line
}

// lockSources pins the sources of r. Those that an earlier lock pinned, for the same base where that decides, stay.
func lockSources(ctx context.Context, r *recipe.Recipe, l, old *Lock, im func() (*image.Image, error), o Options) (map[string]*upstream.Pinned, error) {
	all := make(map[string]*upstream.Pinned)
	for _, name := range slices.Sorted(maps.Keys(r.Source)) {
		s := r.Source[name]
		if p := old.source(name, sourceInput(name, s)); p != nil && !o.Upgrade && (s.Debian == "" || old.Base.Key() == l.Base.Key()) {
			all[name] = p
			continue
		}
		p, err := upstream.Pin(ctx, upstreamRequest(r, name), upstream.Options{Store: o.Store, Fetch: o.Fetch, Reach: r.Reach, Dir: r.Dir, Ask: asker(o, im)})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Path, err)
		}
		if s.URL != "" && s.SHA256 == "" {
			progress.Warn(ctx, fmt.Sprintf("source %s has no sha256: what is at its address now is taken", name),
				fmt.Sprintf("sha256 = %q under [source.%s] pins it for others, too", p.Files[0].SHA256.Hex(), name))
		}
		all[name] = p
	}
	return all, nil
}

// source returns how a source is pinned, nil if it is not, or was pinned for another line of the recipe.
func (l *Lock) source(name, line string) *upstream.Pinned {
	if l == nil || !slices.Contains(l.Inputs.Components, line) {
		return nil
	}
	return l.Source[name]
}

func upstreamRequest(r *recipe.Recipe, name string) upstream.Request {
	s := r.Source[name]
	req := upstream.Request{Name: name, URL: s.URL, Git: s.Git, Commit: s.Commit, Debian: s.Debian}
	if s.SHA256 != "" {
		req.SHA256 = store.Digest("sha256:" + s.SHA256)
	}
	return req
}

// asker asks the package manager of the base.
func asker(o Options, im func() (*image.Image, error)) upstream.Asker {
	return func(ctx context.Context, name string) ([]upstream.File, string, error) {
		base, err := im()
		if err != nil {
			return nil, "", err
		}
		found, version, err := ospackages.Source(ctx, o.Store, base.Layers, base.Platform(), o.Offline, name)
		files := make([]upstream.File, len(found))
		for i, f := range found {
			files[i] = upstream.File(f)
		}
		return files, version, err
	}
}

// lockComponents pins the packages that are there while components are built. Components that ask for the same have the same.
func lockComponents(ctx context.Context, r *recipe.Recipe, l, old *Lock, im func() (*image.Image, error), o Options) (map[string]*Component, error) {
	all := make(map[string]*Component)
	resolved := make(map[string]*ospackages.Pinned)
	for _, name := range r.ComponentOrder() {
		packages := slices.Compact(slices.Sorted(slices.Values(r.Component[name].Packages)))
		if len(packages) == 0 {
			continue
		}
		id := strings.Join(packages, " ")
		if p := old.component(l, name); p != nil && !o.Upgrade && resolved[id] == nil {
			resolved[id] = p
		}
		if resolved[id] == nil {
			base, err := im()
			if err != nil {
				return nil, err
			}
			resolved[id], err = ospackages.Resolve(ctx, o.Store, ospackages.Request{On: base.Layers, Platform: base.Platform(), Packages: packages, Offline: o.Offline})
			if err != nil {
				return nil, fmt.Errorf("component %s: %w", name, err)
			}
		}
		all[name] = &Component{System: resolved[id]}
	}
	return all, nil
}

// component returns the packages of a component, nil if they are not pinned for what r asks on the base of now.
func (l *Lock) component(now *Lock, name string) *ospackages.Pinned {
	if l == nil || l.Component[name] == nil || l.Base.Key() != now.Base.Key() {
		return nil
	}
	lines := func(in Inputs) []string {
		var all []string
		for _, line := range in.Components {
			if strings.HasPrefix(line, componentLine(name)) {
				all = append(all, line)
			}
		}
		return all
	}
	if !slices.Equal(lines(l.Inputs), lines(now.Inputs)) {
		return nil
	}
	return l.Component[name].System
}

// warnUnused says which patches nothing applies.
func warnUnused(ctx context.Context, r *recipe.Recipe) error {
	unused, err := r.UnusedPatches()
	for _, file := range unused {
		progress.Warn(ctx, fmt.Sprintf("%s is applied by nothing", file), "name it in patch under a [source], or remove it")
	}
	return err
}
