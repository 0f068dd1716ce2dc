package engine_test

import (
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
)

// TestAddedToTheBasesEnvironment: packages on an image of sconce's own go to the environment that it has, resolved with what is there as
// given. None of that comes again, in whatever version, and the environment itself stays.
func TestAddedToTheBasesEnvironment(t *testing.T) {
	locktest.UV(t)
	s := newSession(t)
	x := locktest.NewIndex(t,
		locktest.Wheel{Name: "torch", Version: "2.7.0"}, locktest.Wheel{Name: "torch", Version: "2.9.0"},
		locktest.Wheel{Name: "alpha", Version: "1.5", Requires: []string{"torch>=2"}, Files: map[string]string{"shared.py": "x = 1\n"}},
		locktest.Wheel{Name: "alpha", Version: "2.0", Requires: []string{"torch>=2.8"}},
		locktest.Wheel{Name: "beta", Version: "1.0", Requires: []string{"alpha", "torch"}, Files: map[string]string{"shared.py": "x = 22\n"}},
		locktest.Wheel{Name: "gamma", Version: "1.0", Requires: []string{"alpha>=2"}},
	)
	settings := map[string]string{"uv.toml": "[[index]]\nurl = \"" + x.URL + "\"\ndefault = true\n"}
	make := func(dir, base, packages string) (*engine.Built, *locktest.Events, error) {
		var events locktest.Events
		locktest.Write(t, dir, settings)
		locktest.Write(t, dir, map[string]string{recipe.FileName: "name = \"test\"\n[base]\nimage = \"" + base + "\"\n[target]\nplatform = \"linux/amd64\"\n" +
			"[python]\nbytecode = false\npackages = [" + packages + "]\n"})
		built, err := build(progress.With(t.Context(), &events), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
		return built, &events, err
	}
	below, _, err := make(locktest.Dir(t, locktest.Base{}, nil), "tar:base.tar", `"torch==2.7.0", "alpha"`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Name(below.Image, "below:1"); err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	built, events, err := make(dir, "below:1", `"beta"`)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := built.Image.Tree(t.Context(), s.Store)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := tree.ReadDir("opt/venv/lib/python3.11/site-packages")
	if err != nil {
		t.Fatal(err)
	}
	var installed []string
	for _, n := range nodes {
		if name, ok := strings.CutSuffix(n.Name(), ".dist-info"); ok {
			installed = append(installed, name)
		}
	}
	slices.Sort(installed)
	if want := []string{"alpha-1.5", "beta-1.0", "torch-2.7.0"}; !slices.Equal(installed, want) {
		t.Errorf("installed: %q, want %q", installed, want)
	}
	if env := built.Image.Config.Config.Env; !slices.Equal(env, below.Image.Config.Config.Env) {
		t.Errorf("variables: %q, in the base %q", env, below.Image.Config.Config.Env)
	}
	r, err := engine.LoadRecipe(dir, engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.Read(r.Recipe)
	if err != nil {
		t.Fatal(err)
	}
	locked, err := l.Locked(r.Recipe)
	if err != nil || len(locked.Wheels) != 1 || l.Python.Environment != "/opt/venv" {
		t.Errorf("the lock has %+v for %s, %v", locked, l.Python.Environment, err)
	}
	if told := events.Texts(progress.Warning); !slices.ContainsFunc(told, func(text string) bool {
		return strings.Contains(text, "beta replaces /opt/venv/lib/python3.11/site-packages/shared.py of the base")
	}) {
		t.Errorf("warnings: %q", told)
	}

	for packages, want := range map[string]string{`"gamma"`: "alpha==1.5", `"torch==2.9.0"`: "the base brings torch 2.7.0"} {
		_, _, err := make(t.TempDir(), "below:1", packages)
		if err == nil || !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", packages, err, fault.HintOf(err))
		}
	}
}
