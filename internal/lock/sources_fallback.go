package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/units"
)

// unusableSource is a source that the image cannot have.
type unusableSource struct {
	Name, Version string // the name normalised
	Reason        error
}

// unusableError is why there is no lock with these sources.
type unusableError struct{ sources []unusableSource }

func (e *unusableError) Error() string { return e.reasons().Error() }

// Hint says what to do about all of them.
func (e *unusableError) Hint() string { return fault.HintOf(e.reasons()) }

func (e *unusableError) reasons() error {
	var all []error
	for _, s := range e.sources {
		all = append(all, s.Reason)
	}
	return fault.Join(all...)
}

// cannotUse notes why uv gets no answer about a source.
func (s *sources) cannotUse(u unusableSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.unusable, func(o unusableSource) bool { return o.Name == u.Name && o.Version == u.Version }) {
		s.unusable = append(s.unusable, u)
	}
}

// maxFallbacks bounds how often uv is asked without sources that turned out to be of no use.
const maxFallbacks = 10

// onlyBinary lists the packages that may come as a wheel only, as uv takes them.
func (k *locker) onlyBinary() []string {
	if k.lenient {
		return nil
	}
	names := slices.Clone(k.recipe.Python.OnlyBinary)
	for _, s := range k.fallbacks {
		names = append(names, s.Name)
	}
	return names
}

// fallBack takes away the sources that err says cannot be used, where the recipe does not ask for them. It returns true when
// another resolution may help.
func (k *locker) fallBack(err error) bool {
	var bad *unusableError
	if !errors.As(err, &bad) {
		return false
	}
	added := false
	for _, s := range bad.sources {
		_, wanted := k.sources.byName[s.Name]
		known := slices.ContainsFunc(k.fallbacks, func(f unusableSource) bool { return f.Name == s.Name })
		if !wanted && !known {
			k.fallbacks = append(k.fallbacks, s)
			added = true
		}
	}
	return added
}

// tellSources says which packages are built, and what else would have been chosen if sources had not been taken away.
func (k *locker) tellSources(ctx context.Context, text []byte) error {
	packages, err := k.python.read(k.recipe, text)
	if err != nil {
		return err
	}
	if list := k.builtUnasked(packages); len(list) > 0 {
		progress.Notef(ctx, fmt.Sprintf("without a wheel that fits, and built from source: %s", units.List(list, shownSources)))
	}
	if len(k.onlyBinary()) == 0 {
		return nil
	}
	k.lenient = true
	plain, err := k.uv(ctx)
	k.lenient = false
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	instead := "what would be chosen with it cannot be told"
	if err == nil {
		if instead, err = k.differences(plain, packages); err != nil {
			return err
		}
	}
	k.tellInstead(ctx, instead)
	return nil
}

func (k *locker) tellInstead(ctx context.Context, instead string) {
	if len(k.fallbacks) == 0 {
		if instead != "" {
			progress.Notef(ctx, "by only-binary: "+instead)
		}
		return
	}
	var reasons []string
	for _, s := range k.fallbacks {
		reasons = append(reasons, fmt.Sprintf("%s %s has no wheel that fits, and: %s", s.Name, s.Version, firstLines(s.Reason.Error())))
	}
	if instead == "" {
		instead = "nothing else follows from it"
	}
	progress.Warn(ctx, instead+"; since "+strings.Join(reasons, "; "), (&unusableError{k.fallbacks}).Hint())
}

// firstLines shortens uv's derivation of a conflict to what a warning can hold.
func firstLines(text string) string {
	const most = 4
	lines := strings.SplitN(text, "\n", most+1)
	return strings.Join(lines[:min(len(lines), most)], "\n")
}

// builtUnasked lists the packages that are built though neither their address nor a table of the recipe says so.
func (k *locker) builtUnasked(packages []python.Package) []string {
	var list []string
	for _, p := range packages {
		if p.Source == nil || p.Source.Direct {
			continue
		}
		if _, own := k.recipe.Python.Compile[python.NormalizeName(p.Name)]; !own {
			list = append(list, p.Name+" "+p.Version)
		}
	}
	return list
}

// differences says what packages are instead of those of a plain resolution, "" when they are the same.
func (k *locker) differences(plain []byte, packages []python.Package) (string, error) {
	before, err := k.python.read(k.recipe, plain)
	if err != nil {
		return "", err
	}
	is := make(map[string]string)
	for _, p := range packages {
		is[python.NormalizeName(p.Name)] = p.Version
	}
	var list, without []string
	for _, p := range before {
		switch version, ok := is[python.NormalizeName(p.Name)]; {
		case !ok:
			without = append(without, p.Name+" "+p.Version)
		case version != p.Version:
			list = append(list, fmt.Sprintf("%s %s instead of %s", p.Name, version, p.Version))
		}
	}
	if len(without) > 0 {
		list = append(list, "no "+units.List(without, shownSources))
	}
	return units.List(list, shownSources), nil
}

// shownSources is how many packages are named: more nobody would read.
const shownSources = 12
