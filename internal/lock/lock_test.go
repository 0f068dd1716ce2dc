package lock_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// bench is one directory with a recipe, and what is needed to lock it.
type bench struct {
	t      testing.TB
	dir    string
	store  *store.Store
	events locktest.Events
}

// newBench isolates the test and offers wheels in an index that uv uses by default.
func newBench(t *testing.T, b locktest.Base, wheels ...locktest.Wheel) (*bench, *locktest.Index) {
	t.Helper()
	locktest.UV(t)
	locktest.Isolate(t)
	x := locktest.NewIndex(t, wheels...)
	t.Setenv("UV_DEFAULT_INDEX", x.URL)
	return &bench{t: t, dir: locktest.Dir(t, b, nil), store: storetest.New(t)}, x
}

func (b *bench) write(files map[string]string) { locktest.Write(b.t, b.dir, files) }

func (b *bench) recipe(text string) *recipe.Recipe {
	b.t.Helper()
	return locktest.Load(b.t, b.dir, locktest.Head+text)
}

func (b *bench) make(r *recipe.Recipe, o lock.Options) (*lock.Files, error) {
	b.t.Helper()
	o.Store, o.Fetch = b.store, fetch.New(b.store, fetch.Options{Attempts: 1})
	return lock.Update(progress.With(b.t.Context(), &b.events), r, o)
}

func (b *bench) lock(text string) (*recipe.Recipe, *lock.Files) {
	b.t.Helper()
	r := b.recipe(text)
	l, err := b.make(r, lock.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return r, l
}

// fails locks and wants an error that holds all of the parts.
func (b *bench) fails(text string, parts ...string) error {
	b.t.Helper()
	_, err := b.make(b.recipe(text), lock.Options{})
	wantError(b.t, err, parts...)
	return err
}

func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", parts)
	}
	said := err.Error() + "\nhint: " + fault.HintOf(err)
	for _, p := range parts {
		if !strings.Contains(said, p) {
			t.Errorf("the error lacks %q:\n%s", p, said)
		}
	}
}

func wheelsOf(f *lock.Files, r *recipe.Recipe) ([]lock.Wheel, error) {
	l, err := f.Locked(r)
	if err != nil {
		return nil, err
	}
	return l.Wheels, nil
}

func compilesOf(f *lock.Files, r *recipe.Recipe) ([]lock.Compile, error) {
	l, err := f.Locked(r)
	if err != nil {
		return nil, err
	}
	return l.Compiles, nil
}

// pins returns what a lock holds as name==version.
func pins(t testing.TB, l *lock.Files, r *recipe.Recipe) []string {
	t.Helper()
	wheels, err := wheelsOf(l, r)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, w := range wheels {
		pin := w.Name + "==" + w.Version
		if w.Requested {
			pin += " requested"
		}
		all = append(all, pin)
	}
	slices.Sort(all)
	return all
}

func wantPins(t testing.TB, l *lock.Files, r *recipe.Recipe, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, pins(t, l, r)); diff != "" {
		t.Errorf("pins (-want +got)\n%s", diff)
	}
}

func (b *bench) read(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

func w(name, version string, requires ...string) locktest.Wheel {
	return locktest.Wheel{Name: name, Version: version, Requires: requires}
}

func TestLockKeepsWhatItSaid(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0", "beta"), w("beta", "1.0"))
	r, l := b.lock("[python]\npackages = [\"alpha\"]\n")
	wantPins(t, l, r, "alpha==1.0 requested", "beta==1.0")
	if l.Base.Layers != 1 || l.Python.Version != "3.11.2" || l.Python.SystemSitePackages || l.Platform != "linux/amd64" {
		t.Errorf("lock %+v", l)
	}
	on, err := lock.Read(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l.Lock, on.Lock); diff != "" {
		t.Errorf("what was returned and what was written differ (-returned +written)\n%s", diff)
	}
	if entries, _ := filepath.Glob(filepath.Join(b.dir, "*")); len(entries) != 4 { // base.tar, sconce.toml, sconce.lock, pylock.toml
		t.Errorf("left in the directory: %q", entries)
	}

	x.Add(t, w("alpha", "1.1", "beta"), w("beta", "2.0"), w("gamma", "1.0"))
	r, l = b.lock("[python]\npackages = [\"alpha\", \"gamma\"]\n")
	wantPins(t, l, r, "alpha==1.0 requested", "beta==1.0", "gamma==1.0 requested")

	l, err = b.make(r, lock.Options{UpgradePackages: []string{"Beta"}})
	if err != nil {
		t.Fatal(err)
	}
	wantPins(t, l, r, "alpha==1.0 requested", "beta==2.0", "gamma==1.0 requested")

	before := b.read("pylock.toml") + b.read("sconce.lock")
	_, err = b.make(r, lock.Options{UpgradePackages: []string{"gama"}})
	wantError(t, err, `cannot upgrade "gama"`, `did you mean "gamma"?`)
	if fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("exit code %d", fault.CodeOf(err))
	}
	if b.read("pylock.toml")+b.read("sconce.lock") != before {
		t.Error("a failed upgrade changed the lock")
	}

	l, err = b.make(r, lock.Options{Upgrade: true})
	if err != nil {
		t.Fatal(err)
	}
	wantPins(t, l, r, "alpha==1.1 requested", "beta==2.0", "gamma==1.0 requested")
}

