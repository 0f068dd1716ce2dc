package engine_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/squashfs/squashfstest"
)

// command is a package with a command, which says where it runs.
func command(name, version string, requires ...string) locktest.Wheel {
	return locktest.Wheel{Name: name, Version: version, Requires: requires, Files: map[string]string{
		name + "/run.py": "def main():\n    import sys, importlib.util as u\n    print('" + name + "', sys.prefix, bool(u.find_spec('alpha')))\n",
		name + "-" + version + ".dist-info/entry_points.txt": "[console_scripts]\n" + name + "-run = " + name + ".run:main\n",
	}}
}

// ofBase are what the images have that environments stand on.
var ofBase = []locktest.Wheel{
	command("torch", "2.7.0"), {Name: "spaceone", Version: "1.0", Files: map[string]string{"space/one.py": "x = 1\n"}},
}

// venvIndex has what environments on top of images are made of.
func venvIndex(t *testing.T) *locktest.Index {
	t.Helper()
	return locktest.NewIndex(t, append(slices.Clone(ofBase),
		locktest.Wheel{Name: "torch", Version: "2.9.0"},
		locktest.Wheel{Name: "spacetwo", Version: "1.0", Files: map[string]string{"space/two.py": "x = 2\n"}},
		command("alpha", "1.5", "torch>=2"),
		locktest.Wheel{Name: "alpha", Version: "2.0", Requires: []string{"torch>=2.8"}},
	)...)
}

// pythonBase makes an image of this machine's Python in a directory, with the same packages in another below it.
func pythonBase(t *testing.T, s *engine.Session, name, prefix, packages string) *image.Image {
	t.Helper()
	installed := map[string]string{}
	for _, w := range ofBase {
		maps.Copy(installed, w.Unpacked())
	}
	dir := t.TempDir()
	locktest.Write(t, dir, map[string]string{
		"root.tar": string(condatest.RootWithPython(t, prefix, packages, installed)), recipe.FileName: "name = \"" + name + "\"\nversion = \"1\"\n[base]\nimage = \"tar:root.tar\"\n",
	})
	built, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return built.Image
}

