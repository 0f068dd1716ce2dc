package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/cpython"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/sandbox"
)

// condaChannel has a real Python, a package for any Python, one with a library, one that is activated and linked by scripts.
func condaChannel(t *testing.T) *condatest.Server {
	t.Helper()
	py := condatest.LeanPython(t)
	needsPython := "python " + condatest.PythonMinor(t) + ".*"
	c := condatest.NewChannel(t, py,
		condatest.Package{
			Name: "greet", Version: "1.0", Noarch: "python", Depends: []string{"python"}, EntryPoints: []string{"greet = greet:main"},
			Files: map[string]condatest.File{
				"site-packages/greet.py":                     {Data: "def main():\n    print('hello')\n"},
				"site-packages/greet-1.0.dist-info/METADATA": {Data: "Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n"},
				"site-packages/greet-1.0.dist-info/RECORD":   {},
			},
		},
		condatest.Package{Name: "libword", Version: "2.0", Subdir: condatest.Subdir(), Files: map[string]condatest.File{
			"include/word.h": {Data: "#define WORD \"from libword\"\n"},
			"etc/word.conf":  {Data: "prefix = " + condatest.Placeholder + "\n"},
		}},
		condatest.Package{Name: "hooks", Version: "1.0", Subdir: condatest.Subdir(), Files: map[string]condatest.File{
			"etc/conda/activate.d/hooks.sh": {Data: "export HOOKS_DIR=\"$CONDA_PREFIX/share/hooks\"\nexport HOOKS_HOME=\"$HOME/x\"\nexport PATH=\"$PATH:/opt/hooks/bin\"\n"},
			"bin/.hooks-post-link.sh":       {Data: "echo \"linked in $PREFIX for $PKG_NAME\" > \"$PREFIX/share.hooks\"\n"},
		}},
		condatest.Package{Name: "extra", Version: "1.0", Noarch: "generic", Depends: []string{"libword"}, Files: map[string]condatest.File{"share/extra": {Data: "extra\n"}}},
		condatest.Package{Name: "needs", Version: "1.0", Subdir: condatest.Subdir(), Depends: []string{needsPython}},
	)
	return c.Serve(t)
}

// condaRecipe writes a recipe on a base without Python.
func condaRecipe(t *testing.T, text string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("root.tar", condatest.Root(t))
	write(recipe.FileName, []byte("name = \"env\"\n[base]\nimage = \"tar:root.tar\"\n"+text))
	for name, text := range files {
		write(name, []byte(text))
	}
	return dir
}

// runIn runs a command in an image as `sconce run` does: with the image's own environment and nothing else.
func runIn(t *testing.T, s *engine.Session, im *image.Image, args ...string) string {
	t.Helper()
	layers, err := sandbox.Layers(t.Context(), s.Store, im.Layers)
	if err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	code, err := sandbox.Run(t.Context(), sandbox.Options{Layers: layers, Args: args, Env: im.Config.Config.Env, Stdout: &out, Stderr: &log, NoNetwork: true})
	if err != nil || code != 0 {
		t.Fatalf("%q: %d %v\n%s%s", args, code, err, out.String(), log.String())
	}
	return strings.TrimSpace(out.String())
}

