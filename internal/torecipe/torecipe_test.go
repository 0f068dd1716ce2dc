package torecipe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/torecipe"
)

// The base of the Containerfiles.
var base = v1.Config{Env: []string{"PATH=/usr/bin", "LANG=C"}, Cmd: []string{"sh"}, Labels: map[string]string{"of": "base"}}

func read(t *testing.T, dir, text string) torecipe.Containerfile {
	t.Helper()
	file := filepath.Join(dir, "Containerfile")
	parsed, err := containerfile.Parse(file, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	config := func(context.Context, string, v1.Platform) (*v1.ConfigFile, error) {
		return &v1.ConfigFile{Config: base}, nil
	}
	b, err := parsed.Evaluate(t.Context(), containerfile.Options{Platform: v1.Platform{OS: "linux", Architecture: "amd64"}}, config)
	if err != nil {
		t.Fatal(err)
	}
	return torecipe.Containerfile{File: file, Context: dir, Build: b, Base: base}
}

// load reads a recipe that was written into dir.
func load(t *testing.T, dir string, text []byte) *recipe.Recipe {
	t.Helper()
	locktest.Write(t, dir, map[string]string{recipe.FileName: string(text)})
	r, err := recipe.Load(dir)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return r
}

// What the base says already is not said again, scripts are run by the shell that the file names, and an unchanged recipe gives the
// same scripts whatever they hold.
func TestFromContainerfile(t *testing.T) {
	dir := t.TempDir()
	locktest.Write(t, dir, map[string]string{"src/a.txt": "a"})
	c := read(t, dir, `FROM debian:12
ENV WORD="a \"b\" $LANG"
USER app
WORKDIR /home/app
COPY src/a.txt src /opt/
SHELL ["/bin/bash", "-c"]
RUN --network=none printf '%s\n' 'it''s "\t"' \
  > /x
RUN ["ldconfig"]
CMD ["run", "x"]
LABEL of=base new="x y"
`)
	text, notes, err := torecipe.FromContainerfile(c, torecipe.Options{Name: "app", Dir: dir})
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	r := load(t, dir, text)
	if r.Base.Image != "debian:12" || len(r.Image.Env) != 1 || r.Image.Env["WORD"] != `a "b" C` || len(r.Image.Labels) != 1 || r.Image.User != "app" {
		t.Errorf("base and image:\n%s", text)
	}
	if len(r.Steps) != 4 {
		t.Fatalf("%d steps:\n%s", len(r.Steps), text)
	}
	if !strings.Contains(r.Steps[0].Run, "chown 'app:' '/home/app'") {
		t.Errorf("the directory of a user: %q", r.Steps[0].Run)
	}
	if got := strings.Join(r.Steps[1].Copy, " "); got != "src/a.txt:/opt/ src:/opt/" {
		t.Errorf("copies %q", got)
	}
	for i, op := range c.Build.Stages[0].Ops {
		if op.Run == nil {
			continue
		}
		s := r.Steps[map[string]int{"p": 2, "l": 3}[op.Run.Args[len(op.Run.Args)-1][:1]]]
		if got := s.Args(); len(op.Run.Args) > 1 && strings.Join(got, "\x00") != strings.Join(op.Run.Args, "\x00") {
			t.Errorf("op %d runs %q, and the step %q", i, op.Run.Args, got)
		}
		if s.HasNetwork() == op.Run.NoNetwork || s.User != "app" || s.Workdir != "/home/app" || s.Env["WORD"] != `a "b" C` || s.Env["LANG"] != "" {
			t.Errorf("op %d: %+v", i, s)
		}
	}
}

// What a recipe cannot say is refused, each thing at its line.
func TestContainerfileRefused(t *testing.T) {
	for text, want := range map[string]string{
		"FROM debian:12 AS a\nFROM debian:12\nCOPY --from=a /x /x\n":     ":1: a recipe has one stage, and this needs 2",
		"FROM debian:12\nCOPY --from=alpine /x /x\n":                     ":2: COPY --from=alpine: the files are not from the build context",
		"FROM debian:12 AS a\nRUN x\nFROM a\nRUN y\n":                    "this needs 2",
		"FROM scratch\nLABEL a=b\n":                                      ":1: a recipe is based on an image",
		"FROM debian:12\nADD https://example.org/x /x\n":                 ":2: ADD of an address",
		"FROM debian:12\nADD x.tar.gz /x\n":                              ":2: ADD of an archive",
		"FROM debian:12\nCOPY --chmod=700 x /x\n":                        ":2: COPY --chmod=700",
		"FROM debian:12\nRUN x\nCOPY <<EOF /x\ntext\nEOF\n":              ":3: COPY <<EOF of text",
		"FROM debian:12\nRUN --mount=type=cache,target=/c x\n":           ":2: RUN --mount",
		"FROM debian:12\nEXPOSE 80\nSTOPSIGNAL 9\n":                      ":3: STOPSIGNAL: a recipe has no key for it",
		"FROM debian:12\nHEALTHCHECK CMD x\n":                            ":2: HEALTHCHECK",
		"FROM debian:12\nONBUILD RUN x\n":                                ":2: ONBUILD",
		"FROM debian:12\nRUN <<EOF\n#!/usr/bin/python3\nprint(1)\nEOF\n": ":2: RUN with a script that names its own interpreter",
		"FROM debian:12\nRUN [\"a b\"]\n":                                ":2: RUN [\"a b\"]",
	} {
		dir := t.TempDir()
		_, _, err := torecipe.FromContainerfile(read(t, dir, text), torecipe.Options{Name: "x", Dir: dir})
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A directory that is copied as a whole has the recipe in it.
func TestContainerfileCopiesRecipe(t *testing.T) {
	dir := t.TempDir()
	_, notes, err := torecipe.FromContainerfile(read(t, dir, "FROM debian:12\nCOPY . /app\n"), torecipe.Options{Name: "x", Dir: dir})
	if err != nil || len(notes) != 1 {
		t.Errorf("%q, %v", notes, err)
	}
}

// What was written is locked to what the files ask for, also from another directory.
func TestFromPythonLocks(t *testing.T) {
	locktest.UV(t)
	locktest.Isolate(t)
	x := locktest.NewIndex(t, locktest.Wheel{Name: "alpha", Version: "1.0"}, locktest.Wheel{Name: "alpha", Version: "2.0"}, locktest.Wheel{Name: "beta", Version: "3.0"})
	t.Setenv("UV_DEFAULT_INDEX", x.URL)
	top := locktest.Dir(t, locktest.Base{}, map[string]string{
		"requirements.txt": "alpha<2\n", "more.txt": "beta\n",
		"project/pyproject.toml": "[project]\nname = \"p\"\nversion = \"1\"\nrequires-python = \">=3.9\"\ndependencies = [\"alpha\"]\n",
	})
	st := storetest.New(t)
	o := torecipe.Options{Name: "x", Base: "tar:" + filepath.Join(top, "base.tar")}
	for want, write := range map[string]func() ([]byte, error){
		"alpha 1.0 beta 3.0": func() ([]byte, error) {
			return torecipe.FromRequirements([]string{filepath.Join(top, "requirements.txt"), filepath.Join(top, "more.txt")}, o)
		},
		"alpha 2.0": func() ([]byte, error) { return torecipe.FromProject(filepath.Join(top, "project/pyproject.toml"), o) },
	} {
		t.Setenv(reach.Variable, top)
		o.Dir = filepath.Join(top, strings.ReplaceAll(want, " ", "-"))
		text, err := write()
		if err != nil {
			t.Fatal(err)
		}
		r := load(t, o.Dir, append(text, "\n[target]\nplatform = \"linux/amd64\"\n"...))
		f, err := lock.Update(t.Context(), r, lock.Options{Store: st, Fetch: fetch.New(st, fetch.Options{})})
		if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		l, err := f.Locked(r)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range l.Wheels {
			got = append(got, w.Name+" "+w.Version)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("locked %q, want %q", got, want)
		}
	}
}

// What cannot be carried over is refused, with its line.
func TestPythonRefused(t *testing.T) {
	dir := t.TempDir()
	o := torecipe.Options{Name: "x", Dir: dir}
	project := func(file string) error { _, err := torecipe.FromProject(file, o); return err }
	requirements := func(file string) error { _, err := torecipe.FromRequirements([]string{file}, o); return err }
	for _, c := range []struct {
		file, text string
		write      func(string) error
		want       string
	}{
		{"requirements.txt", "numpy\n# --prefer-binary\nx --global-option=y\n", requirements, ":3: --global-option has no place"},
		{"pyproject.toml", "[build-system]\n\n[tool.poetry]\nname = \"x\"\n", project, ":3: the dependencies are in [tool.poetry]"},
		{"pyproject.toml", "[project]\n", project, ":1: there is no [project] with a name"},
		{"pyproject.toml", "[project]\nname = \"x\"\nrequires-python = \"<3\"\n", project, ":3: no distribution that sconce makes a base of has a Python <3"},
		{"pyproject.toml", "[project]\nname = \"x\"\nrequires-python = \"three\"\n", project, ":3: "},
		{"pyproject.toml", "[project\n", project, ":1:"},
	} {
		file := filepath.Join(dir, c.file)
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := c.write(file); err == nil || !strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	if err := requirements(filepath.Join(dir, "absent.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// The base has a Python that the project takes.
func TestBaseFits(t *testing.T) {
	dir := t.TempDir()
	for requires, suite := range map[string]string{">=3.10": "bookworm", ">=3.13": "trixie", "==3.12.*": "noble", "<3.11": "jammy"} {
		file := filepath.Join(dir, "pyproject.toml")
		if err := os.WriteFile(file, []byte("[project]\nname = \"x\"\nrequires-python = \""+requires+"\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		text, err := torecipe.FromProject(file, torecipe.Options{Name: "x", Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if r := load(t, dir, text); r.Base.Bootstrap == nil || r.Base.Bootstrap.Suite != suite {
			t.Errorf("%s: %+v", requires, r.Base.Bootstrap)
		}
	}
}

// The files of the examples make a recipe, which names them from where it lies.
func TestFromEnvironments(t *testing.T) {
	dir, err := filepath.Abs("../../examples/cotainr")
	if err != nil {
		t.Fatal(err)
	}
	text, err := torecipe.FromEnvironments([]string{filepath.Join(dir, "conda_envs/pytorch_success.yml"), filepath.Join(dir, "conda_envs/extensions.yml")}, torecipe.Options{Name: "x", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if want := "environment = ['conda_envs/pytorch_success.yml', 'conda_envs/extensions.yml']\nchannel-priority = 'flexible'\n"; !strings.Contains(string(text), want) {
		t.Errorf("no %q in:\n%s", want, text)
	}
	if err := recipe.Validate(text, recipe.FileName, dir); err != nil {
		t.Error(err)
	}
}
