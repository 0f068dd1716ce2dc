package conda_test

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// laid is an environment as layers.
type laid struct {
	conda.Environment
	store *store.Store
	top   layer.Descriptor
	told  *warnings // while it was made
}

// warnings are what was warned of, each with its hint.
type warnings struct {
	mu  sync.Mutex
	all []string
}

// Emit implements [progress.Sink].
func (w *warnings) Emit(e progress.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind == progress.Warning {
		w.all = append(w.all, e.Text+" ("+e.Hint+")")
	}
}

// lay makes the layers of the packages of a channel, one for each of the groups, which are by name, and the environment's.
func lay(t testing.TB, c *condatest.Channel, e conda.Environment, compiler conda.Compiler, groups ...[]string) laid {
	t.Helper()
	st := storetest.New(t)
	e.Packages = put(t, st, c, "https://conda.anaconda.org/conda-forge")
	if e.Target.Prefix == "" {
		e.Target = conda.Target{Prefix: prefix, Python: conda.PythonOf(e.Packages)}
	}
	for _, names := range groups {
		g := conda.Group{Name: strings.Join(names, " ")}
		for _, p := range e.Packages {
			if slices.Contains(names, p.Name) {
				g.Packages = append(g.Packages, p)
			}
		}
		d, m, err := conda.BuildLayer(t.Context(), st, g, e.Target, compiler, layer.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		e.Layers, e.Manifests = append(e.Layers, d), append(e.Manifests, m)
	}
	told := &warnings{}
	top, err := conda.BuildEnvironment(progress.With(t.Context(), told), st, e, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return laid{e, st, top, told}
}

// files lays the layers over each other.
func (l laid) files(t testing.TB) map[string]object {
	t.Helper()
	all := map[string]object{}
	for _, d := range append(slices.Clone(l.Layers), l.top) {
		for at, o := range layerFiles(t, l.store, d) {
			dir, name := path.Split(at)
			if gone, ok := strings.CutPrefix(name, layer.WhiteoutPrefix); ok {
				at = dir + gone
			}
			maps.DeleteFunc(all, func(p string, _ object) bool {
				return strings.HasPrefix(p, at+"/") || strings.HasPrefix(at, p+"/")
			})
			if all[at] = o; at != dir+name {
				delete(all, at)
			}
		}
	}
	return all
}

func pkg(name string, files map[string]condatest.File, depends ...string) condatest.Package {
	return condatest.Package{Name: name, Version: "1", Files: files, Depends: depends}
}

// What is linked later stays, in whatever order the layers lie; links of directories are followed, as they are when conda writes a
// file.
func TestClobbering(t *testing.T) {
	text := func(s string) condatest.File { return condatest.File{Data: s} }
	c := condatest.NewChannel(t,
		pkg("z-first", map[string]condatest.File{
			"x": text("first"), "same": text("same"), "lib64": {Link: "lib"}, "lib/own": text("own"), "abs": {Link: condatest.Placeholder[:0] + prefix + "/lib"},
			"mode": text("mode"), "twice": text("first"), "lib/sub/z": text("z"), "hop": {Link: "lib/sub"}, "over": {Link: "hop/../sub"},
		}),
		pkg("a-last", map[string]condatest.File{
			"x": text("last"), "same": text("same"), "lib64/libx.so": text("through a link"), "abs/y": text("through another"), "mode": {Data: "mode", Mode: 0o755},
			"twice": text("last"), "over/y": text("beside where the first link leads"),
		}, "z-first"),
		pkg("m-middle", map[string]condatest.File{"own/d": text("d"), "twice": text("middle")}, "z-first"),
	)
	want := map[string]object{
		"x": "last", "same": "same", "lib64": "link lib", "lib/own": "own", "abs": "link " + prefix + "/lib",
		"lib/libx.so": "through a link", "lib/y": "through another", "own/d": "d", "mode": "mode", "twice": "middle",
		"lib/sub/z": "z", "hop": "link lib/sub", "over": "link hop/../sub", "lib/sub/y": "beside where the first link leads",
	}
	for name, groups := range map[string][][]string{
		"a layer each":              {{"z-first"}, {"a-last"}, {"m-middle"}},
		"the other way round":       {{"m-middle"}, {"a-last"}, {"z-first"}},
		"in one layer":              {{"a-last", "m-middle", "z-first"}},
		"two in one, above":         {{"m-middle"}, {"a-last", "z-first"}},
		"the first and the last in": {{"a-last", "z-first"}, {"m-middle"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := lay(t, c, conda.Environment{}, nil, groups...)
			got := l.files(t)
			for at := range got {
				if strings.HasPrefix(at, "conda-meta/") || at == "bin/activate" || at == "etc/profile.d/conda.sh" {
					delete(got, at)
				}
			}
			for at, o := range got {
				_, data, ok := strings.Cut(string(o), "\"")
				if ok {
					got[at] = object(strings.TrimSuffix(data, "\""))
				}
			}
			compare(t, got, want)
			clobbers := conda.Clobbers(l.Packages, l.Manifests, prefix)
			if !slices.Contains(clobbers, conda.Clobber{Path: "x", Winner: "a-last 1", Loser: "z-first 1"}) {
				t.Errorf("got %+v", clobbers)
			}
			told := strings.Join(l.told.all, "\n")
			for _, want := range []string{
				"conda: a-last 1 and z-first 1 both have ", "; that of a-last 1 is taken, as conda does",
				"conda: m-middle 1 and a-last 1 both have twice, and not the same; that of m-middle 1 is taken, as conda does (leave one of the packages out",
			} {
				if !strings.Contains(told, want) {
					t.Errorf("not told: %s\n%s", want, told)
				}
			}
			if strings.Contains(told, "both have same") {
				t.Errorf("told of what is the same:\n%s", told)
			}
		})
	}
}

// Links that lead in a circle, grow with each step, or lead to where no package may write, are laid down as they are. What another
// package has below them has no place, and is told.
func TestLoopsOfLinks(t *testing.T) {
	links := map[string]string{
		"self": "self", "there": "back", "back": "there/.", "grows": "grows/" + strings.Repeat("x", 200), "above": "..",
		"gone": ".wh.lib", "meta": "conda-meta", "deep": strings.Repeat("d/", 2000),
	}
	first := map[string]condatest.File{"lib/own": {Data: "own"}}
	last := map[string]condatest.File{"lib/last": {Data: "last"}}
	want := map[string]object{"lib/own": regular(0o644, []byte("own")), "lib/last": regular(0o644, []byte("last"))}
	for name, to := range links {
		first[name], last[name+"/x.json"] = condatest.File{Link: to}, condatest.File{Data: name}
		want[name] = object("link " + to)
	}
	c := condatest.NewChannel(t, pkg("first", first), pkg("last", last, "first"))
	for name, groups := range map[string][][]string{"a layer each": {{"first"}, {"last"}}, "upside down": {{"last"}, {"first"}}, "in one layer": {{"first", "last"}}} {
		t.Run(name, func(t *testing.T) {
			l := lay(t, c, conda.Environment{}, nil, groups...)
			got := l.files(t)
			maps.DeleteFunc(got, func(at string, _ object) bool {
				return strings.HasPrefix(at, "conda-meta/first-") || strings.HasPrefix(at, "conda-meta/last-") || at == "conda-meta/history" || at == "bin/activate" || at == "etc/profile.d/conda.sh"
			})
			compare(t, got, want)
			if told := len(conda.Clobbers(l.Packages, l.Manifests, prefix)); told != len(links) {
				t.Errorf("of %d files without a place, %d are told", len(links), told)
			}
		})
	}
}

func TestEnvironmentFiles(t *testing.T) {
	c := condatest.NewChannel(t, pkg("a", map[string]condatest.File{
		"etc/conda/env_vars.d/a.json": {Data: `{"FROM_A": "it's", "BOTH": "a"}`},
	}))
	l := lay(t, c, conda.Environment{
		Variables: map[string]string{"BOTH": "state", "Z": "1"}, Specs: []string{"a >=1", "b"}, Command: "sconce\nbuild", Time: time.Unix(1704067200, 0),
	}, nil, []string{"a"})
	files := layerFiles(t, l.store, l.top)
	for at, want := range map[string]string{
		"conda-meta/history":     "==> 2024-01-01 00:00:00 <==\n# cmd: sconce build\n+conda-forge/linux-64::a-1-0\n# update specs: [\"a >=1\",\"b\"]\n",
		"conda-meta/state":       "{\n  \"env_vars\": {\n    \"BOTH\": \"state\",\n    \"Z\": \"1\"\n  }\n}\n",
		"etc/conda/variables.sh": "export BOTH='state'\nexport FROM_A='it'\\''s'\nexport Z='1'\n",
	} {
		if got := files[at]; got != regular(0o644, []byte(want)) {
			t.Errorf("%s: got %s, want %q", at, got, want)
		}
	}
}

// rattler reads the records of an environment as those of any other, byte code and commands included.
func TestRattlerReadsRecords(t *testing.T) {
	python := condatest.LeanPython(t)
	pure := condatest.Package{Name: "pure", Version: "1", Noarch: "python", Depends: []string{"python"}, EntryPoints: []string{"p = pure:f"}, License: "MIT", Files: map[string]condatest.File{
		"site-packages/pure.py": {Data: "def f(): pass\n"},
	}}
	native := pkg("native", map[string]condatest.File{"lib/a": {Data: condatest.Placeholder}, "lib/b": {Link: "a"}, "share/empty": {Dir: true}})
	root := shortDir(t)
	target := conda.Target{Prefix: root, Python: conda.Python{Version: python.Version, SitePackages: "lib/python" + condatest.PythonMinor(t) + "/site-packages"}}
	l := lay(t, condatest.NewChannel(t, python, pure, native), conda.Environment{Target: target}, &thisPython{t: t}, []string{"python"}, []string{"native", "pure"})
	for _, d := range append(slices.Clone(l.Layers), l.top) {
		unpack(t, l.store, d)
	}
	out := condatest.Python(t, []string{condatest.Rattler}, `
import glob, os, sys
from rattler import PrefixRecord
for path in sorted(glob.glob(sys.argv[1] + "/conda-meta/*.json")):
    r = PrefixRecord.from_path(path)
    lacking = [f for f in r.files if not os.path.lexists(os.path.join(sys.argv[1], f))]
    print(r.name.normalized, r.version, r.build, r.channel, r.subdir, len(r.files) > 0, lacking, len(r.paths_data.paths) >= len(r.files), r.sha256 is not None)
sys.stdout.flush()
os._exit(0)
`, root)
	const channel = "https://conda.anaconda.org/conda-forge"
	want := "native 1 0 " + channel + " linux-64 True [] True True\n" +
		"pure 1 py_0 " + channel + " noarch True [] True True\n" +
		"python " + python.Version + " 0_cpython " + channel + " " + condatest.Subdir() + " True [] True True\n"
	if out != want {
		t.Errorf("got  %s\nwant %s", out, want)
	}
}

// A package that brings conda has its own scripts.
func TestScriptsOfPackagesStay(t *testing.T) {
	c := condatest.NewChannel(t, pkg("conda", map[string]condatest.File{"bin/activate": {Data: "own"}, "etc/profile.d/conda.sh": {Data: "own"}}))
	l := lay(t, c, conda.Environment{}, nil, []string{"conda"})
	files := layerFiles(t, l.store, l.top)
	if _, ok := files["bin/activate"]; ok || len(files) != 1 {
		t.Errorf("got %v", files)
	}
}

// The scripts of the image do what conda's do, in each shell that people use.
func TestActivateInShells(t *testing.T) {
	dir := t.TempDir()
	if len(dir) > 79-len("/envs/two") { // a prefix is short
		var err error
		if dir, err = os.MkdirTemp("", "c"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	c := condatest.NewChannel(t, pkg("a", map[string]condatest.File{
		"etc/conda/activate.d/b.sh":   {Data: "order=$order:b:$CONDA_PREFIX\n"},
		"etc/conda/activate.d/B.sh":   {Data: "order=B\n"},
		"etc/conda/deactivate.d/b.sh": {Data: "left=yes\n"},
	}))
	for _, root := range []string{dir, dir + "/envs/two"} {
		l := lay(t, c, conda.Environment{Target: conda.Target{Prefix: root}, Root: dir, Variables: map[string]string{"VAR": "a 'b'\nc"}}, nil, []string{"a"})
		for _, d := range append(slices.Clone(l.Layers), l.top) {
			unpack(t, l.store, d)
		}
	}
	script := `set -eu
PATH=/usr/bin:/bin; PS1='$ '; unset CONDA_PREFIX CONDA_SHLVL
. DIR/etc/profile.d/conda.sh
conda activate
echo "$CONDA_PREFIX $CONDA_SHLVL $CONDA_DEFAULT_ENV $PATH $order $PS1$VAR"
conda activate two
echo "$CONDA_PREFIX $CONDA_SHLVL $CONDA_DEFAULT_ENV $PATH $CONDA_PREFIX_1 $PS1"
conda activate DIR/envs/two/
echo "$CONDA_SHLVL"
conda deactivate
echo "$CONDA_PREFIX $CONDA_SHLVL $PATH"
conda deactivate
echo "${CONDA_PREFIX-none} $CONDA_SHLVL $PATH ${VAR-none} $left $PS1"
conda activate nowhere 2>/dev/null || echo no
conda list 2>&1 || echo $?
. DIR/bin/activate
echo "$CONDA_PREFIX"
`
	want := `DIR 1 base DIR/bin:/usr/bin:/bin B:b:DIR (base) $ a 'b'
c
DIR/envs/two 2 two DIR/envs/two/bin:/usr/bin:/bin DIR (two) $ 
2
DIR 1 DIR/bin:/usr/bin:/bin
none 0 /usr/bin:/bin none yes $ 
no
conda: this image has the environment without the program conda; "conda activate" and "conda deactivate" work.
conda: "client = true" under [conda] in a recipe adds it, and so does --conda-client of cotainr.
127
DIR/envs/two
`
	want = strings.ReplaceAll(want, "DIR", dir)
	for _, shell := range []string{"bash", "dash", "busybox", "zsh"} {
		program := tooltest.Path(t, shell)
		args := []string{"-c", strings.ReplaceAll(script, "DIR", dir)}
		if shell == "busybox" {
			args = append([]string{"sh"}, args...)
		}
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%s: %v\n got %s\nwant %s", shell, err, out, want)
		}
	}
}

// The client of an environment below envs is also where conda has its own: scripts call it there, and the function of the shell does.
func TestClientInRoot(t *testing.T) {
	root := shortDir(t)
	prefix := root + "/envs/two"
	c := condatest.NewChannel(t, pkg("client", map[string]condatest.File{
		"bin/conda": {Data: "#!/bin/sh\necho \"conda $*\"\n", Mode: 0o755}, "bin/mamba": {Data: "#!/bin/sh\necho \"mamba $*\"\n", Mode: 0o755},
	}))
	l := lay(t, c, conda.Environment{Target: conda.Target{Prefix: prefix}, Root: root}, nil, []string{"client"})
	for _, d := range append(slices.Clone(l.Layers), l.top) {
		unpack(t, l.store, d)
	}
	out, err := exec.Command("/bin/sh", "-c", "PATH=/usr/bin:/bin; . "+root+"/bin/activate; conda list; "+root+"/bin/conda info; "+root+"/bin/mamba list").CombinedOutput()
	if want := "conda list\nconda info\nmamba list\n"; err != nil || string(out) != want {
		t.Errorf("%v\n got %s\nwant %s", err, out, want)
	}
}

// unpack lays a layer down where its paths say. They are all below a directory of the test.
func unpack(t testing.TB, st *store.Store, d layer.Descriptor) {
	t.Helper()
	ix, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range ix.Entries {
		at := filepath.Join("/", e.Path)
		switch e.Type {
		case layer.Dir:
			err = os.MkdirAll(at, 0o755)
		case layer.Symlink:
			err = os.Symlink(e.Link, at)
		case layer.Regular:
			var data []byte
			if data, err = readEntry(ix, i); err == nil {
				err = os.WriteFile(at, data, os.FileMode(e.Mode))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
