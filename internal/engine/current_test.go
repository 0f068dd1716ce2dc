package engine_test

import (
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/recipe"
)

// A job is not submitted with an image of another recipe or lock than those that are there.
func TestCheckCurrent(t *testing.T) {
	locktest.Isolate(t)
	dir := recipeOf(t, "[image]\nenv = { A = \"1\" }\n", locktest.Wheel{Name: "alpha", Version: "1.0"})
	text := read(t, filepath.Join(dir, recipe.FileName))
	s := newSession(t)
	check := func(what, change, to, want string) {
		t.Helper()
		locktest.Write(t, dir, map[string]string{recipe.FileName: strings.Replace(text, change, to, 1)})
		r, err := engine.LoadRecipe(dir, engine.Changes{})
		if err != nil {
			t.Fatal(err)
		}
		err = s.CheckCurrent(t.Context(), r)
		if want == "" && err != nil || want != "" && (fault.CodeOf(err) != fault.CodeProblem || !strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), "--any-image")) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	check("nothing is built", "", "", "")
	for _, unchecked := range []bool{true, false} {
		if _, err := build(t.Context(), s, dir, engine.PlanOptions{NoCheck: unchecked}, engine.BuildOptions{}); err != nil {
			t.Fatal(err)
		}
		check("it is built", "", "", "")
	}
	check("another image is wanted", `A = "1"`, `A = "2"`, "was not built from")
	check("another lock is wanted", "[image]", "[system]\npackages = [\"git\"]\n[image]", "is not what")
	check("as it was", "", "", "")
	nameAnother(t, s)
	check("another image got its name", "", "", "was not built from")

	// Of an image that came from elsewhere nothing is known.
	s = newSession(t)
	nameAnother(t, s)
	check("it was pulled", "", "", "")
}

// nameAnother gives the name of the recipes here to an image of another.
func nameAnother(t *testing.T, s *engine.Session) {
	t.Helper()
	dir := recipeOf(t, "[image]\nenv = { B = \"1\" }\n", locktest.Wheel{Name: "beta", Version: "1.0"})
	locktest.Write(t, dir, map[string]string{recipe.FileName: strings.Replace(read(t, filepath.Join(dir, recipe.FileName)), "name = \"test\"", "name = \"other\"", 1)})
	built, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Name(built.Image, "test:latest"); err != nil {
		t.Fatal(err)
	}
}
