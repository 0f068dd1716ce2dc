package plan

import (
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/upstream"
)

// opsOf are the steps of one type of a stage.
func opsOf[T Op](s *Stage) []T {
	var all []T
	for _, step := range s.Steps {
		if op, ok := step.Op.(T); ok {
			all = append(all, op)
		}
	}
	return all
}

// What a component is built with, packages and a cache of the compiler, is where it is built, and of all that only its prefix reaches the image.
func TestComponentStages(t *testing.T) {
	s := newSubject(1)
	s.recipe.Source = map[string]recipe.Source{"ucx": {URL: "ucx.tar.gz"}}
	s.recipe.Component = map[string]recipe.Component{"ucx": {Packages: []string{"gcc"}, Run: "make install", MemoryPerJob: "3GiB", Line: 7}}
	s.lock.Source = map[string]*upstream.Pinned{"ucx": {Files: []upstream.File{{Name: "ucx.tar.gz", SHA256: digest("ucx")}}}}
	s.lock.Component = map[string]*lock.Component{"ucx": {System: &ospackages.Pinned{Manager: "apt", Asked: []string{"gcc"}, Packages: []ospackages.Package{{Name: "gcc"}}}}}
	image := s.plan(t).Stage
	if found := opsOf[*OSPackages](image); len(found) > 0 {
		t.Errorf("the image gets %v", found[0].Pinned.Asked)
	}
	grafts := opsOf[*Graft](image)
	if len(grafts) != 1 {
		t.Fatalf("%d components in the image", len(grafts))
	}
	prefix := opsOf[*Output](grafts[0].From)
	if len(grafts[0].From.Steps) != 1 || len(prefix) != 1 || prefix[0].Prefix != "/opt/ucx" {
		t.Fatalf("it has more than the prefix: %+v", grafts[0].From.Steps)
	}
	built := prefix[0].Of
	if packages := opsOf[*OSPackages](built); len(packages) != 1 || !slices.Equal(packages[0].Pinned.Asked, []string{"gcc"}) {
		t.Errorf("it is built with %v", packages)
	}
	run := opsOf[*Exec](built)
	if len(run) != 1 || !run[0].Jobs || run[0].MemoryPerJob != 3<<30 {
		t.Fatalf("it is built by %+v", run)
	}
	cached := slices.IndexFunc(run[0].Mounts, func(m Mount) bool { return m.Kind == execop.Cache && m.ID == "ccache" })
	script := strings.Join(run[0].Command.Args, " ")
	if cached < 0 || !slices.Contains(run[0].Command.Env, "CCACHE_DIR="+run[0].Mounts[cached].Target) || !strings.Contains(script, "PATH=/usr/lib/ccache:") {
		t.Errorf("no ccache: mounts %+v, environment %q, %s", run[0].Mounts, run[0].Command.Env, script)
	}
}