func TestDrift(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("beta", "1.0"))
	b.write(map[string]string{"other.tar": string(locktest.Base{}.Tar(t)), "r.txt": "-c sub/c.txt\nbeta\n", "sub/c.txt": "beta<2\n"})
	const text = "[python]\npackages = [\"alpha\"]\nrequirements = [\"r.txt\"]\n"
	_, l := b.lock(text)
	for name, test := range map[string]struct {
		recipe string
		files  map[string]string
		want   []string
	}{
		"nothing":                        {recipe: locktest.Head + text},
		"outside of [python] and [base]": {recipe: locktest.Head + text + "[image]\nenv = { A = \"b\" }\n"},
		"more packages":                  {recipe: locktest.Head + "[python]\npackages = [\"alpha\", \"einops>=0.8\"]\nrequirements = [\"r.txt\"]\n", want: []string{"+ python.packages einops>=0.8"}},
		"another":                        {recipe: locktest.Head + "[python]\npackages = [\"alpha<2\"]\nrequirements = [\"r.txt\"]\n", want: []string{"- python.packages alpha", "+ python.packages alpha<2"}},
		"base":                           {recipe: strings.Replace(locktest.Head, "base.tar", "other.tar", 1) + text, want: []string{"- base.image tar:base.tar", "+ base.image tar:other.tar"}},
		"platform":                       {recipe: strings.Replace(locktest.Head, "amd64", "arm64", 1) + text, want: []string{"- target.platform linux/amd64", "+ target.platform linux/arm64"}},
		"protect":                        {recipe: locktest.Head + text + "protect = []\n", want: []string{"+ python.protect []"}},
		"torch-backend":                  {recipe: locktest.Head + text + "torch-backend = \"cpu\"\n", want: []string{"+ python.torch-backend cpu"}},
		"the target's driver":            {recipe: strings.Replace(locktest.Head, "[target]\n", "[target]\ndriver = \"550.54.15\"\n", 1) + text + "torch-backend = \"target\"\n", want: []string{"+ python.torch-backend target", "+ python.driver 550.54.15"}},
		"requirements":                   {recipe: locktest.Head + text, files: map[string]string{"r.txt": "-c sub/c.txt\nbeta>0\n"}, want: []string{"- python.requirements r.txt (*)", "+ python.requirements r.txt (*)"}},
		"constraints":                    {recipe: locktest.Head + text, files: map[string]string{"sub/c.txt": "beta<3\n"}, want: []string{"- python.constraints sub/c.txt (*)", "+ python.constraints sub/c.txt (*)"}},
		"uv.toml":                        {recipe: locktest.Head + text, files: map[string]string{"uv.toml": "offline = false\n"}, want: []string{"+ python.uv.toml uv.toml (*)"}},
		"pylock by hand":                 {recipe: locktest.Head + text, files: map[string]string{"pylock.toml": b.read("pylock.toml") + "\n"}, want: []string{"+ pylock.toml (it was changed by hand)"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := make(map[string]string)
			for file := range test.files {
				if data, err := os.ReadFile(filepath.Join(b.dir, file)); err == nil {
					before[file] = string(data)
				}
			}
			b.write(test.files)
			got, err := driftOf(l, locktest.Load(t, b.dir, test.recipe))
			if err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if head, _, ok := strings.Cut(got[i], " (sha256:"); ok {
					got[i] = head + " (*)"
				} else if head, _, ok := strings.Cut(got[i], " ("); ok && !strings.Contains(got[i], "by hand") {
					got[i] = head + " (*)"
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for file := range test.files {
				os.Remove(filepath.Join(b.dir, file))
			}
			b.write(before)
		})
	}
	os.Remove(filepath.Join(b.dir, "pylock.toml"))
	got, err := driftOf(l, b.recipe(text))
	if err != nil || !slices.Equal(got, []string{"- pylock.toml (it is gone)"}) {
		t.Errorf("without pylock.toml: %q, %v", got, err)
	}
	os.Remove(filepath.Join(b.dir, "sub/c.txt"))
	_, err = driftOf(l, b.recipe(text))
	wantError(t, err, "requirements", "included by r.txt", "c.txt")
}

