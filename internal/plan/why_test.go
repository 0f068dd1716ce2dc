package plan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/slim"
)

// steps gives the subject a copied directory, a patch and two commands, as files of dir.
func (s *subject) withSteps(t *testing.T, dir string) {
	t.Helper()
	for name, text := range map[string]string{"src/a.txt": "a", "src/b.txt": "b", "fix.patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.recipe.Dir, s.recipe.Path = dir, filepath.Join(dir, recipe.FileName)
	s.recipe.Steps = []recipe.Step{
		{Name: "sources", Copy: []string{"src:/opt/src"}, Line: 10},
		{Patch: []string{"fix.patch:/opt/src"}, Line: 12},
		{Run: "make", Env: map[string]string{"CC": "gcc"}, Mounts: []string{"cache:ccache", "secret:token"}, Line: 14},
		{Run: "make install", Line: 20},
	}
}

func (s *subject) record(t *testing.T) *Record {
	t.Helper()
	open := make(map[string]*fileop.Context)
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	p, err := New(t.Context(), s.recipe, s.lock, s.wheels, Options{
		RunsHere: s.runsHere, Slim: s.slim, Unchecked: s.unchecked, GPU: s.recipe.Target.GPU,
		Open: func(dir string) (c *fileop.Context, err error) {
			if open[dir] == nil {
				open[dir], err = fileop.OpenContext(dir, "")
			}
			return open[dir], err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p.Record()
}

// TestWhy: what has changed is named, at the step where it first shows, and what changes nothing is not.
func TestWhy(t *testing.T) {
	write := func(name, text string) func(*testing.T, *subject) {
		return func(t *testing.T, s *subject) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(s.recipe.Dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	plain := func(change func(*subject)) func(*testing.T, *subject) {
		return func(_ *testing.T, s *subject) { change(s) }
	}
	for name, test := range map[string]struct {
		change func(*testing.T, *subject)
		step   string // the first that differs; "" is none
		want   string // what its causes begin with
	}{
		"nothing":           {plain(func(*subject) {}), "", ""},
		"a step's name":     {plain(func(s *subject) { s.recipe.Steps[0].Name = "files" }), "", ""},
		"a path's spelling": {plain(func(s *subject) { s.recipe.Steps[0].Copy[0] = "./src/:/opt/src" }), "", ""},
		"the line it is on": {plain(func(s *subject) { s.recipe.Steps[2].Line = 99 }), "", ""},
		"a wheel's address": {plain(func(s *subject) { s.wheels[1].URL = "https://mirror.example.org/x.whl" }), "", ""},
		"a package": {plain(func(s *subject) {
			s.wheels[0].File = "package_0-2.0-py3-none-any.whl"
			s.wheels[0].Digest = digest("2.0")
		}), "package-0", "wheel package-0: package_0-1.0-py3-none-any.whl → package_0-2.0-py3-none-any.whl"},
		"a wheel's hash":     {plain(func(s *subject) { s.wheels[0].Digest = digest("again") }), "package-0", "wheel package-0: changed"},
		"a copied file":      {write("src/b.txt", "other"), "copy src:/opt/src", "file src/b.txt: changed"},
		"a file more":        {write("src/c.txt", "more"), "copy src:/opt/src", "file src/c.txt: added"},
		"a patch":            {write("fix.patch", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+c\n"), "patch fix.patch:/opt/src", "patch: changed"},
		"a command":          {plain(func(s *subject) { s.recipe.Steps[3].Run = "make check" }), "run make check", "command: /bin/sh -ec make install → /bin/sh -ec make check"},
		"a step's variable":  {plain(func(s *subject) { s.recipe.Steps[2].Env = map[string]string{"CC": "clang"} }), "run make", "variable CC: gcc → clang"},
		"the base":           {plain(func(s *subject) { s.lock.Base.Digest = digest("other") }), "base tar:", "base: changed"},
		"the target's GPU":   {plain(func(s *subject) { s.recipe.Target.GPU = []string{"9.0"} }), "run make", "variable TORCH_CUDA_ARCH_LIST: added: 9.0"},
		"Python":             {plain(func(s *subject) { s.lock.Python.Version = "3.11.9" }), "package-0", "python: 3.11.2 → 3.11.9"},
		"image's variable":   {plain(func(s *subject) { s.recipe.Image.Env["A"] = "9" }), "image demo:1", "variable A: 1 → 9"},
		"slimming":           {plain(func(s *subject) { s.slim = &slim.Options{GPUs: []int{90}} }), "image demo:1", "slim: "},
		"a step more":        {plain(func(s *subject) { s.recipe.Steps = append(s.recipe.Steps, recipe.Step{Run: "true", Line: 30}) }), "run true", "the step is new"},
		"a step less":        {plain(func(s *subject) { s.recipe.Steps = s.recipe.Steps[:3] }), "image demo:1", "history: changed"},
		"a mount more":       {plain(func(s *subject) { s.recipe.Steps[3].Mounts = []string{"tmpfs:/scratch"} }), "run make install", "tmpfs mount /scratch: added"},
		"where it is pushed": {plain(func(s *subject) { s.recipe.Publish.Repository = "registry.example.org/x" }), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubject(2)
			s.withSteps(t, t.TempDir())
			before := s.record(t)
			test.change(t, s)
			now := s.record(t)
			differences := Compare(before, now)
			if test.step == "" {
				if len(differences) > 0 {
					t.Errorf("differs: %v", differences)
				}
				return
			}
			for i, step := range now.Steps {
				if d, ok := differences[i]; ok {
					if !strings.HasPrefix(step.Title, test.step) || !strings.HasPrefix(d.Causes[0], test.want) {
						t.Errorf("%s: %q", step.Title, d.Causes)
					}
					return
				}
			}
			t.Error("no step differs")
		})
	}
}

// A build argument is named where a line took it: in a label, in what is copied, in a command, which has it as a variable, too. One that
// no line took changes nothing.
func TestWhyBuildArgument(t *testing.T) {
	const value = "build argument VALUE: 1 → 2"
	for name, c := range map[string]struct {
		text string
		want map[string][]string
	}{
		"a label":        {"FROM a\nARG VALUE=1\nLABEL value=$VALUE\n", map[string][]string{"image made:1": {value, "configuration: changed"}}},
		"of a base":      {"FROM a AS b\nARG VALUE=1\nENV A=$VALUE\nFROM b\n", map[string][]string{"image made:1": {value, "configuration: changed"}}},
		"before FROM":    {"ARG VALUE=1\nFROM a\nARG VALUE\nUSER $VALUE\n", map[string][]string{"image made:1": {value, "configuration: changed"}}},
		"another's line": {"FROM a\nARG VALUE=1\nARG OTHER=1\nLABEL value=$OTHER\n", map[string][]string{}},
		"a directory": {"FROM a\nARG VALUE=1\nWORKDIR /$VALUE\n", map[string][]string{
			"WORKDIR /$VALUE": {value, "directory: /1 → /2"}, "image made:1": {value, "configuration: changed"},
		}},
		"a command": {"FROM a\nARG VALUE=1\nARG OTHER=1\nRUN make\n", map[string][]string{
			"RUN make": {value}, "image made:1": {"it is based on: RUN make"},
		}},
		"a file's text": {"FROM a\nARG VALUE=1\nCOPY <<end /f\n$VALUE\nend\n", map[string][]string{
			"COPY <<end /f": {value, "files: changed", "file end: changed"}, "image made:1": {"it is based on: COPY <<end /f"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			record := func(args map[string]string) *Record {
				p, err := planWithArguments(t, c.text, args, 1, ContainerfileOptions{Name: "made:1"})
				if err != nil {
					t.Fatal(err)
				}
				return p.Record()
			}
			now := record(map[string]string{"VALUE": "2"})
			got := make(map[string][]string)
			for i, d := range Compare(record(nil), now) {
				got[now.Steps[i].Title] = d.Causes
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Steps that stand on what changed say so, and nothing else.
func TestWhyUpstream(t *testing.T) {
	s := newSubject(1)
	s.withSteps(t, t.TempDir())
	before := s.record(t)
	s.recipe.Steps[2].Env = map[string]string{"CC": "clang"}
	now := s.record(t)
	got := make(map[string][]string)
	for i, d := range Compare(before, now) {
		got[now.Steps[i].Title] = d.Causes
	}
	want := map[string][]string{
		"run make":         {"variable CC: gcc → clang"},
		"run make install": {"it is based on: run make"},
		"image demo:1":     {"it is based on: run make install"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if Compare(nil, now) != nil {
		t.Error("something differs from no plan at all")
	}
}

// A record lists every step once, each after what it is based on.
func TestRecordOrder(t *testing.T) {
	s := newSubject(3)
	s.withSteps(t, t.TempDir())
	var seen []Key
	for _, step := range s.record(t).Steps {
		if slices.Contains(seen, step.Key) {
			t.Errorf("%s is there twice", step.Title)
		}
		seen = append(seen, step.Key)
	}
	if len(seen) < 8 {
		t.Errorf("%d steps", len(seen))
	}
}
