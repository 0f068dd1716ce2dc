package engine

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

// Target is what an image is judged by and made for.
type Target struct {
	cluster.Profile
	From  string            // where the profile is from; "" for none
	Allow map[string]string // by the id of a rule, why what it finds is no error here
}

// FindTarget takes a cluster's profile. name is what somebody wrote on a command line, so that the path of a file starts here;
// dir is where the recipe is beside which profiles are looked for, "" for none. An empty name gives a target of which nothing is
// known.
func FindTarget(name, dir string) (Target, error) {
	t := Target{Allow: map[string]string{}}
	if name == "" {
		return t, nil
	}
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".toml") {
		path, err := filepath.Abs(name)
		if err != nil {
			return t, err
		}
		name = path
	}
	found, err := cluster.Find(name, dir)
	t.Profile, t.From = found.Profile, found.From
	return t, err
}

// TargetOf is what a recipe is for: its cluster's profile, and above it what the recipe says itself. instead, unless it is empty,
// is the name of another cluster, as FindTarget takes it: then nothing that the recipe says of its own counts, but for what it
// allows.
func TargetOf(r *recipe.Recipe, instead string) (Target, error) {
	allow, err := allowedBy(r)
	if err != nil {
		return Target{}, err
	}
	if instead != "" {
		t, err := FindTarget(instead, r.Dir)
		t.Allow = allow
		return t, err
	}
	t := Target{Allow: allow}
	if r.Target.Cluster != "" {
		found, err := cluster.Find(r.Target.Cluster, r.Dir)
		if err != nil {
			return t, r.Mistake(err, "target", "cluster")
		}
		t.Profile, t.From = found.Profile, found.From
	}
	own := r.Target.Profile
	if r.Target.AnyPlatform && t.Platform != "" {
		own.Platform = ""
	}
	if err := own.Normalize(); err != nil {
		return t, fault.Usage(fmt.Errorf("%s: target.%w", r.Path, err))
	}
	t.Profile = t.Override(own)
	return t, nil
}

// allowedBy is what the recipe allows, of rules that exist.
func allowedBy(r *recipe.Recipe) (map[string]string, error) {
	for _, rule := range slices.Sorted(maps.Keys(r.Check.Allow)) {
		if err := audit.KnownRule(rule); err != nil {
			return nil, fmt.Errorf("%s: check.allow: %w", r.Path, err)
		}
	}
	if r.Check.Allow == nil {
		return map[string]string{}, nil
	}
	return maps.Clone(r.Check.Allow), nil
}

// Title is what the target is called in a sentence.
func (t Target) Title() string {
	if t.Name != "" {
		return t.Name
	}
	return "the target (" + t.Words() + ")"
}