func TestRequirementsFiles(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0", "delta"), w("beta", "1.0"), w("beta", "2.0"), w("gamma", "1.0"), w("delta", "1.0"))
	outside := filepath.Join(t.TempDir(), "outside.txt")
	t.Setenv(reach.Variable, outside)
	b.write(map[string]string{
		"dist/" + w("local", "3.0").File(): string(w("local", "3.0").Bytes(t)),
		"r/top.txt":                        "# everything\n-r deeper/more.txt\nalpha >= 0.5  # why not\n--constraint=c.txt\n",
		"r/deeper/more.txt":                "--requirement ../top.txt\nbeta; python_version > '3'\nnot-for-us; sys_platform == 'win32'\n",
		"r/c.txt":                          "beta<2\n",
		"local.txt":                        "./dist/" + w("local", "3.0").File() + "\n",
	})
	if err := os.WriteFile(outside, []byte("gamma\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, l := b.lock(fmt.Sprintf("[python]\nrequirements = [\"r/top.txt\", %q, \"local.txt\"]\n", outside))
	wantPins(t, l, r, "alpha==1.0 requested", "beta==1.0 requested", "delta==1.0", "gamma==1.0 requested", "local==3.0 requested")
	wheels, err := wheelsOf(l, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wheels {
		if w.Name != "local" {
			continue
		}
		if w.DirectURL == nil || w.DirectURL.URL != "file:///local-3.0-py3-none-any.whl" {
			t.Errorf("direct URL %+v: the directory of this machine must not be in it", w.DirectURL)
		}
		if w.URL != filepath.Join(b.dir, "dist", w.File) || w.Size == 0 {
			t.Errorf("wheel %+v", w)
		}
	}
	if strings.Contains(b.read("pylock.toml"), b.dir) {
		t.Errorf("the lock holds the recipe's directory:\n%s", b.read("pylock.toml"))
	}
}

// TestPathsInPackages: an address of a file below the recipe becomes relative to it.
func TestPathsInPackages(t *testing.T) {
	b, _ := newBench(t, locktest.Base{})
	b.write(map[string]string{"dist/" + w("local", "3.0").File(): string(w("local", "3.0").Bytes(t))})
	r, l := b.lock("[python]\npackages = [\"local @ file:dist/" + w("local", "3.0").File() + "\"]\n")
	wantPins(t, l, r, "local==3.0 requested")
	if strings.Contains(b.read("pylock.toml"), b.dir) {
		t.Errorf("the lock holds the recipe's directory:\n%s", b.read("pylock.toml"))
	}
}

const pyproject = `
[project]
name = "app"
version = "1"
requires-python = ">=3.11"
dependencies = ["alpha"]
[project.optional-dependencies]
Fast = ["beta"]
slow = ["no-such-package"]
[dependency-groups]
test = ["gamma", { include-group = "more" }]
more = ["delta>=1"]
`

func TestProject(t *testing.T) {
	all := []locktest.Wheel{w("alpha", "1.0"), w("beta", "1.0", "torch"), w("gamma", "1.0"), w("delta", "1.0"), w("torch", "2.0")}
	const text = "[python]\nproject = \"app\"\nextras = [\"fast\"]\ngroups = [\"test\"]\n"
	want := []string{"alpha==1.0 requested", "beta==1.0 requested", "delta==1.0 requested", "gamma==1.0 requested"}

	t.Run("resolved", func(t *testing.T) {
		b, _ := newBench(t, locktest.Base{}, all...)
		b.write(map[string]string{"app/pyproject.toml": pyproject})
		r, l := b.lock(text)
		wantPins(t, l, r, append(slices.Clone(want), "torch==2.0")...)
	})
	t.Run("extras that name the project", func(t *testing.T) { // the usual way to write an extra "all"
		b, _ := newBench(t, locktest.Base{}, all...)
		b.write(map[string]string{"app/pyproject.toml": strings.Replace(pyproject, "slow =",
			"all = [\"App[fast,more]\"]\nmore = [\"app[All]\", \"delta\"]\nslow =", 1)})
		r, l := b.lock("[python]\nproject = \"app\"\nextras = [\"all\"]\n")
		wantPins(t, l, r, "alpha==1.0 requested", "beta==1.0 requested", "delta==1.0 requested", "torch==2.0")
	})
	t.Run("settings of the project", func(t *testing.T) {
		b, x := newBench(t, locktest.Base{}, all...)
		os.Unsetenv("UV_DEFAULT_INDEX")
		b.write(map[string]string{"app/pyproject.toml": pyproject + "[tool.uv]\nconstraint-dependencies = [\"torch<2\"]\n[[tool.uv.index]]\nname = \"own\"\ndefault = true\nurl = \"" + x.URL + "\"\n"})
		b.fails(text, "No solution found", "torch<2")
		x.Add(t, w("torch", "1.0"))
		r, l := b.lock(text)
		wantPins(t, l, r, append(slices.Clone(want), "torch==1.0")...)
	})
	t.Run("its own lock", func(t *testing.T) {
		b, x := newBench(t, locktest.Base{Installed: []locktest.Wheel{w("torch", "1.9")}}, all...)
		b.write(map[string]string{"app/pyproject.toml": strings.Replace(pyproject, "no-such-package", "beta", 1)})
		uvRun(t, filepath.Join(b.dir, "app"), "lock", "--quiet")
		x.Add(t, w("alpha", "1.5"))
		r, l := b.lock(text) // without the base's torch, which is protected
		wantPins(t, l, r, want...)
		if !slices.ContainsFunc(l.Inputs.Python, func(s string) bool { return strings.HasPrefix(s, "project app/uv.lock (") }) {
			t.Errorf("inputs %q", l.Inputs.Python)
		}
		_, err := b.make(r, lock.Options{UpgradePackages: []string{"alpha"}})
		wantError(t, err, "cannot upgrade alpha", "app/uv.lock, which is yours")
		if l, err = b.make(r, lock.Options{Upgrade: true}); err != nil {
			t.Fatal(err)
		}
		wantPins(t, l, r, want...)
	})
}

// TestProjectItself: a project is installed by its own name where the recipe says so, with or without a lock of uv's, and where it
// is silent, locking says that it is not.
func TestProjectItself(t *testing.T) {
	const here = "[project]\nname = \"My_App\"\nversion = \"2.0\"\nrequires-python = \">=3.11\"\ndynamic = [\"dependencies\"]\n[build-system]\nrequires = [\"setuptools\"]\n" +
		"[tool.setuptools.dynamic]\ndependencies = { file = \"requirements.txt\" }\n"
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("setuptools", "70.0"))
	b.write(map[string]string{"pyproject.toml": here, "requirements.txt": "alpha  # of all things\n"})
	const text, note = "[python]\nproject = \".\"\n", "install-project = true under [python] installs it"
	r, l := b.lock(text)
	wantPins(t, l, r, "alpha==1.0")
	if !strings.Contains(b.events.Everything(), note) {
		t.Error("nobody says that the project itself is not installed")
	}
	b.lock(text + "install-project = false\n")
	if strings.Count(b.events.Everything(), note) != 1 {
		t.Error("the note comes although the recipe has decided")
	}
	itself := func(t *testing.T) {
		t.Helper()
		r, l := b.lock(text + "install-project = true\n")
		builds, err := compilesOf(l, r)
		if err != nil || len(builds) != 1 || builds[0].Name != "my-app" || builds[0].Source.Path != b.dir {
			t.Fatalf("built: %+v, %v", builds, err)
		}
		if wheels, err := wheelsOf(l, r); err != nil || len(wheels) != 1 || wheels[0].Name != "alpha" {
			t.Errorf("wheels %v, %v", wheels, err)
		}
		if strings.Contains(b.read("pylock.toml"), b.dir) {
			t.Errorf("the lock holds in this directory alone:\n%s", b.read("pylock.toml"))
		}
		if strings.Count(b.events.Everything(), note) != 1 {
			t.Error("the note comes although the project is installed")
		}
		if drift, err := driftOf(l, b.recipe(text)); err != nil || len(drift) == 0 {
			t.Errorf("without the key, the lock fits as well: %v, %v", drift, err)
		}
	}
	itself(t)
	b.write(map[string]string{"pyproject.toml": strings.Replace(here, "dynamic = [\"dependencies\"]", "dependencies = [\"alpha\"]", 1)})
	uvRun(t, b.dir, "lock", "--quiet")
	itself(t)
}

// TestNoPythonIsBrought: uv resolves with any Python that is there, else with a stand-in, and brings one only where it does not take that.
func TestNoPythonIsBrought(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	uv, err := exec.LookPath("uv")
	if err != nil {
		t.Fatal(err)
	}
	python, ok := host.AnyPython(t.Context(), "3.11", 8)
	if !ok {
		tooltest.Missing(t, "this machine has no Python")
	}
	asked := filepath.Join(b.dir, "asked")
	script := func(refused string) {
		b.write(map[string]string{"bin/uv": "#!/bin/sh\necho \"$1 $2 ${UV_PYTHON_DOWNLOADS-unset} $PWD\" >>" + asked + "\ncase \"$*\" in\n" + refused +
			"python\\ install*) exit 0;;\npython\\ find*--managed-python*) echo " + python.Path + "; exit 0;;\nesac\nexec " + uv + " \"$@\"\n"})
		if err := os.Chmod(filepath.Join(b.dir, "bin/uv"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	wantAsked := func(want string) {
		t.Helper()
		if got := b.read("asked"); got != want {
			t.Errorf("uv was run as %q, want %q", got, want)
		}
		os.Remove(asked)
	}
	t.Setenv("PATH", filepath.Join(b.dir, "bin")+":"+os.Getenv("PATH"))
	os.Unsetenv("UV_PYTHON_DOWNLOADS") // as it is outside of tests
	script("")
	b.lock("[python]\npackages = [\"alpha\"]\n")
	const resolves = "pip compile never /\n"
	wantAsked(resolves)
	t.Setenv("PATH", filepath.Join(b.dir, "bin"))
	t.Setenv("UV_PYTHON_INSTALL_DIR", t.TempDir())
	b.lock("[python]\npackages = [\"alpha>=0.5\"]\n")
	wantAsked(resolves) // it takes the stand-in
	script("*stand-in*) echo 'error: that is no Python' >&2; exit 2;;\n")
	b.lock("[python]\npackages = [\"alpha>=1\"]\n")
	wantAsked(resolves + "python find unset /\npython install unset /\npython find unset /\n" + resolves)
	script("pip\\ *stand-in*) echo 'error: failed to inspect Python, No interpreter found' >&2; exit 2;;\n")
	b.fails("[python]\npackages = [\"alpha>0.9\"]\n", "inspect Python") // it takes the stand-in, so it is about something else
	wantAsked(resolves + "python find unset /\n")
	script("*stand-in*) echo 'error: that is no Python' >&2; exit 2;;\n")
	t.Setenv("UV_PYTHON_DOWNLOADS", "manual")
	b.fails("[python]\npackages = [\"alpha>0\"]\n", "that is no Python")
	wantAsked(resolves)
}

func TestProjectThatCannotBeLocked(t *testing.T) {
	const dynamic = "[project]\nname = \"app\"\nversion = \"1\"\ndynamic = [\"dependencies\"]\n"
	const build, text = "[build-system]\nrequires = [\"setuptools\"]\n", "[python]\nproject = \"app\"\n"
	for _, test := range []struct {
		name, recipe, want string
		files              map[string]string
	}{
		{"Poetry", text, "in [tool.poetry], which only Poetry reads", map[string]string{"pyproject.toml": "[tool.poetry]\nname = \"x\"\n[tool.poetry.dependencies]\nalpha = \"^1.0\"\n"}},
		{"setup.py", text, "in setup.py or setup.cfg", map[string]string{"pyproject.toml": build, "setup.py": "import setuptools\nsetuptools.setup(install_requires=['alpha'])\n"}},
		{"Poetry 2", text, "depends = [", map[string]string{"pyproject.toml": dynamic + "[tool.poetry.dependencies]\nalpha = \"^1.0\"\n[build-system]\nrequires = []\nbuild-backend = \"poetry.core.masonry.api\"\n"}},
		{"a plugin of Hatch", text, "depends = [", map[string]string{"pyproject.toml": dynamic + "[build-system]\nrequires = []\nbuild-backend = \"hatchling.build\"\n"}},
		{"dynamic by setup.py", text, "app does not say what it depends on", map[string]string{"pyproject.toml": dynamic + build, "setup.py": "import setuptools\nsetuptools.setup(install_requires=['alpha'])\n"}},
		{"settings alone", text, "no [project] table with a name", map[string]string{"pyproject.toml": "[tool.black]\nline-length = 100\n"}},
		{"packages beside uv.lock", text + "packages = [\"alpha\"]\n", "app/uv.lock decides all Python packages, so packages", map[string]string{"pyproject.toml": pyproject, "uv.lock": "version = 1\n"}},
		{"requirements beside uv.lock", text + "requirements = [\"app/more.txt\"]\n", "so requirements", map[string]string{"pyproject.toml": pyproject, "uv.lock": "version = 1\n", "more.txt": "alpha\n"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"))
			for name, content := range test.files {
				b.write(map[string]string{"app/" + name: content})
			}
			err := b.fails(test.recipe, test.want)
			if fault.HintOf(err) == "" {
				t.Errorf("%v: no hint", err)
			}
			if strings.HasPrefix(test.files["pyproject.toml"], dynamic) { // what the hint says works
				r, l := b.lock(test.recipe + "[python.compile.app]\ndepends = [\"alpha\"]\n")
				wantPins(t, l, r, "alpha==1.0")
			}
		})
	}
}

func TestOwnLock(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	t.Setenv("PATH", "") // no uv
	b.write(map[string]string{"my/pylock.mine.toml": x.Pylock(t, w("alpha", "1.0"))})
	const text = "[python]\nlock = \"my/pylock.mine.toml\"\n"
	r, l := b.lock(text)
	wantPins(t, l, r, "alpha==1.0")
	if len(l.Python.Requested) != 0 {
		t.Errorf("requested %q", l.Python.Requested)
	}
	_, err := b.make(r, lock.Options{UpgradePackages: []string{"alpha"}})
	wantError(t, err, "my/pylock.mine.toml, which is yours")
	if fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("exit code %d", fault.CodeOf(err))
	}
	b.write(map[string]string{"my/pylock.mine.toml": x.Pylock(t)})
	drift, err := driftOf(l, r)
	if err != nil || len(drift) != 2 || !strings.HasPrefix(drift[0], "- python.lock my/pylock.mine.toml (") {
		t.Errorf("drift %q, %v", drift, err)
	}
	absolute := filepath.Join(t.TempDir(), "pylock.toml")
	t.Setenv(reach.Variable, absolute)
	if err := os.WriteFile(absolute, []byte(x.Pylock(t, w("alpha", "1.0"))), 0o644); err != nil {
		t.Fatal(err)
	}
	r, l = b.lock(fmt.Sprintf("[python]\nlock = %q\n", absolute))
	wantPins(t, l, r, "alpha==1.0")
}

// TestDerivationUnharmed: what uv says is what the user reads.
func TestDerivationUnharmed(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0", "delta>=2"), w("beta", "1.0", "delta<2"), w("delta", "1.0"), w("delta", "2.0"))
	err := b.fails("[python]\npackages = [\"alpha\", \"beta\"]\n")
	b.write(map[string]string{"in.txt": "alpha\nbeta\n"})
	said := uvFails(t, b.dir, "pip", "compile", "in.txt", "--python-version", "3.11.2", "--only-binary", ":all:", "--default-index", x.URL)
	if !strings.Contains(err.Error(), said) || !strings.Contains(said, "delta<2") {
		t.Errorf("uv says:\n%s\nthe user reads:\n%s", said, err)
	}
	var resolution *lock.ResolutionError
	if !errors.As(err, &resolution) {
		t.Errorf("%T", err)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "sconce.lock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a lock was written: %v", err)
	}
}

// TestNothingFound: what this uv says when it cannot get a package is recognised and answered with what to do. An index that is away is
// asked as often as any server.
func TestNothingFound(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	t.Setenv("UV_HTTP_RETRIES", "0")
	b.fails("[python]\npackages = [\"absent\"]\n", "absent was not found", "spelling of absent")
	b.fails("[python]\npackages = [\"alpha==9\"]\n", "alpha==9", "a version of alpha that there is")
	for index, why := range map[string]string{
		"http://127.0.0.1:9/simple":     "/simple/alpha/: connection refused (gave up after 1 attempts)",
		"http://nowhere.invalid/simple": "Name or service not known", // for good
	} {
		t.Setenv("UV_DEFAULT_INDEX", index)
		b.fails("[python]\npackages = [\"alpha\"]\n", index, why, "from HTTPS_PROXY")
	}
	t.Setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
	if _, err := b.make(b.recipe("[python]\npackages = [\"alpha\"]\n"), lock.Options{}); fault.CodeOf(err) != fault.CodeTryAgain {
		t.Errorf("an index that is away has the exit code %d", fault.CodeOf(err))
	}
	t.Setenv("UV_CACHE_DIR", t.TempDir())
	_, err := b.make(b.recipe("[python]\npackages = [\"alpha\"]\n"), lock.Options{Offline: true})
	wantError(t, err, "alpha", "once without --offline")
}

// TestOnlyOthers: wheels for others, and no source.
func TestOnlyOthers(t *testing.T) {
	b, x := newBench(t, locktest.Base{})
	x.Add(t, locktest.Wheel{Name: "others", Version: "1.0", Tag: "cp39-cp39-win_amd64"})
	b.fails("[python]\npackages = [\"others\"]\n", "No solution found", "others has no wheel for Python 3.11 on x86_64-manylinux_2_36", "others @ file:///")
}

func TestOldUV(t *testing.T) {
	b, _ := newBench(t, locktest.Base{})
	b.write(map[string]string{"bin/uv": "#!/bin/sh\necho \"error: unexpected argument '--excludes' found\" >&2\nexit 2\n"})
	if err := os.Chmod(filepath.Join(b.dir, "bin/uv"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(b.dir, "bin")+":"+os.Getenv("PATH"))
	b.fails("[python]\npackages = [\"alpha\"]\n", "unexpected argument", "this uv is too old")
	t.Setenv("PATH", b.dir)
	b.fails("[python]\npackages = [\"alpha\"]\n", "not on PATH", "pip install uv")
}

// TestSettingsAround: what lies in directories above the recipe does not count, what lies beside it does.
func TestSettingsAround(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("alpha", "2.0"))
	os.Unsetenv("UV_DEFAULT_INDEX")
	home := os.Getenv("HOME")
	locktest.Write(t, home, map[string]string{".config/uv/uv.toml": "[[index]]\nurl = \"" + x.URL + "\"\ndefault = true\n"})
	b.write(map[string]string{"uv.toml": "no-index = true\n", "pyproject.toml": "[project]\nname=\"x\"\nversion=\"1\"\n[tool.uv]\nno-index = true\n"})
	below := &bench{t: t, dir: filepath.Join(b.dir, "below"), store: b.store}
	below.write(map[string]string{"base.tar": b.read("base.tar")})
	r, l := below.lock("[python]\npackages = [\"alpha\"]\n")
	wantPins(t, l, r, "alpha==2.0 requested")
	below.write(map[string]string{"uv.toml": "constraint-dependencies = [\"alpha<2\"]\n"})
	r, l = below.lock("[python]\npackages = [\"alpha\"]\n")
	wantPins(t, l, r, "alpha==1.0 requested")
	below.write(map[string]string{
		"uv.toml": "no-index = true\nfind-links = [\"dist\"]\n", "dist/" + w("alpha", "3.0").File(): string(w("alpha", "3.0").Bytes(t)),
	})
	r, l = below.lock("[python]\npackages = [\"alpha==3.0\"]\n")
	wantPins(t, l, r, "alpha==3.0 requested")
	x.Add(t, w("top", "1.0", "alpha"))
	below.write(map[string]string{"uv.toml": "exclude-dependencies = [\"alpha\"]\n"}) // the remedy for two packages with one file
	r, l = below.lock("[python]\npackages = [\"top\"]\n")
	wantPins(t, l, r, "top==1.0 requested")
	below.write(map[string]string{"uv.toml": "no-index = \n"})
	below.fails("[python]\npackages = [\"alpha\"]\n", filepath.Join(below.dir, "uv.toml"), "no-index")
}

// TestPipIndex: pip's configuration tells where packages are when uv's does not.
func TestPipIndex(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	os.Unsetenv("UV_DEFAULT_INDEX")
	locktest.Write(t, os.Getenv("HOME"), map[string]string{".config/pip/pip.conf": "[global]\nindex_url = " + x.URL + "\n"})
	r, l := b.lock("[python]\npackages = [\"alpha\"]\n")
	wantPins(t, l, r, "alpha==1.0 requested")
	b.write(map[string]string{"uv.toml": "no-index = true\n"})
	b.fails("[python]\npackages = [\"alpha\"]\n", "alpha")
}

// TestKilledBetween: the package lock is written, sconce.lock is not.
func TestKilledBetween(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("beta", "1.0"))
	b.lock("[python]\npackages = [\"alpha\"]\n")
	before := b.read("sconce.lock")
	const text = "[python]\npackages = [\"alpha\", \"beta\"]\n"
	b.lock(text)
	want := b.read("sconce.lock") + b.read("pylock.toml")
	x.Add(t, w("beta", "2.0")) // must not be taken
	b.write(map[string]string{"sconce.lock": before, "pylock.unfinished.toml": "rubbish"})
	r, l := b.lock(text)
	wantPins(t, l, r, "alpha==1.0 requested", "beta==1.0 requested")
	if got := b.read("sconce.lock") + b.read("pylock.toml"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.write(map[string]string{"sconce.lock": "rubbish", "pylock.toml": "rubbish"})
	r, l = b.lock(text)
	wantPins(t, l, r, "alpha==1.0 requested", "beta==2.0 requested")
	if warned := b.events.Texts(progress.Warning); len(warned) != 1 || !strings.Contains(warned[0], "the earlier lock counts for nothing") {
		t.Errorf("warnings %q", warned)
	}
}

func TestTwoAtOnce(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	r := b.recipe("[python]\npackages = [\"alpha\"]\n")
	var group sync.WaitGroup
	locks := make([]*lock.Files, 4)
	for i := range locks {
		group.Go(func() {
			var err error
			if locks[i], err = b.make(r, lock.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, l := range locks {
		if diff := cmp.Diff(locks[0].Lock, l.Lock); diff != "" {
			t.Error(diff)
		}
	}
	asked := slices.DeleteFunc(b.events.Texts(progress.Done), func(s string) bool { return !strings.HasPrefix(s, "resolve ") })
	if len(asked) != 1 {
		t.Errorf("uv was asked %d times: %q", len(asked), asked)
	}
}

func TestInterrupted(t *testing.T) {
	b, _ := newBench(t, locktest.Base{})
	b.write(map[string]string{"bin/uv": "#!/bin/sh\ntouch " + filepath.Join(b.dir, "asked") + "\nexec sleep 60\n"})
	if err := os.Chmod(filepath.Join(b.dir, "bin/uv"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(b.dir, "bin")+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	r := b.recipe("[python]\npackages = [\"alpha\"]\n")
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(b.dir, "asked")); err == nil {
				cancel()
				return
			}
		}
	}()
	_, err := lock.Update(ctx, r, lock.Options{Store: b.store, Fetch: fetch.New(b.store, fetch.Options{})})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestForAnotherMachine(t *testing.T) {
	wheels := []locktest.Wheel{
		{Name: "native", Version: "1.0", Tag: "cp311-cp311-manylinux_2_17_x86_64"},
		{Name: "native", Version: "1.0", Tag: "cp311-cp311-manylinux_2_17_aarch64"},
		{Name: "native", Version: "1.0", Tag: "cp311-cp311-manylinux_2_40_aarch64"},
		w("only-there", "1.0"), w("only-here", "1.0"),
		{Name: "chooser", Version: "1.0", Requires: []string{"native", "only-there; platform_machine == 'aarch64'", "only-here; platform_machine == 'x86_64'"}},
	}
	for i := range wheels {
		wheels[i].Name = strings.ReplaceAll(wheels[i].Name, "-", "_")
	}
	b, _ := newBench(t, locktest.Base{Machine: locktest.ARM64}, wheels...)
	r := locktest.Load(t, b.dir, strings.Replace(locktest.Head, "amd64", "arm64", 1)+"[python]\npackages = [\"chooser\"]\n")
	l, err := b.make(r, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	wantPins(t, l, r, "chooser==1.0 requested", "native==1.0", "only-there==1.0")
	chosen, err := wheelsOf(l, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range chosen {
		if w.Name == "native" && w.File != "native-1.0-cp311-cp311-manylinux_2_17_aarch64.whl" {
			t.Errorf("chose %s", w.File)
		}
	}
	b.fails("[python]\npackages = [\"chooser\"]\n", "linux/amd64")
}

// driftOf is how a recipe differs from a lock and the files beside it as they are now.
func driftOf(f *lock.Files, r *recipe.Recipe) ([]string, error) { return f.Files(r).Drift(r) }

// A lock holds nothing that misleads who reviews it.
func TestLockOfMisleadingNames(t *testing.T) {
	for _, name := range []string{"/usr/bin/\u202enohtyp", "a\u2028b", "\u009b31m"} {
		f := &lock.Files{Lock: &lock.Lock{Python: &lock.Python{Executable: name}}}
		wantError(t, f.Write(t.TempDir()), "holds a character that nobody sees", fmt.Sprintf("%q", name)[1:8])
	}
}
