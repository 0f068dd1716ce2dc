package engine

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
)

// Target is what an image is judged by and made for.
type Target struct {
	cluster.Profile
	From  string            // where the profile is from; "" for none
	Allow map[string]string // by the id of a rule, why what it finds is no error here

	brought bool   // as in [cluster.Found]
	over    string // likewise
}

func (t *Target) take(f cluster.Found) {
	t.Profile, t.From, t.brought, t.over = f.Profile, f.From, f.Brought, f.Over
}

// Tell notes that the profile is a repository's, and comes before one that the user or the site keeps under the same name.
func (t Target) Tell(ctx context.Context) {
	if t.over != "" {
		progress.Notef(ctx, fmt.Sprintf("%s says what %s is, and not %s", t.From, t.Name, t.over))
	}
}

// tellMounts notes that a file which neither the user nor the site keeps with their profiles says what is mounted.
func (t Target) tellMounts(ctx context.Context) {
	t.Tell(ctx)
	if t.brought && len(t.Container.Mounts) > 0 {
		progress.Notef(ctx, fmt.Sprintf("%s is mounted, as %s says", strings.Join(t.Container.Mounts, ", "), t.From))
	}
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
	t.take(found)
	return t, err
}

// FindOwnTarget takes the profile of a cluster for what mounts or runs something here at once: by name one of the user's, the site's or
// sconce's own. That of a repository counts when its file is named.
func FindOwnTarget(name string) (Target, error) {
	t, err := FindTarget(name, "")
	if file := filepath.Join(cluster.Dir, name+".toml"); err != nil {
		if _, missing := os.Stat(file); missing == nil && filepath.Base(name) == name {
			return t, fault.Usage(fault.Hint(err, "if you want the profile that lies here, name its file: --cluster ./"+file))
		}
	}
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
		t.take(found)
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
