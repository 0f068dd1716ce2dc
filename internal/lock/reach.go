package lock

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// A recipe says itself which files of this machine it names ([recipe.Load]). Here is what these files, and locks, lead to.

// reach refuses files of this machine that a lock names and that r may not reach.
func (l *Lock) reach(r *recipe.Recipe) error {
	for _, name := range slices.Sorted(maps.Keys(l.Source)) {
		s := l.Source[name]
		addresses := []string{s.Git}
		for _, f := range s.Files {
			addresses = append(addresses, f.URL)
		}
		if err := reachAll(r, "source "+name, addresses...); err != nil {
			return err
		}
	}
	if l.Base.Bootstrap != nil {
		for _, p := range l.Base.Bootstrap.Packages {
			if err := reachAll(r, "base package "+p.Name, p.URL); err != nil {
				return err
			}
		}
	}
	if l.Python == nil {
		return nil
	}
	for _, c := range l.Python.Compiled {
		for _, w := range c.Requires {
			if err := reachAll(r, w.Name+", which "+c.Name+" is built with", w.URL); err != nil {
				return err
			}
		}
	}
	return nil
}

// reachAll looks at addresses of which some may be files of this machine, relative to the recipe.
func reachAll(r *recipe.Recipe, whose string, addresses ...string) error {
	for _, address := range addresses {
		if err := r.Reach.CheckAddress(address, r.Dir); err != nil {
			return fmt.Errorf("%s: %w", whose, err)
		}
	}
	return nil
}

// reachPackages looks at where Python packages come from.
func reachPackages(r *recipe.Recipe, packages []python.Package) error {
	for _, p := range packages {
		addresses := []string{p.Wheel.URL, p.Wheel.Path}
		if s := p.Source; s != nil {
			addresses = []string{s.URL, s.Path}
		}
		if err := reachAll(r, p.Name, addresses...); err != nil {
			return err
		}
	}
	return nil
}

// reachConda looks at where conda packages come from.
func reachConda(r *recipe.Recipe, packages []conda.Package) error {
	for _, p := range packages {
		if err := reachAll(r, p.Name, p.URL); err != nil {
			return err
		}
	}
	return nil
}

// reachChannels looks at the channels of environment files that are directories, and at those of their packages.
func reachChannels(r *recipe.Recipe, files []*condalock.Environment) error {
	for _, e := range files {
		channels := slices.Clone(e.Channels)
		for _, spec := range e.Specs {
			if channel, _, found := strings.Cut(spec.Text, "::"); found {
				channels = append(channels, channel)
			}
		}
		for _, channel := range channels {
			if !strings.ContainsAny(channel[:min(1, len(channel))], "~/.") && !strings.HasPrefix(strings.ToLower(channel), "file:") {
				continue
			}
			if err := r.Reach.CheckAddress(channel, filepath.Dir(e.File)); err != nil {
				return fmt.Errorf("%s: channels: %w", e.File, err)
			}
		}
	}
	return nil
}

// reachRequirement looks at the address in a line of a requirements file, if it has one. Relative paths start at the recipe, where uv runs.
func (q *requirementsReader) reachRequirement(text string) error {
	return q.reach.CheckAddress(requirementAddress(text), q.dir)
}

// requirementAddress is where a requirement is, "" where it is only a name.
func requirementAddress(text string) string {
	if r, err := python.ParseRequirement(text); err == nil {
		return r.URL
	}
	address, _ := sourceAddress(text)
	return address
}
