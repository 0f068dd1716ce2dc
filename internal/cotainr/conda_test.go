package cotainr

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
)

// backend builds the wheel of an extension, of a module that says what it was built with: torch stands for what the first file brings.
const backend = `import os, zipfile, torch
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "extension-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as z:
        z.writestr("extension.py", "BUILT = %r" % ("with torch " + torch.__version__ + ", level " + os.environ["LEVEL"]))
        z.writestr("extension-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: extension\nVersion: 1.0\n")
        z.writestr("extension-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("extension-1.0.dist-info/RECORD", "")
    return name
`

// Two files in a row, on a base with a conda of its own, which stays as it is and in nobody's way, become one environment where cotainr
// has it, active from the start, and the files lie in the image's root. What --lock wrote builds the same with --locked, and nothing lies
// beside the image without it.
func TestEnvironments(t *testing.T) {
	locktest.UV(t)
	if testing.Short() {
		t.Skip("makes packages of a whole Python")
	}
	channel := condatest.NewChannel(t, condatest.LeanPython(t),
		condatest.Package{
			Name: "greet", Version: "1.0", Noarch: "python", Depends: []string{"python"}, EntryPoints: []string{"greet = greet:main"},
			Files: map[string]condatest.File{
				"site-packages/greet.py":                     {Data: "def main():\n    print('hello')\n"},
				"site-packages/greet-1.0.dist-info/METADATA": {Data: "Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n"},
				"site-packages/greet-1.0.dist-info/RECORD":   {},
			},
		},
		condatest.Package{Name: "pip", Version: "25.0", Noarch: "python", Depends: []string{"python"}, EntryPoints: []string{"pip = pip:main"}, Files: map[string]condatest.File{
			"site-packages/pip.py":                      {Data: "def main():\n    print('pip of conda')\n"},
			"site-packages/pip-25.0.dist-info/METADATA": {Data: "Metadata-Version: 2.1\nName: pip\nVersion: 25.0\n"},
			"site-packages/pip-25.0.dist-info/RECORD":   {},
		}},
		condatest.Package{Name: "word", Version: "2.0", Subdir: condatest.Subdir(), Files: map[string]condatest.File{
			"etc/word.conf": {Data: condatest.Placeholder + "\n"},
		}},
		condatest.Package{Name: "conda", Version: "26.7.1", Noarch: "generic", Files: map[string]condatest.File{
			"share/client/conda": {Data: "conda\n"}, "bin/conda": {Data: "#!/bin/sh\necho conda \"$@\"\n", Mode: 0o755},
		}},
		condatest.Package{Name: "mamba", Version: "2.8.1", Noarch: "generic", Files: map[string]condatest.File{"share/client/mamba": {Data: "mamba\n"}}},
	).Serve(t)
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(systemsVariable, "")
	t.Setenv("CONDA_CHANNELS", channel.URL) // the client comes from the usual channels
	if err := os.WriteFile("root.tar", condatest.Root(t), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, "more/opt/conda/conda-meta/history", "==> 2026-01-01 00:00:00 <==\n")
	write(t, "more/opt/conda/bin/python", "#!/bin/sh\necho that of the base\n")
	if text, err := exec.Command("tar", "-rf", "root.tar", "-C", "more", "opt").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	index := locktest.NewIndex(t, locktest.Wheel{Name: "torch", Version: "2.7.0"})
	write(t, "uv.toml", "[[index]]\nurl = \""+index.URL+"\"\ndefault = true\n")
	write(t, "first.yml", "channels: ["+channel.URL+", nodefaults]\ndependencies: [python, greet, pip: [torch]]\nvariables: {LEVEL: 3, PIP_NO_BUILD_ISOLATION: 0}\n")
	write(t, "sub/sec*nd.yml", "channels: ["+channel.URL+", nodefaults]\ndependencies: [word, pip: [\"extension @ ./extension\"]]\n")
	write(t, "sub/extension/pyproject.toml", "[project]\nname = \"extension\"\nversion = \"1.0\"\n[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n")
	write(t, "sub/extension/backend.py", backend)

	var out, errs bytes.Buffer
	a := newApp(t, &out, &errs)
	a.online = true
	run := func(line string) {
		t.Helper()
		out.Reset()
		errs.Reset()
		if code := a.Run(t.Context(), strings.Fields(line)); code != 0 {
			t.Fatalf("%s: code %d\n%s%s", line, code, &out, &errs)
		}
	}
	run("build --base-image tar:root.tar --conda-env first.yml sub/sec*nd.yml app.sif")
	for _, want := range []string{"Cotainr:-: Installing Conda environment: " + filepath.Join(dir, "first.yml") + "\n", "Finished building " + filepath.Join(dir, "app.sif")} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	f, err := source.OpenClusterFile(filepath.Join(dir, "app.sif"))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.FS.Info().Compressor; got == squashfs.Stored {
		t.Errorf("the file's compression is %s", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	script := "set -e; greet; pip; cat /opt/conda/conda-meta/history; echo $LEVEL $CONDA_PREFIX $CONDA_DEFAULT_ENV; cat $CONDA_PREFIX/etc/word.conf; ls /*.yml; python -c 'import extension; print(extension.BUILT)'"
	want := "hello\npip of conda\n==> 2026-01-01 00:00:00 <==\n3 " + prefix + " conda_container_env\n" + prefix + "\n/first.yml\n/sec*nd.yml\nwith torch 2.7.0, level 3"
	if got := a.runIn(t, "app.sif", "/bin/sh", "-c", script); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got := a.runIn(t, "app.sif", "cat", "/opt/cotainr/conda-lock.yml"); !strings.Contains(got, channel.URL+"/noarch/greet-1.0-py_0.conda") || strings.Contains(got, dir) {
		t.Errorf("the lock in the image:\n%s", got)
	}
	if left, _ := filepath.Glob("*lock*"); left != nil {
		t.Errorf("locks that nobody asked for: %q", left)
	}

	run("build locked.tar --conda-client --lock app.lock --base-image tar:root.tar --conda-env first.yml sub/sec*nd.yml")
	first := read(t, "app.lock")
	for _, name := range []string{"app.lock", "app.conda-lock.yml", "pylock.app.toml"} {
		if strings.Contains(read(t, name), dir) {
			t.Errorf("%s names a directory of this machine:\n%s", name, read(t, name))
		}
	}
	elsewhere := t.TempDir()
	if err := os.CopyFS(elsewhere, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	t.Chdir(elsewhere)
	run("build again.tar --conda-client --lock app.lock --locked --base-image tar:root.tar --conda-env first.yml sub/sec*nd.yml")
	if got := a.runIn(t, "again.tar", "/bin/sh", "-c", "ls $CONDA_PREFIX/share/client"); got != "conda\nmamba" {
		t.Errorf("the client is %q", got)
	}
	if got := a.runIn(t, "again.tar", "/bin/sh", "-c", ". /opt/cotainr/conda/bin/activate && conda list && /opt/cotainr/conda/bin/conda info"); got != "conda list\nconda info" {
		t.Errorf("the client says %q", got)
	}
	if read(t, "app.lock") != first {
		t.Error("--locked wrote the lock")
	}
	write(t, "first.yml", "channels: ["+channel.URL+", nodefaults]\ndependencies: [python]\n")
	if code := a.Run(t.Context(), strings.Fields("build again2.tar --lock app.lock --locked --base-image tar:root.tar --conda-env first.yml")); code != 1 || !strings.Contains(errs.String(), "does not fit") {
		t.Errorf("code %d, %s", code, &errs)
	}
}

// A channel with terms of use is taken by who accepts them with the option that the error names.
func TestLicensedChannel(t *testing.T) {
	locktest.UV(t)
	channel := condatest.NewChannel(t, condatest.Package{Name: "word", Version: "2.0", Noarch: "generic", Files: map[string]condatest.File{"etc/word.conf": {Data: "licensed\n"}}}).Serve(t)
	t.Chdir(t.TempDir())
	t.Setenv(systemsVariable, "")
	t.Setenv("RATTLER_HOME", ".")
	write(t, "config.toml", "[mirrors]\n\"https://repo.anaconda.com/pkgs/main\" = [\""+channel.URL+"\"]\n")
	write(t, "env.yml", "channels: [https://repo.anaconda.com/pkgs/main, nodefaults]\ndependencies: [word]\n")
	if err := os.WriteFile("root.tar", condatest.Root(t), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	a := newApp(t, &out, &errs)
	a.online = true
	line := "build app.sif --base-image tar:root.tar --conda-env env.yml"
	code := a.Run(t.Context(), strings.Fields(line))
	if told := errs.String(); code != 1 || !strings.Contains(told, "Anaconda's terms of service") || !strings.Contains(told, "--accept-licenses") || strings.Contains(told, "[conda]") {
		t.Errorf("code %d\n%s%s", code, &out, &errs)
	}
	if asked := channel.Requests(); len(asked) > 0 {
		t.Errorf("before that, the channel was asked for %q", asked)
	}
	errs.Reset()
	if code := a.Run(t.Context(), strings.Fields(line+" --accept-licenses")); code != 0 || !strings.Contains(errs.String(), "Anaconda's terms of service") {
		t.Errorf("accepted: code %d\n%s%s", code, &out, &errs)
	}
	if got := a.runIn(t, "app.sif", "cat", prefix+"/etc/word.conf"); got != "licensed" {
		t.Errorf("the package is %q", got)
	}
}

// runIn runs a command in an image as `sconce run` does: with the image's own environment and nothing else.
func (a *testApp) runIn(t *testing.T, name string, args ...string) string {
	t.Helper()
	s, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	subject, err := s.Open("./"+name, engine.Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	im, err := subject.ImportToRun(t.Context(), func(v1.Platform) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	root, err := s.Root(t.Context(), im)
	if err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	o := root.Options
	o.Args, o.Env, o.Stdout, o.Stderr, o.NoNetwork = args, root.Config.Config.Env, &out, &log, true
	code, err := sandbox.Run(t.Context(), o)
	if err != nil || code != 0 {
		t.Fatalf("%q: %d %v\n%s%s", args, code, err, &out, &log)
	}
	return strings.TrimSpace(out.String())
}
