package test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/tooltest"
)

var sharedCondaWheels once[[]condatest.Package]

// condaWheels are a Python and real packages for it: numpy and markupsafe with programs of this machine, the others for any Python.
func condaWheels(t *testing.T) []condatest.Package {
	t.Helper()
	return sharedCondaWheels.get(t, func(t *testing.T) []condatest.Package {
		return append([]condatest.Package{condatest.RealPython(t)}, repacked(t, condatest.Subdir())...)
	})
}

// repacked are the wheels of the tests as conda packages for linux-64 or linux-aarch64, and the Python of this machine's version.
func repacked(t *testing.T, subdir string) (packages []condatest.Package) {
	t.Helper()
	tag := "cp" + strings.ReplaceAll(condatest.PythonMinor(t), ".", "")
	files, err := filepath.Glob(filepath.Join(wheelDir(t), "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	machine := map[string]string{"linux-64": "x86_64", "linux-aarch64": "aarch64"}[subdir]
	for _, file := range files {
		name := filepath.Base(file)
		pin, _, _ := strings.Cut(name, "-")
		wanted := slices.ContainsFunc(wheels, func(w string) bool {
			return strings.HasPrefix(w, projectName(pin)+"==") && strings.Contains(name, "-"+w[len(projectName(pin))+2:]+"-")
		})
		if wanted && (strings.HasSuffix(name, "-any.whl") || strings.Contains(name, "-"+tag+"-") && strings.HasSuffix(name, machine+".whl")) {
			packages = append(packages, condatest.Repack(t, file))
		}
	}
	return packages
}

// condaNames are the names of packages, in TOML.
func condaNames(packages []condatest.Package) string {
	var names []string
	for _, p := range packages {
		names = append(names, p.Name)
	}
	return quoted(names)
}

// condaApp is a recipe of conda packages on a base that has a Python of its own.
func condaApp(t *testing.T, channel, packages string) string {
	t.Helper()
	return condaOn(base(t).ref, channel, packages)
}

func condaOn(base, channel, packages string) string {
	return fmt.Sprintf("name = \"app\"\nversion = \"1\"\n[base]\nimage = %q\n[conda]\npackages = [%s]\nchannels = [%q]\n", base, packages, channel)
}

// What an image has of real packages is what rattler installs, package by package and file by file. It is the same image in another
// store; with nothing to do, nobody asks for anything; one package more is one layer of packages more or another.
func TestCondaWheels(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	packages := condaWheels(t)
	server := condatest.NewChannel(t, packages...).Serve(t)
	p := newPlace(t, ordinary(t))
	p.write("app/sconce.toml", condaApp(t, server.URL, condaNames(packages[:len(packages)-1])))
	first := p.build("app")
	if r := p.must("run", "app", "--", "python", "-c", "import numpy, markupsafe._speedups, idna; print(numpy.arange(4).sum(), numpy.__file__)"); !strings.HasPrefix(r.stdout, "6 /opt/conda/") {
		t.Errorf("numpy says %q", r.stdout)
	}
	wantPipAgrees(p, packages[:len(packages)-1])

	server.Requests()
	if again := p.build("--locked", "--offline", "app"); again != first {
		t.Errorf("again: %s, and before %s", again, first)
	}
	if asked := server.Requests(); len(asked) > 0 {
		t.Errorf("with nothing to do, the channel was asked for %q", asked)
	}
	other := newPlace(t, nil)
	other.take(p.path("app"), "app")
	if got := other.build("--locked", "app"); got != first {
		t.Errorf("in another store: %s, want %s", got, first)
	}

	before := condaLayers(p.layers("app:1"))
	p.write("app/sconce.toml", condaApp(t, server.URL, condaNames(packages)))
	p.build("app")
	changed := 0
	for what, digest := range condaLayers(p.layers("app:1")) {
		if !slices.Contains(slices.Collect(maps.Values(before)), digest) {
			changed++
			t.Logf("another layer: %.100s", what)
		}
	}
	if changed != 1 {
		t.Errorf("with one package more, %d layers of packages are others", changed)
	}

	p.must("copy", "app", "dir:"+p.path("root"))
	got := wantAsRattler(t, p.path("root/opt/conda"), server, condatest.Subdir(), packages)
	for name, file := range got {
		if !strings.HasSuffix(name, ".pyc") { // what packages for any Python lack is compiled
			t.Errorf("%s is there: %.100q", name, file)
		}
	}
	p.wantSound()
	p.wantTidy()
}

// wantPipAgrees compares what pip finds in the image with the Python packages that were asked for, and these with the lock.
func wantPipAgrees(p *place, packages []condatest.Package) {
	p.t.Helper()
	lock := p.read("app/conda-lock.yml")
	var want []string
	for _, c := range packages {
		if !strings.Contains(lock, "/"+c.File()+"\n") {
			p.t.Errorf("the lock has no %s", c.File())
		}
		if c.Name != "python" {
			want = append(want, c.Name+"=="+c.Version)
		}
	}
	slices.Sort(want)
	r := p.must("run", "app", "--", "python", "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
	got := slices.Sorted(strings.Lines(strings.ReplaceAll(strings.ToLower(r.stdout), "_", "-")))
	if text := strings.Join(got, ""); text != strings.Join(want, "\n")+"\n" {
		p.t.Errorf("pip finds\n%s\nand the lock has\n%s", text, strings.Join(want, "\n"))
	}
}

// wantAsRattler compares an environment with what rattler installs, file by file, and returns what only the environment has, beside the
// files that activate it.
func wantAsRattler(t *testing.T, dir string, server *condatest.Server, subdir string, packages []condatest.Package) map[string]string {
	t.Helper()
	target := filepath.Join(t.TempDir(), "env")
	condatest.Install(t, server.URL, subdir, "/opt/conda", target, strings.Split(strings.ReplaceAll(condaNames(packages), "\"", ""), ", ")...)
	got, want := environmentFiles(t, dir), environmentFiles(t, target)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s:\n got %.200q\nwant %.200q", name, got[name], want[name])
		}
		delete(got, name)
	}
	for _, ours := range []string{"bin/activate", "etc/profile.d/conda.sh", "etc/conda/variables.sh"} {
		delete(got, ours)
	}
	t.Logf("%d files of %d packages", len(want), len(packages))
	return got
}

// condaLayers are the digests of the layers of conda packages of an image, by what is in them.
func condaLayers(all []imageLayer) map[string]string {
	found := map[string]string{}
	for _, l := range all {
		if what, ok := strings.CutPrefix(l.CreatedBy, "conda packages: "); ok {
			found[what] = l.Digest
		}
	}
	return found
}

// environmentFiles reads a conda environment: kind, permissions and content by path. Left out is what differs by intention (see
// docs/architecture/06-conda-packages.md): records, the text of commands for entry points, headers of byte code.
func environmentFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, at)
		if strings.HasPrefix(name, "conda-meta/") || name == "CACHEDIR.TAG" {
			return nil
		}
		if d.Type()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(at)
			files[name] = "link to " + to
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(at)
		mode := info.Mode().Perm()
		switch {
		case strings.HasSuffix(name, ".pyc") && len(data) > 16:
			data = data[16:]
		case strings.HasPrefix(name, "bin/") && strings.Contains(string(data[:min(len(data), 1000)]), "re.sub(") || strings.HasPrefix(name, "bin/") && strings.Contains(string(data[:min(len(data), 1000)]), "sys.exit("):
			line, _, _ := strings.Cut(string(data), "\n")
			data, mode = []byte(line), mode&0o755
		}
		files[name] = fmt.Sprintf("%o %s", mode, data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// lockedConda locks a recipe of conda packages of every kind: small ones and large, .conda and .tar.bz2, for this machine and for any,
// with scripts that run when they are linked and when the environment is activated. The base is small, so that nearly all work is theirs.
// The recipe's directory is returned.
func lockedConda(t *testing.T) string {
	t.Helper()
	tooltest.Path(t, "uv")
	hooks := condatest.Package{Name: "hooks", Version: "1.0", Subdir: condatest.Subdir(), Files: map[string]condatest.File{
		"etc/conda/activate.d/hooks.sh": {Data: "export HOOKS=\"$CONDA_PREFIX\"\n"},
		"bin/.hooks-post-link.sh":       {Data: "echo linked > \"$PREFIX/share.hooks\"\n"},
	}}
	old := condatest.Package{Name: "old", Version: "1.0", Noarch: "generic", TarBz2: true, Pad: 1 << 20}
	packages := slices.DeleteFunc(slices.Clone(condaWheels(t)), func(p condatest.Package) bool {
		return !slices.Contains([]string{"python", "markupsafe", "idna", "click", "six"}, p.Name)
	})
	packages = append(packages, hooks, old)
	p := newPlace(t, nil)
	p.write("app/root.tar", string(condatest.Root(t)))
	p.write("app/sconce.toml", condaOn("tar:root.tar", condatest.NewChannel(t, packages...).Serve(t).URL, condaNames(packages)))
	p.must("lock", "app")
	return p.path("app")
}

// A build of conda packages is killed again and again, each time a little later, with archives being brought, files unpacked, byte code
// made, scripts run. The store is sound after every kill, and what comes out in the end is what an undisturbed build makes.
func TestCondaKilledAnywhere(t *testing.T) {
	begin(t)
	app := lockedConda(t)
	calm := newPlace(t, nil)
	calm.take(app, "app")
	want := calm.build("--locked", "app")

	p := newPlace(t, ordinary(t))
	p.take(app, "app")
	doing := make(map[string]int)
	for step := 1; !t.Failed(); step += 2 {
		during := p.stop(unix.SIGKILL, step)
		if during == "" {
			break
		}
		doing[during]++
		p.wantSound()
	}
	t.Logf("killed at %v", doing)
	if len(doing) < 2 {
		t.Errorf("the kills hit only %v", doing)
	}
	if got := p.build("--locked", "app"); got != want {
		t.Errorf("after all the kills the image is %s, want %s", got, want)
	}
	p.must("cache", "prune", "--all")
	p.wantSound()
	p.wantTidy()
}
