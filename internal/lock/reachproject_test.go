package lock

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/recipe"
)

const plainProject = "[project]\nname = \"app\"\nversion = \"1\"\n"

// TestReachOfProject: nor does a project, which uv would read before the lock that comes of it is refused.
func TestReachOfProject(t *testing.T) {
	own, private := place(t)
	for _, text := range []string{
		"dependencies = ['x @ file://ABS/x.whl']", "dependencies = ['y', \"x[all] @ git+file://ABS@main ; python_version > '3'\"]",
		"[project.optional-dependencies]\nall = ['x @ file://ABS']", "[dependency-groups]\ndev = [{ include-group = 'x' }, 'x @ file://ABS']",
		"[tool.uv.sources]\nx = { path = 'AT' }", "[tool.uv.sources]\nx = [{ index = 'y' }, { path = 'AT/x.whl', marker = \"sys_platform == 'linux'\" }]",
		"[tool.uv.sources.x]\ngit = 'file://ABS'", "[tool.uv.sources]\nx = { git = 'ABS', subdirectory = 'y' }", "[tool.uv]\nsources = { x = { url = 'file://ABS/x.whl' } }",
		"[[tool.uv.index]]\nname = 'y'\nurl = 'AT'", "[[tool.uv.index]]\nname = 'y'\nexplicit = true\nurl = 'file://ABS'",
		"[tool.uv]\nconstraint-dependencies = ['x @ file://ABS']", "[tool.uv]\noverride-dependencies = ['x @ file://ABS']", "[tool.uv]\ndev-dependencies = ['x @ file://ABS']",
		"[tool.uv.workspace]\nmembers = ['AT']", "[tool.uv.workspace]\nmembers = ['AT/*']", "[build-system]\nrequires = ['x @ file://ABS']",
	} {
		at := filepath.Join(own, projectFile)
		checkReach(t, own, private, text, func(r *recipe.Recipe, text string) error {
			write(t, at, plainProject+text+"\n")
			r.Python.Project = "."
			return withoutUV(t, r)
		})
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		for name, python := range map[string]recipe.Python{ // what leads to others leads to their settings
			"a package": {Packages: []string{"app @ ./inside"}}, "a requirement": {Requirements: []string{"r.txt"}}, "a source": {Project: "."}, "a member": {Project: "."},
		} {
			write(t, filepath.Join(own, "r.txt"), "-e ./inside\n")
			write(t, at, plainProject+map[string]string{"a source": "[tool.uv.sources]\nx = { path = 'inside' }\n", "a member": "[tool.uv.workspace]\nmembers = ['in*']\n"}[name])
			write(t, filepath.Join(own, "inside", projectFile), plainProject+strings.ReplaceAll(strings.ReplaceAll(text, "AT", "../../private"), "ABS", private))
			r := reachRecipe(own)
			r.Python = python
			if err := withoutUV(t, r); err == nil || !strings.Contains(err.Error(), "inside/pyproject.toml:") || !strings.Contains(err.Error(), "outside of the recipe's directory") {
				t.Errorf("%q of %s: %v", text, name, err)
			}
		}
		if err := os.Remove(filepath.Join(own, "inside", projectFile)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReachOfSettings: nor do uv's settings beside a recipe.
func TestReachOfSettings(t *testing.T) {
	own, private := place(t)
	t.Setenv("HOME", private)
	for _, text := range []string{
		"find-links = ['AT']", "find-links = ['file://ABS']", "index-url = 'AT'", "extra-index-url = ['https://x.example.org', 'AT']", "[[index]]\nurl = 'file://ABS'", "[pip]\nfind-links = ['AT']",
		"constraint-dependencies = ['y', 'x @ file://ABS']", "override-dependencies = ['x @ git+file://ABS@main']", "build-constraint-dependencies = ['x @ file://ABS/x.whl']",
		"[[dependency-metadata]]\nname = 'y'\nrequires-dist = ['x @ file://ABS']",
	} {
		checkReach(t, own, private, text, func(r *recipe.Recipe, text string) error {
			write(t, filepath.Join(own, uvConfig), text+"\n")
			r.Python.Packages = []string{"y"}
			return withoutUV(t, r)
		})
	}
	write(t, filepath.Join(own, uvConfig), "override-dependencies = ['x @ file://${HOME}/x.whl']\n")
	r := reachRecipe(own)
	r.Python.Packages = []string{"y"}
	if err := withoutUV(t, r); err == nil || !strings.Contains(err.Error(), "uv.toml:1: override-dependencies: ") {
		t.Errorf("by a variable: %v", err)
	}
}

// TestReachOfWorkspace: a workspace above a project is outside unless the recipe's bounds have it.
func TestReachOfWorkspace(t *testing.T) {
	own, _ := place(t)
	write(t, filepath.Join(own, "..", projectFile), plainProject+"[tool.uv.workspace]\nmembers = ['*']\n")
	write(t, filepath.Join(own, projectFile), plainProject+"[tool.uv.sources]\nx = { workspace = true }\n")
	r := reachRecipe(own)
	r.Python.Project = "."
	if err := withoutUV(t, r); err == nil || !strings.Contains(err.Error(), "outside of the recipe's directory") {
		t.Errorf("a workspace above: %v", err)
	}
	write(t, filepath.Join(own, projectFile), plainProject+"[tool.uv.sources]\nx = { workspace = true }\n[tool.uv.workspace]\nmembers = ['inside']\n")
	if err := withoutUV(t, r); err != nil && strings.Contains(err.Error(), "outside") {
		t.Errorf("its own workspace: %v", err)
	}
}

// withoutUV checks a recipe as it is checked before anything is made, where uv is a program that must not run.
func withoutUV(t *testing.T, r *recipe.Recipe) error {
	t.Helper()
	bin := t.TempDir()
	mark := filepath.Join(bin, "ran")
	if err := os.WriteFile(filepath.Join(bin, "uv"), []byte("#!/bin/sh\necho uv 0.13.8\ntouch "+mark+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	err := Options{}.check(context.Background(), r)
	if _, ran := os.Stat(mark); err != nil && ran == nil {
		t.Error("uv has run")
	}
	return err
}