// From an environment file to an image that runs, on a base that has neither Python nor conda.
func TestCondaEnvironment(t *testing.T) {
	locktest.UV(t)
	server := condaChannel(t)
	dir := condaRecipe(t, "[conda]\nenvironment = [\"environment.yml\"]\n", map[string]string{
		"environment.yml": "channels: [" + server.URL + ", nodefaults]\ndependencies: [python, greet, libword, hooks]\nvariables: {WORD_LEVEL: 3}\n",
	})
	s := newSession(t)
	first, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := runIn(t, s, first.Image, "greet"); got != "hello" {
		t.Errorf("greet: %q", got)
	}
	if got := runIn(t, s, first.Image, "cat", "/opt/conda/etc/word.conf", "/opt/conda/share.hooks"); got != "prefix = /opt/conda\nlinked in /opt/conda for hooks" {
		t.Errorf("got %q", got)
	}
	got := runIn(t, s, first.Image, "python", "-c", "import os, sys, greet; print(sys.prefix, greet.__cached__.endswith('.pyc') and os.path.exists(greet.__cached__))\nfor n in 'CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL WORD_LEVEL HOOKS_DIR HOOKS_HOME PATH'.split(): print(os.environ.get(n))")
	want := "/opt/conda True\n/opt/conda\nbase\n1\n3\n/opt/conda/share/hooks\nNone\n/opt/conda/bin:"
	if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, ":/opt/hooks/bin") {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// What activation sets for each user anew, and functions that it defines, are there when a container starts: for a program, for a
// shell and for its children, whatever the runtime reads. What the image has keeps its value.
func TestCondaStart(t *testing.T) {
	hooks := condatest.Package{Name: "hooks", Version: "1.0", Noarch: "generic", Files: map[string]condatest.File{
		"etc/conda/activate.d/hooks.sh": {Data: `echo noise
export HOOKS_HOME="$HOME/it's \$x
two" HOOKS_MORE="${HOOKS_MORE:-}$USER:" HOOKS_DIR=/hooks PATH="$PATH:/opt/hooks/bin"
hooks_greet() { echo "hello, $1"; }
_helper() { :; }
`},
	}}
	channel := condatest.NewChannel(t, hooks).Serve(t)
	locktest.UV(t)
	dir := condaRecipe(t, "[conda]\npackages = [\"hooks\"]\nchannels = [\""+channel.URL+"\"]\n", nil)
	s := newSession(t)
	var events locktest.Events
	built, err := build(progress.With(t.Context(), &events), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := events.Everything(); !strings.Contains(text, "depend on the user (HOOKS_HOME, HOOKS_MORE) and define functions of the shell (hooks_greet), and are sourced whenever a container starts") {
		t.Errorf("warnings:\n%s", text)
	}
	c := built.Image.Config.Config
	const program = "/opt/conda/etc/conda/start"
	if got := fmt.Sprintf("%q %s", c.Entrypoint, c.Labels[image.LabelStart]); got != "[\""+program+"\"] "+program {
		t.Errorf("entrypoint and label: %s", got)
	}
	in := func(env []string, args ...string) string {
		t.Helper()
		saved := built.Image.Config.Config.Env
		defer func() { built.Image.Config.Config.Env = saved }()
		built.Image.Config.Config.Env = append(slices.Clone(saved), append(env, "HOME=/home/me", "USER=me")...)
		return runIn(t, s, built.Image, args...)
	}
	const show = `echo "$HOOKS_HOME|$HOOKS_MORE|$HOOKS_DIR|${PATH##*/usr/bin:}"`
	const want = "/home/me/it's $x\ntwo|me:|/hooks|/sbin:/bin:/opt/hooks/bin"
	withoutBash := []string{"BASH_ENV="}
	for _, test := range []struct {
		what string
		env  []string
		args []string
		want string
	}{
		{"the entrypoint", nil, []string{program, "/bin/busybox", "sh", "-c", show}, want},
		{"a shell of another kind", withoutBash, []string{"/bin/busybox", "sh", "-c", ". " + program + ".sh; . " + program + ".sh; " + show}, want},
		{"bash by itself", nil, []string{"bash", "-c", show}, want},
		{"bash below bash", nil, []string{"bash", "-c", "bash -c '" + show + "'; :"}, want},
		{"functions", nil, []string{program, "bash", "-c", "hooks_greet you"}, "hello, you"},
		{"what the user wants", []string{"HOOKS_DIR=/mine"}, []string{program, "/bin/busybox", "sh", "-c", "echo $HOOKS_DIR"}, "/mine"},
	} {
		if got := in(test.env, test.args...); got != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}

// environment writes an environment file for a channel.
func environmentFile(channel, rest string) string {
	return "channels: [" + channel + ", nodefaults]\n" + rest
}

// What a lock pins is built again without asking anybody, the same in another store; one package more is one layer of packages
// more; what changes beside the recipe is told line by line.
func TestCondaLock(t *testing.T) {
	locktest.UV(t)
	server := condaChannel(t)
	dir := condaRecipe(t, "[conda]\nenvironment = [\"environment.yml\"]\nlink-scripts = []\n", map[string]string{
		"environment.yml": environmentFile(server.URL, "dependencies: [python, greet, libword]\n"),
	})
	s := newSession(t)
	first, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	server.Requests()
	again, err := build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
	if err != nil || !again.Fresh || again.Image.Digest != first.Image.Digest {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	if asked := server.Requests(); len(asked) > 0 {
		t.Errorf("with nothing to do, the channel was asked for %q", asked)
	}
	elsewhere, err := build(t.Context(), newSession(t), dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
	if err != nil || elsewhere.Image.Digest != first.Image.Digest {
		t.Errorf("in another store: %v, %v", elsewhere, err)
	}

	locktest.Write(t, dir, map[string]string{"environment.yml": environmentFile(server.URL, "dependencies: [python, greet, libword, extra]\n")})
	_, err = build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
	if err == nil || !strings.Contains(err.Error(), "+ conda.environment environment.yml (") {
		t.Errorf("--locked: %v", err)
	}
	more, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, l := range first.Image.Layers {
		known[string(l.Digest)] = true
	}
	var fresh []string
	for _, l := range more.Image.Layers {
		if !known[string(l.Digest)] {
			fresh = append(fresh, string(l.Digest))
		}
	}
	if len(fresh) != 2 { // that of the package, and that of the environment, whose history it is in
		t.Errorf("one package more: %d new layers, %q", len(fresh), fresh)
	}

	file := filepath.Join(dir, "conda-lock.yml")
	text := read(t, file)
	locktest.Write(t, dir, map[string]string{"conda-lock.yml": text + "# mine\n"})
	_, err = build(t.Context(), s, dir, engine.PlanOptions{Locked: true}, engine.BuildOptions{})
	if err == nil || !strings.Contains(err.Error(), "conda-lock.yml (it was changed by hand)") {
		t.Errorf("changed by hand: %v", err)
	}

	// The lock that was written is also one that a user may bring.
	locktest.Write(t, dir, map[string]string{
		"conda-lock.yml": text, recipe.FileName: "name = \"env\"\n[base]\nimage = \"tar:root.tar\"\n[conda]\nlock = \"conda-lock.yml\"\nlink-scripts = []\n",
	})
	own, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := runIn(t, s, own.Image, "greet"); got != "hello" {
		t.Errorf("from the user's own lock: %q", got)
	}

	// What it has for pip is not left out without a word.
	locktest.Write(t, dir, map[string]string{"conda-lock.yml": text + "  - name: einops\n    version: 0.8.1\n    manager: pip\n    platform: " +
		condatest.Subdir() + "\n    url: https://host/einops-0.8.1-py3-none-any.whl\n    category: main\n"})
	_, err = build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err == nil || !strings.Contains(err.Error(), "einops==0.8.1") {
		t.Errorf("a Python package in the user's own lock: %v", err)
	}
}

// wordBackend builds a wheel by a backend in the source. It works only where conda's header, a package from the first file and the
// first file's variable are.
const wordBackend = `import os, sys, zipfile, alpha
prefix = os.environ["CONDA_PREFIX"]
word = open(prefix + "/include/word.h").read().split('"')[1]
level = os.environ["WORD_LEVEL"]
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "ext-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as z:
        z.writestr("ext.py", "WORD = %r\n" % ("%s %s %s" % (word, level, alpha.__version__)))
        z.writestr("ext-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ext\nVersion: 1.0\n")
        z.writestr("ext-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("ext-1.0.dist-info/RECORD", "ext.py,,\next-1.0.dist-info/METADATA,,\next-1.0.dist-info/WHEEL,,\next-1.0.dist-info/RECORD,,\n")
    return name
`

// Two files, one on top of the other: what the second one builds sees what the first one has installed and set; what conda brings is
// not brought again by the index; all of it is what pip's own metadata reader finds. The second file does not name its package.
func TestCondaChain(t *testing.T) {
	locktest.UV(t)
	server := condaChannel(t)
	x := locktest.NewIndex(t, locktest.Wheel{Name: "alpha", Version: "1.5", Requires: []string{"greet>=1"}, Files: map[string]string{"alpha-1.5.data/data/etc/word.conf": "mine\n"}},
		locktest.Wheel{Name: "greet", Version: "9.0"}, locktest.Wheel{Name: "beta", Version: "0.1"})
	dir := condaRecipe(t, "[conda]\nenvironment = [\"a.yml\", \"b.yml\"]\n[python]\npackages = [\"beta\"]\n", map[string]string{
		"uv.toml": "[[index]]\nurl = \"" + x.URL + "\"\ndefault = true\n",
		"a.yml": environmentFile(server.URL, "dependencies:\n- python\n- greet\n- libword\n- pip: [alpha]\n"+
			"variables: {PIP_NO_BUILD_ISOLATION: 0, WORD_LEVEL: high}\n"),
		"b.yml": environmentFile(server.URL, "dependencies:\n- pip: [./extension]\n"),
	})
	if err := os.Mkdir(filepath.Join(dir, "extension"), 0o755); err != nil {
		t.Fatal(err)
	}
	locktest.Write(t, filepath.Join(dir, "extension"), map[string]string{
		"pyproject.toml": "[project]\nname = \"ext\"\nversion = \"1.0\"\n[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
		"backend.py":     wordBackend,
	})
	s := newSession(t)
	var events locktest.Events
	built, err := build(progress.With(t.Context(), &events), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "the Python package alpha replaces etc/word.conf of the conda package libword"; !strings.Contains(events.Everything(), want) {
		t.Errorf("not told: %s\n%s", want, events.Everything())
	}
	got := runIn(t, s, built.Image, "python", "-c", "import ext, alpha, greet, os\nprint(ext.WORD, '|', os.path.realpath(greet.__file__))\nfrom importlib.metadata import distributions\nprint(*sorted(d.metadata['Name'] + ' ' + d.version for d in distributions()))")
	want := "from libword high 1.5 | /opt/conda/lib/python" + condatest.PythonMinor(t) + "/site-packages/greet.py\nalpha 1.5 beta 0.1 ext 1.0 greet 1.0"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	pylock, err := os.ReadFile(filepath.Join(dir, "pylock.toml"))
	if err != nil || strings.Contains(string(pylock), "greet") {
		t.Errorf("the package lock has what conda brings: %v\n%s", err, pylock)
	}

	// The lock for others has the wheels besides, and says what it cannot have; of the image it has what conda-meta says.
	r, err := engine.LoadRecipe(dir, engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	given, err := s.CondaLock(t.Context(), r, true)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, w := range given.Platforms[0].Wheels {
		names = append(names, w.Name+" "+w.Version)
	}
	if got := strings.Join(names, ", ") + "; " + strings.Join(given.Left, ", "); got != "alpha 1.5, beta 0.1; ext 1.0" {
		t.Errorf("for others: %s", got)
	}
	subject, err := s.Open("env:latest", engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	found, err := subject.CondaLock(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if got := runIn(t, s, built.Image, "cat", "/opt/conda-lock.yml"); got != strings.Replace(strings.TrimSpace(read(t, filepath.Join(dir, "conda-lock.yml"))), "\n    - a.yml\n    - b.yml", " []", 1) {
		t.Errorf("the lock in the image:\n%s", got)
	}
	if got, want := string(found.Platforms[0].Explicit()), string(given.Platforms[0].Explicit()); got != want || !strings.Contains(got, "/greet-1.0-py_0.conda#") {
		t.Errorf("the image has\n%sand the recipe\n%s", got, want)
	}

	// Another version than conda's is a conflict that names both.
	locktest.Write(t, dir, map[string]string{"b.yml": environmentFile(server.URL, "dependencies:\n- pip: [\"greet>=9\"]\n")})
	_, err = build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err == nil || !strings.Contains(err.Error(), "greet==1.0+conda") || !strings.Contains(err.Error(), "greet>=9") {
		t.Errorf("two versions of greet: %v", err)
	}

	// So is a lock of Python packages that was not made for what conda brings.
	locktest.Write(t, dir, map[string]string{
		recipe.FileName: "name = \"env\"\n[base]\nimage = \"tar:root.tar\"\n[conda]\npackages = [\"python\", \"greet\"]\nchannels = [\"" + server.URL + "\"]\n[python]\nlock = \"own.toml\"\n",
		"own.toml":      x.Pylock(t, locktest.Wheel{Name: "beta", Version: "0.1"}, locktest.Wheel{Name: "greet", Version: "9.0"}),
	})
	_, err = build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err == nil || !strings.Contains(err.Error(), "own.toml has greet 9.0, which the conda package greet-1.0-py_0.conda brings in version 1.0") || fault.HintOf(err) != "take it out of one of the two" {
		t.Errorf("a lock with another greet: %v", err)
	}
	locktest.Write(t, dir, map[string]string{"own.toml": x.Pylock(t, locktest.Wheel{Name: "beta", Version: "0.1"})})
	if _, err = build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{}); err != nil {
		t.Errorf("a lock without it: %v", err)
	}
}

// An image for another processor is put together without running any of it: what would have to run is told. Byte code comes from this
// machine's Python, which is of the same version.
func TestCondaForeign(t *testing.T) {
	locktest.UV(t)
	other, platform := "linux-aarch64", "linux/arm64"
	if condatest.Subdir() == other {
		other, platform = "linux-64", "linux/amd64"
	}
	py := condatest.LeanPython(t) // of this machine: nobody may start it
	py.Subdir = other
	c := condatest.NewChannel(t, py,
		condatest.Package{Name: "greet", Version: "1.0", Noarch: "python", Depends: []string{"python"}, Files: map[string]condatest.File{"site-packages/greet.py": {Data: "x = 1\n"}}},
		condatest.Package{Name: "hooks", Version: "1.0", Subdir: other, Files: map[string]condatest.File{
			"etc/conda/activate.d/hooks.sh": {Data: "export HOOKS=1\n"}, "bin/.hooks-post-link.sh": {Data: "exit 1\n"},
		}})
	server := c.Serve(t)
	machine := map[string]uint16{"linux/amd64": locktest.AMD64, "linux/arm64": locktest.ARM64}[platform]
	dir := condaRecipe(t, "[target]\nplatform = \""+platform+"\"\n[conda]\npackages = [\"python\", \"greet\", \"hooks\"]\nchannels = [\""+server.URL+"\"]\n", map[string]string{"root.tar": string(locktest.Base{Machine: machine}.Tar(t))})
	var events locktest.Events
	s := newSession(t)
	if _, err := build(t.Context(), s, dir, engine.PlanOptions{}, engine.BuildOptions{}); err != nil {
		t.Fatal(err)
	}
	// Also when all of it has been made before.
	locktest.Write(t, dir, map[string]string{recipe.FileName: read(t, filepath.Join(dir, recipe.FileName)) + "[image]\nlabels = { a = \"b\" }\n"})
	built, err := build(progress.With(t.Context(), &events), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if built.Platform != platform {
		t.Errorf("it is for %s", built.Platform)
	}
	for _, want := range []string{"link scripts of conda packages are not run", "activation scripts of conda packages are not run"} {
		if !strings.Contains(events.Everything(), want) {
			t.Errorf("not told: %s\n%s", want, events.Everything())
		}
	}
	tree, err := built.Image.Tree(t.Context(), s.Store)
	if err != nil {
		t.Fatal(err)
	}
	version := conda.PythonOf([]conda.Package{{Name: "python", Version: py.Version}})
	pyc := "opt/conda/" + version.SitePackages + "/__pycache__/greet." + cpython.CacheTag(version.Version) + ".pyc"
	if _, err := tree.Lookup(pyc); err != nil {
		t.Errorf("%v\n%s", err, events.Everything())
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