// condaBase makes an image of a conda environment with a stand-in of torch, and one of a virtual environment with it.
func condaBase(t *testing.T, s *engine.Session, x *locktest.Index) (conda, virtual *image.Image) {
	t.Helper()
	settings := map[string]string{"uv.toml": "[[index]]\nurl = \"" + x.URL + "\"\ndefault = true\n"}
	server := condaChannel(t)
	packages := "[python]\npackages = [\"torch==2.7.0\", \"spaceone\"]\n"
	python := "[conda]\npackages = [\"python\"]\nchannels = [\"" + server.URL + "\"]\n"
	make := func(text string) *image.Image {
		built, err := build(t.Context(), s, condaRecipe(t, text, settings), engine.PlanOptions{}, engine.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return built.Image
	}
	conda = make(python + packages)
	bare := make(python)
	if _, err := s.Name(conda, "conda:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Name(bare, "bare:1"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	locktest.Write(t, dir, settings)
	locktest.Write(t, dir, map[string]string{recipe.FileName: "name = \"virtual\"\n[base]\nimage = \"bare:1\"\n" + packages})
	built, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Name(built.Image, "virtual:1"); err != nil {
		t.Fatal(err)
	}
	return conda, built.Image
}

// newVenv makes an environment on top of an image of the store, with an index of its own.
func newVenv(t *testing.T, s *engine.Session, x *locktest.Index, on string) string {
	t.Helper()
	subject, err := s.Open(on, engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	dir := filepath.Join(t.TempDir(), "exp")
	if _, err := s.NewVenv(t.Context(), subject, dir, ""); err != nil {
		t.Fatal(err)
	}
	locktest.Write(t, dir, map[string]string{"uv.toml": "[[index]]\nurl = \"" + x.URL + "\"\ndefault = true\n"})
	return dir
}

// runVenv runs a command in an image with an environment on top.
func runVenv(t *testing.T, s *engine.Session, im *image.Image, v *engine.Venv, at string, args ...string) (stdout, stderr string) {
	t.Helper()
	m, err := v.Mount(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := sandbox.Layers(t.Context(), s.Store, im.Layers)
	if err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	code, err := sandbox.Run(t.Context(), sandbox.Options{
		Layers: layers, Mounts: []sandbox.Mount{m}, Args: args, Env: v.Enter(im.Config.Config.Env, at), Stdout: &out, Stderr: &log, NoNetwork: true,
	})
	if err != nil || code != 0 {
		t.Fatalf("%q: %d %v\n%s%s", args, code, err, out.String(), log.String())
	}
	return strings.TrimSpace(out.String()), log.String()
}

// seenIn runs the image's Python with an environment that somebody else has mounted.
func seenIn(t *testing.T, s *engine.Session, im *image.Image, v *engine.Venv, dir string) string {
	t.Helper()
	layers, err := sandbox.Layers(t.Context(), s.Store, im.Layers)
	if err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	code, err := sandbox.Run(t.Context(), sandbox.Options{
		Layers: layers, Binds: []sandbox.Bind{{Source: dir, Target: "/venv", ReadOnly: true}}, Args: []string{"python", "-c", lookAround},
		Env: v.Enter(im.Config.Config.Env, ""), Stdout: &out, Stderr: &log, NoNetwork: true,
	})
	if err != nil || code != 0 {
		t.Errorf("%d %v\n%s", code, err, log.String())
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	return first
}

const lookAround = `import sys, os, torch, alpha, space.one, space.two
from importlib.metadata import distributions
print(sys.prefix, os.path.dirname(torch.__file__).split('/lib/')[0], os.path.dirname(alpha.__file__).split('/lib/')[0], space.one.x + space.two.x)
print(*sorted({d.metadata['Name'] + ' ' + d.version for d in distributions() if d.metadata['Name'] in ('torch', 'alpha', 'spaceone', 'spacetwo')}))`

// An environment on top of a conda environment, of an environment that is one itself, as images of sconce's have it, of a distribution's
// Python, and of one that somebody has compiled: the base's torch stays and is seen, what is added is seen by commands of both, and the
// packed file works in any directory, with its byte code.
func TestVenvOnTop(t *testing.T) {
	locktest.UV(t)
	x := venvIndex(t)
	s := newSession(t)
	conda, virtual := condaBase(t, s, x)
	for _, base := range []struct {
		name, root string
		image      *image.Image
		other      string
	}{
		{"conda:1", "/opt/conda", conda, "virtual:1"},
		{"virtual:1", "/opt/venv", virtual, "conda:1"},
		{"distribution:1", "/usr", pythonBase(t, s, "distribution", "usr", condatest.DebianPackages), "conda:1"},
		{"plain:1", "/usr/local", pythonBase(t, s, "plain", "usr/local", "lib/python"+condatest.PythonMinor(t)+"/site-packages"), "distribution:1"},
	} {
		t.Run(base.name, func(t *testing.T) {
			dir := newVenv(t, s, x, base.name)
			change, err := s.ChangeVenv(t.Context(), dir, engine.VenvRequest{Packages: []string{"alpha", "spacetwo"}})
			if err != nil {
				t.Fatal(err)
			}
			if len(change.Added) != 2 || change.Added[0].Name != "alpha" || change.Added[0].Version != "1.5" {
				t.Errorf("added %v", change.Added)
			}
			v, err := s.OpenVenv(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			look := func(v *engine.Venv, at string) {
				t.Helper()
				place := at
				if place == "" {
					place = "/venv"
				}
				got, log := runVenv(t, s, base.image, v, at, "python", "-v", "-c", lookAround)
				want := place + " " + base.root + " " + place + " 3\nalpha 1.5 spaceone 1.0 spacetwo 1.0 torch 2.7.0"
				if got != want {
					t.Errorf("at %s:\n%s\nwant:\n%s", place, got, want)
				}
				if code := "code object from '" + place + "/lib/python" + condatest.PythonMinor(t) + "/site-packages/alpha/__pycache__/__init__.cpython"; !strings.Contains(log, code) {
					t.Errorf("at %s the byte code of alpha is not used", place)
				}
				for _, command := range []string{"alpha", "torch"} {
					if got, _ := runVenv(t, s, base.image, v, at, command+"-run"); got != command+" "+place+" True" {
						t.Errorf("%s-run at %s: %q", command, place, got)
					}
				}
				if got, _ := runVenv(t, s, base.image, v, at, "sh", "-c", ". "+place+"/bin/activate; echo $VIRTUAL_ENV; python -c 'import sys; print(sys.prefix)'"); place == "/venv" && got != "/venv\n/venv" {
					t.Errorf("activated: %q", got)
				}
			}
			look(v, "")
			file := filepath.Join(t.TempDir(), "exp.sqsh")
			if err := s.PackVenv(t.Context(), v, file, engine.Writing{}); err != nil {
				t.Fatal(err)
			}
			packed, err := s.OpenVenv(t.Context(), file)
			if err != nil {
				t.Fatal(err)
			}
			defer packed.Close()
			look(packed, "")
			look(packed, "/elsewhere/env")
			for _, way := range squashfstest.Ways {
				if at := way.Mount(t, file); at == "" {
					continue
				} else if got := seenIn(t, s, base.image, v, at); got != "/venv "+base.root+" /venv 3" {
					t.Errorf("mounted by %s: %s", way, got)
				}
			}

			// An image that is read where it lies, and the environment with it.
			clustered := filepath.Join(t.TempDir(), "base.sqsh")
			if _, err := s.Copy(t.Context(), open(t, s, base.name), clustered, engine.Writing{}); err != nil {
				t.Fatal(err)
			}
			onFile := open(t, s, clustered)
			if err := packed.Check(t.Context(), onFile, false); err != nil {
				t.Errorf("on a file of its base: %v", err)
			}
			if fuse.Check() == nil {
				root, err := onFile.RootInPlace()
				if err != nil {
					t.Fatal(err)
				}
				m, err := packed.Mount(t.Context(), "/opt/far/away")
				if err != nil {
					t.Fatal(err)
				}
				var out, log bytes.Buffer
				o := root.Options
				o.Mounts, o.Args, o.Env = []sandbox.Mount{m}, []string{"alpha-run"}, packed.Enter(root.Config.Config.Env, "/opt/far/away")
				o.Stdout, o.Stderr = &out, &log
				if code, err := sandbox.Run(t.Context(), o); code != 0 || err != nil || out.String() != "alpha /opt/far/away True\n" {
					t.Errorf("both served: %d %v %q %s", code, err, out.String(), log.String())
				}
			}

			own, other := open(t, s, base.name), open(t, s, base.other)
			if err := packed.Check(t.Context(), own, true); err != nil {
				t.Errorf("on its own base: %v", err)
			}
			if err := packed.Check(t.Context(), other, false); err == nil || !strings.Contains(err.Error(), "is another image") {
				t.Errorf("on another base: %v", err)
			}

			for _, from := range []*engine.Venv{v, packed} {
				merged, err := s.MergeVenv(t.Context(), from, own)
				if err != nil {
					t.Fatal(err)
				}
				if got := runIn(t, s, merged, "torch-run"); got != "torch /venv True" {
					t.Errorf("merged: %q", got)
				}
				wantMergedFile(t, s, merged)
			}
		})
	}
}

// wantMergedFile writes an image with an environment to a file, which has the environment in it, and active in its variables.
func wantMergedFile(t *testing.T, s *engine.Session, merged *image.Image) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "merged.sqsh")
	if err := s.WriteImage(t.Context(), merged, file, "merged:1", engine.Writing{}); err != nil {
		t.Fatal(err)
	}
	c, err := open(t, s, file).ClusterFile()
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil || !slices.Contains(config.Config.Env, "VIRTUAL_ENV=/venv") {
		t.Errorf("variables of the file: %q, %v", config.Config.Env, err)
	}
	if _, err := c.FS.Lookup("venv/bin/alpha-run", false); err != nil {
		t.Errorf("the file: %v", err)
	}
	if err := c.FS.CheckData(t.Context()); err != nil {
		t.Error(err)
	}
}

func open(t *testing.T, s *engine.Session, name string) *engine.Subject {
	t.Helper()
	subject, err := s.Open(name, engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { subject.Close() })
	return subject
}

// What would replace a package of the base is an error, and done when it is asked for; a change that fails leaves what was there.
func TestVenvShadows(t *testing.T) {
	locktest.UV(t)
	x := venvIndex(t)
	s := newSession(t)
	_, virtual := condaBase(t, s, x)
	dir := newVenv(t, s, x, "virtual:1")
	if _, err := s.ChangeVenv(t.Context(), dir, engine.VenvRequest{Packages: []string{"alpha"}}); err != nil {
		t.Fatal(err)
	}
	before := read(t, filepath.Join(dir, "venv.toml"))
	for asked, want := range map[string]string{
		"torch==2.9.0": "the base brings torch 2.7.0, which is protected",
		"alpha==2.0":   "torch",
		"nowhere":      "nowhere",
	} {
		_, err := s.ChangeVenv(t.Context(), dir, engine.VenvRequest{Packages: []string{asked}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", asked, err)
		}
	}
	if after := read(t, filepath.Join(dir, "venv.toml")); after != before {
		t.Errorf("a change that failed left\n%s", after)
	}
	// As after a kill in the middle of a change: its lock is there, and venv.toml names the old one.
	if err := os.CopyFS(filepath.Join(dir, "lock-123"), os.DirFS(t.TempDir())); err != nil {
		t.Fatal(err)
	}
	locktest.Write(t, filepath.Join(dir, "lock-123"), map[string]string{"sconce.lock": "half"})
	v, err := s.OpenVenv(t.Context(), dir)
	if err != nil || len(v.Record.Packages) != 1 {
		t.Fatalf("after a kill: %v", err)
	}
	change, err := s.ChangeVenv(t.Context(), dir, engine.VenvRequest{Packages: []string{"alpha==2.0"}, Shadow: []string{"Torch"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(change.Shadows) != 1 || change.Shadows[0].Own != "2.9.0" || change.Shadows[0].Base != "2.7.0" {
		t.Errorf("shadows: %+v", change.Shadows)
	}
	if v, err = s.OpenVenv(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if got, _ := runVenv(t, s, virtual, v, "", "python", "-c", "from importlib.metadata import version as v; print(v('torch'), v('alpha'), v('spaceone'))"); got != "2.9.0 2.0 1.0" {
		t.Errorf("with the shadow: %q", got)
	}
	left, err := filepath.Glob(filepath.Join(dir, "lock-*"))
	if err != nil || len(left) != 1 {
		t.Errorf("locks left: %q %v", left, err)
	}
}
