package lock

import (
	"context"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
)

// Packages of an environment on top of the base's own, and those that are added to one of the base, are resolved against all that the base has, as those of a conda environment are
// against what conda brings: uv sees each package of the base as a wheel that it must take, and what it says of those is dropped.

// standOn finds what an environment on top of the base's is based on.
func (k *locker) standOn(ctx context.Context, platform v1.Platform) (*python.Interpreter, error) {
	var err error
	if k.base, err = baseOf(ctx, k.opts.Store, k.image, platform); err != nil {
		return nil, err
	}
	return &k.base.Python, nil
}

// addTo finds the Python of a base, with the virtual environment that its commands run in, if there is one. Packages are added to that one,
// as pip would: a second environment would hide what the base has, and one of sconce's own would lie in the same directory.
func (k *locker) addTo(ctx context.Context, platform v1.Platform) (*python.Interpreter, error) {
	b, err := baseOf(ctx, k.opts.Store, k.image, platform)
	if err != nil {
		return nil, err
	}
	if len(b.Chain) > 0 {
		k.base, k.python.Environment = b, b.Root
		if k.recipe.Python.Protect != nil {
			progress.Warn(ctx, "protect has no effect: packages are added to the base's environment "+b.Root+", where all that is there stays", "take protect out of the recipe")
		}
	}
	return &b.Python, nil
}

// meetBase notes that nothing of the base may be replaced but what the environment shall shadow, and writes what uv is told of it.
// remove takes that away.
func (k *locker) meetBase(b python.Base) (remove func(), err error) {
	k.python.SystemSitePackages = b.System
	var shadow []string
	if on := k.recipe.Python.OnTop; on != nil {
		shadow, k.python.Chain = on.Shadow, b.Chain
		for _, c := range b.Commands {
			k.python.Commands = append(k.python.Commands, c.Name+" = "+c.Module+":"+c.Attr)
		}
	}
	var kept []condalock.Distribution
	for _, p := range b.Python.Packages {
		if containsName(shadow, p.Name) {
			continue
		}
		k.python.Protected = append(k.python.Protected, Protected{Name: p.Name, Version: p.Version})
		if _, err := python.ParseVersion(p.Version); err == nil && properName.MatchString(p.Name) {
			kept = append(kept, condalock.Distribution{Name: p.Name, Version: released(p.Version), Metadata: standIn(p), Package: p.Name})
		}
	}
	return k.writeStubs(kept)
}

// properName is the form of a normalised name.
var properName = lazyregexp.New(`^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?$`)

// preRelease is the part of a version that says that it comes before a release (PEP 440).
var preRelease = lazyregexp.New(`^((?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*)[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]*(?:\.dev[0-9]*)?`)

// released is the version that a vendor's build stands for, see [Fit]: 2.6.0+5228986c39.nv25.01 for 2.6.0a0+5228986c39.nv25.01. No
// requirement would accept the other.
func released(version string) string { return preRelease.ReplaceAllString(version, "$1") }

// standIn is metadata of a package of the base. What it requires is there, or the base does without; only its extras may ask for more.
func standIn(p python.Installed) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "Metadata-Version: 2.1\nName: %s\nVersion: %s\n", p.Name, p.Version)
	extras := make(map[string]bool)
	for _, text := range p.Requires {
		m := extraMarker.FindStringSubmatch(text)
		if m == nil || strings.ContainsAny(text, "\r\n") {
			continue
		}
		if !extras[m[1]] {
			extras[m[1]] = true
			fmt.Fprintf(&b, "Provides-Extra: %s\n", m[1])
		}
		fmt.Fprintf(&b, "Requires-Dist: %s\n", text)
	}
	return []byte(b.String())
}

// extraMarker finds the extra that a requirement belongs to.
var extraMarker = lazyregexp.New(`;.*\bextra\s*==\s*['"]([A-Za-z0-9._-]+)['"]`)

// allowing is what to do about a protected package that shall go.
func (k *locker) allowing(name string) string {
	if k.python.Environment != "" {
		return "or take a base without it: what is in a base's environment stays as it is"
	}
	if k.base != nil {
		return "or put one of your own before it with --allow-shadow " + name
	}
	return allowReplacing
}
