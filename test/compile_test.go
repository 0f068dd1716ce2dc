package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const greetC = `#include <Python.h>
static PyObject *greet(PyObject *self, PyObject *unused) { return PyUnicode_FromString("hello from C"); }
static PyMethodDef methods[] = {{"greet", greet, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "greet", "", -1, methods};
PyMODINIT_FUNC PyInit_greet(void) { return PyModule_Create(&module); }
`

const greetSetup = `from setuptools import Extension, setup
setup(name="greet", version="1.0", ext_modules=[Extension("greet", ["greet.c"])])
`

func compiledRecipe(name, base string, packages ...string) string {
	return fmt.Sprintf(`name = %q
version = "1"
[base]
image = %q
[system]
packages = ["gcc", "libc6-dev", "python3-dev"]
[python]
packages = [%s]
[python.compile.greet]
requires = ["setuptools"]
depends = []
[[step]]
run = "python -c 'import greet; print(greet.greet())' > /etc/greeting"
network = false
`, name, base, quoted(packages))
}

// An ordinary user's recipe asks for compilers of the base's distribution and for a package that is only a source: it is built
// once, for this recipe and for another, and again when it changes.
func TestCompiledPackage(t *testing.T) {
	begin(t)
	if testing.Short() {
		t.Skip("installs compilers")
	}
	needs(t, "uv")
	b := base(t)
	p := newPlace(t, ordinary(t))
	newIndex(t).use(p)
	source := func(dir string) {
		p.write(dir+"/ext/setup.py", greetSetup)
		p.write(dir+"/ext/greet.c", greetC)
		p.write(dir+"/ext/pyproject.toml", "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n")
	}
	source("one")
	undeclared := strings.Replace(compiledRecipe("one", b.ref, "greet @ file://"+p.path("one/ext")), "depends = []", "", 1)
	p.write("one/sconce.toml", undeclared)
	p.fails(1, []string{"does not say what it depends on", "depends = []"}, "build", "one")
	p.write("one/sconce.toml", compiledRecipe("one", b.ref, "six", "greet @ ./ext"))
	first := p.must("build", "one")
	if !strings.Contains(first.stderr, "compile greet") {
		t.Errorf("nothing was compiled: %v", first)
	}
	if r := p.must("run", "one:1", "--", "cat", "/etc/greeting"); r.stdout != "hello from C\n" {
		t.Errorf("%v", r)
	}
	if again := p.must("build", "one"); digestOf(t, again) != digestOf(t, first) || !strings.Contains(again.stderr, "up to date") {
		t.Errorf("the second build: %v", again)
	}
	p.must("build", "one", "--wheels", p.path("wheels"))
	if files, err := filepath.Glob(p.path("wheels/greet-1.0-cp311-*.whl")); err != nil || len(files) != 1 {
		t.Errorf("wheels that were written: %q, %v", files, err)
	}
	source("two")
	p.write("two/sconce.toml", compiledRecipe("two", b.ref, "idna", "greet @ ./ext"))
	if other := p.must("build", "two"); strings.Contains(other.stderr, "step compile greet") {
		t.Errorf("another recipe compiles the same again: %v", other)
	}
	p.write("one/ext/greet.c", strings.ReplaceAll(greetC, "hello", "goodbye"))
	p.must("build", "one")
	if r := p.must("run", "one:1", "--", "cat", "/etc/greeting"); r.stdout != "goodbye from C\n" {
		t.Errorf("a changed source is not compiled: %v", r)
	}
	p.wantSound()
	p.wantTidy()
}
