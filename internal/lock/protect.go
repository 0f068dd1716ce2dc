package lock

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
)

// torchFamily are the packages that a vendor's base builds to fit each other. When the base brings torch, replacing any of
// them by a build from an index breaks the others, so all that are there are protected.
var torchFamily = []string{"torch", "torchvision", "torchaudio", "torchtext", "triton", "pytorch-triton"}

// allowReplacing is what to do about a protected package that shall go.
const allowReplacing = "or let packages replace what the base brings with `protect = []` under [python]"

// protect notes which packages of the base nothing may replace, and whether the environment sees the base's packages.
func (k *locker) protect(ctx context.Context, found python.Interpreter) {
	listed := k.recipe.Python.Protect
	k.python.Protected = protected(listed, found)
	_, hasTorch := found.Package("torch")
	k.python.SystemSitePackages = hasTorch || len(k.python.Protected) > 0
	if listed == nil {
		return
	}
	for _, name := range *listed {
		if _, there := found.Package(name); !there {
			progress.Warn(ctx, fmt.Sprintf("the base has no package %s to protect", name), "take it out of python.protect, or check its spelling")
		}
	}
}

// protected returns the packages of the base that nothing may replace: those that the recipe lists, or, when it is
// silent and the base brings torch, torch with its family and what was compiled against it.
func protected(listed *[]string, found python.Interpreter) []Protected {
	var out []Protected
	for _, p := range found.Packages {
		if isProtected(p, listed, found) {
			out = append(out, Protected{Name: p.Name, Version: p.Version})
		}
	}
	return out
}

func isProtected(p python.Installed, listed *[]string, found python.Interpreter) bool {
	if listed != nil {
		return containsName(*listed, p.Name)
	}
	if _, hasTorch := found.Package("torch"); !hasTorch {
		return false
	}
	return slices.Contains(torchFamily, p.Name) || requiresTorch(p)
}

func requiresTorch(p python.Installed) bool {
	return slices.ContainsFunc(p.Requires, func(text string) bool {
		// A requirement with a marker is mostly an extra: it does not say that the package was built against torch.
		return python.NormalizeName(requirementName(text)) == "torch" && !strings.Contains(text, ";")
	})
}

// protects returns the protected package called name, which is normalised.
func (p *Python) protects(name string) (Protected, bool) {
	i := slices.IndexFunc(p.Protected, func(guard Protected) bool { return guard.Name == name })
	if i < 0 {
		return Protected{}, false
	}
	return p.Protected[i], true
}

// checkRequested compares what the recipe asks for by name with what is protected: uv leaves protected packages out without
// a word. The base's version must do.
func (k *locker) checkRequested(ctx context.Context, asked []string) error {
	for _, text := range asked {
		requirement, err := python.ParseRequirement(text)
		if err != nil {
			continue // uv says what is wrong with it
		}
		guard, ok := k.python.protects(python.NormalizeName(requirement.Name))
		if !ok || !k.applies(requirement) {
			continue
		}
		switch fit := guard.Fits(requirement); {
		case requirement.URL != "" || fit == Misfit:
			return fault.Hint(fmt.Errorf("the recipe asks for %q, but the base brings %s %s, which is protected", fetch.WithoutLogins(text), guard.Name, guard.Version),
				"ask for a version that the base has, "+k.allowing(guard.Name))
		case fit == NearFit:
			progress.Warn(ctx, fmt.Sprintf("%q is met only nearly by the base's %s %s", text, guard.Name, guard.Version), "take another base, "+k.allowing(guard.Name))
		default:
			progress.Notef(ctx, fmt.Sprintf("%s comes from the base, in version %s", guard.Name, guard.Version))
		}
	}
	return nil
}

// applies reports whether the requirement's marker holds for the base's Python.
func (k *locker) applies(r python.Requirement) bool {
	if r.Marker == nil {
		return true
	}
	ok, err := r.Marker.Evaluate(python.EnvironmentOf(k.python.Interpreter()).WithExtra(""))
	return err == nil && ok
}

// Fit says how well a version meets a requirement.
type Fit int

// Vendors call the torch in their images 2.6.0a0+5228986c39.nv25.01 and the like: by the rules (PEP 440) that is before
// 2.6, and in fact it is a 2.6. That is a near fit.
const (
	Misfit Fit = iota
	NearFit
	FullFit
)

// releaseForm is the part of a version before pre-release, post-release and local label (PEP 440).
var releaseForm = lazyregexp.New(`^(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*`)

// Fits says how well the protected package's version meets r.
func (p Protected) Fits(r python.Requirement) Fit {
	version, err := python.ParseVersion(p.Version)
	if err != nil {
		return NearFit // nobody can say
	}
	if r.Specifiers.Contains(version) {
		return FullFit
	}
	release, err := python.ParseVersion(releaseForm.FindString(p.Version))
	if err == nil && r.Specifiers.Contains(release) {
		return NearFit
	}
	return Misfit
}

// checkReplaced makes sure that a lock which uv did not write for this base replaces nothing that is protected.
func (k *locker) checkReplaced(wheels []Wheel) error {
	for _, w := range wheels {
		if guard, ok := k.python.protects(python.NormalizeName(w.Name)); ok {
			return fault.Hint(fmt.Errorf("%s would replace %s %s of the base with %s", k.python.File, guard.Name, guard.Version, w.Version),
				fmt.Sprintf("take %s out of the lock, %s", guard.Name, k.allowing(guard.Name)))
		}
	}
	return nil
}

// requirementName returns the name that a requirement begins with.
func requirementName(text string) string {
	text = strings.TrimSpace(text)
	if i := strings.IndexAny(text, " \t<>=!~[;(@"); i >= 0 {
		return text[:i]
	}
	return text
}
