package test

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// exportedSetup is that of a package which can be compiled only where six is.
const exportedSetup = `import os, six
from setuptools import Extension, setup
os.environ["WHOM"] + six.__version__
setup(name="greet", version="1.0", ext_modules=[Extension("greet", ["greet.c"])])
`

// laterSetup is that of a package which can be compiled only where greet is.
const laterSetup = `import greet, os
from setuptools import setup
open("later.py", "w").write("greeting = %r" % (greet.greet() + ", " + os.environ["WHOM"]))
setup(name="later", version="1.0", py_modules=["later"])
`

// whom is a value that shells, builders and TOML would each like to take apart.
const whom = `$USER "world" <<EOF \`

func exportedRecipe(base string) string {
	return fmt.Sprintf(`name = "exported"
version = "1"
[base]
image = %q
[system]
packages = ["less"]
[python]
packages = ["later @ ./later", "greet", "six", "markupsafe"]
[python.compile.greet]
isolation = false
requires = ["setuptools", "six"]
depends = []
env = { WHOM = '%s' }
[python.compile.later]
isolation = false
requires = ["setuptools", "greet"]
depends = []
env = { WHOM = '%s' }
[[step]]
run = "less --version && python -c 'import later; print(later.greeting)' > /etc/greeting"
[image]
env = { GREETING = "/etc/greeting" }
`, base, whom, whom)
}

// proof prints what the image has to say of itself.
const proof = `import greet, importlib.metadata as m, later, os
print(open(os.environ["GREETING"]).read().strip(), greet.__file__.split("/")[2])
print(*sorted(d.name + "==" + d.version for d in m.distributions() if "venv" in str(d._path)))
`

// TestExportedContainerfile builds what was exported: as an ordinary user by sconce, and as root by buildah. Of two packages
// without a wheel, one is compiled against the other, and the first one's build needs a package of the image.
func TestExportedContainerfile(t *testing.T) {
	begin(t)
	if testing.Short() {
		t.Skip("installs compilers")
	}
	needRoot(t)
	tooltest.Path(t, "uv")
	tooltest.Path(t, "buildah")
	host := registrytest.Start(t, false)
	maker := newPlace(t, nil)
	maker.write("uv/Containerfile", "FROM scratch\nCOPY uv /uv\n")
	if err := copyFile(filepath.Join(workshop, "bin", "uv"), maker.path("uv/uv")); err != nil {
		t.Fatal(err)
	}
	maker.must("build", "-f", maker.path("uv/Containerfile"), "-t", "uv:1", maker.path("uv"))
	maker.must("push", "uv:1", host+"/uv:1")
	maker.must("push", toolsImage(t), host+"/tools:1")

	ix := newIndex(t)
	ix.dir = exportedPackages(t, ix.dir)
	p := newPlace(t, ordinary(t))
	ix.use(p)
	p.write("app/sconce.toml", exportedRecipe("docker://"+host+"/tools:1"))
	p.write("app/later/setup.py", laterSetup)
	p.must("lock", "app")
	p.must("export", "containerfile", "app", "--locked", "--uv", host+"/uv:1", "-o", p.path("app/Containerfile"))
	want := "hello from C, " + whom + " venv\nMarkupSafe==3.0.4 greet==1.0 later==1.0 six==1.17.0\n"

	if !strings.Contains(p.read("app/Containerfile"), " less=") {
		t.Error("no package of the distribution is installed")
	}
	p.must("build", "-f", p.path("app/Containerfile"), "--network", "host", "-t", "exported:1", p.path("app")) // the index is on this machine's localhost
	if r := p.must("run", "exported:1", "--", "python", "-c", proof); r.stdout != want {
		t.Errorf("by sconce, as an ordinary user: %v", r)
	}
	p.wantSound()
	p.wantTidy()

	c := &conformance{}
	var err error
	if c.dir, err = os.MkdirTemp(workshop, "buildah-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.RemoveAll(c.dir) })
	if err := os.WriteFile(filepath.Join(c.dir, "policy.json"), []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	buildah := func(args ...string) string {
		t.Helper()
		out, err := c.buildah(t, args...)
		if err != nil {
			t.Fatalf("buildah %s: %v\n%s", args[0], err, tail(out))
		}
		return strings.TrimSpace(out)
	}
	buildah("bud", "--tls-verify=false", "--format=docker", "-f", p.path("app/Containerfile"), "-t", "exported", p.path("app"))
	buildah("from", "--pull=never", "--name", "exported-1", "localhost/exported")
	if out := buildah("run", "exported-1", "--", "python", "-c", proof); out+"\n" != want {
		t.Errorf("by buildah: %s", out)
	}
}

// exportedPackages makes a directory for an index: the source of greet, and those wheels that the test needs.
func exportedPackages(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	for _, pattern := range []string{"six-*", "setuptools-*", "markupsafe-*"} {
		files, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := copyFile(f, filepath.Join(dir, filepath.Base(f))); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := newTarLayer(t)
	l.add(tar.Header{Name: "greet-1.0", Typeflag: tar.TypeDir}, "")
	l.file("greet-1.0/PKG-INFO", "Metadata-Version: 2.2\nName: greet\nVersion: 1.0\n")
	l.file("greet-1.0/setup.py", exportedSetup)
	l.file("greet-1.0/greet.c", greetC)
	layer, err := l.gzipped().Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	out, err := os.Create(filepath.Join(dir, "greet-1.0.tar.gz"))
	if err == nil {
		_, err = out.ReadFrom(layer)
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
