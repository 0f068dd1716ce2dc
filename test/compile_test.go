package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
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
	tooltest.Path(t, "uv")
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

const (
	wordC = `const char *word(void) { return "open sesame"; }
`
	sayC = `#include <Python.h>
#include <word.h>
static PyObject *say(PyObject *self, PyObject *unused) { return PyUnicode_FromFormat("%s in %d words", word(), WORDS); }
static PyMethodDef methods[] = {{"say", say, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "say", "", -1, methods};
PyMODINIT_FUNC PyInit_say(void) { return PyModule_Create(&module); }
`
	saySetup = `import os
from setuptools import Extension, setup
prefix = os.environ["WORD_PREFIX"]
library = [os.path.join(prefix, "lib")]
extension = Extension("say", ["say.c"], include_dirs=[os.path.join(prefix, "include")], libraries=["word"], library_dirs=library, runtime_library_dirs=library)
setup(name="say", version="1.0", ext_modules=[extension])
`
	sayRecipe = `name = "app"
version = "1"
[base]
image = %q
[source.word]
url = "word.tar.gz"
sha256 = %q
[component.word]
packages = ["less"]
run = """
mkdir -p $PREFIX/lib $PREFIX/include
less word.h > $PREFIX/include/word.h
gcc -shared -fPIC -o $PREFIX/lib/libword.so word.c
"""
[python]
packages = ["say @ ./ext"]
[python.compile.say]
requires = ["setuptools"]
depends = []
%s
`
)

// A package is compiled against a component that it needs, and again when that has come out otherwise: not when only its source has changed.
func TestCompiledPackageNeedsComponent(t *testing.T) {
	begin(t)
	if testing.Short() {
		t.Skip("installs compilers")
	}
	tooltest.Path(t, "uv")
	tools := toolsImage(t)
	p := newPlace(t, ordinary(t))
	newIndex(t).use(p)
	p.write("app/ext/setup.py", saySetup)
	p.write("app/ext/say.c", sayC)
	p.write("app/ext/pyproject.toml", "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n")
	component := func(source, more string) {
		archive := packed(t, "word-1", map[string]string{"word.c": source, "word.h": "#define WORDS 2\nconst char *word(void);\n"})
		p.write("app/word.tar.gz", string(archive))
		p.write("app/sconce.toml", fmt.Sprintf(sayRecipe, tools, store.DigestOf(archive).Hex(), more))
	}
	build := func(when string, compiled int) string {
		t.Helper()
		r := p.making("app")
		wantBuilt(t, when, r, "word")
		if got := ran(r, "compile "); len(got) != compiled {
			t.Errorf("%s: compiled %q, want %d", when, got, compiled)
		}
		return digestOf(t, r)
	}
	component(wordC, "")
	p.fails(1, []string{"WORD_PREFIX"}, "build", "app")
	component("/* from the beginning */\n"+wordC, `needs = ["word"]`)
	first := build("first", 1)
	says := func(want string) {
		t.Helper()
		if r := p.must("run", "app:1", "--", "python", "-c", "import say; print(say.say())"); r.stdout != want+"\n" {
			t.Errorf("%v, want %q", r, want)
		}
	}
	says("open sesame in 2 words")
	component("/* another comment, and the same program */\n"+wordC, `needs = ["word"]`)
	if same := build("a comment", 0); same != first {
		t.Errorf("a comment in the component's source makes another image: %s, before %s", same, first)
	}
	component(strings.Replace(wordC, "open", "shut", 1), `needs = ["word"]`)
	if other := build("another word", 1); other == first {
		t.Error("another component makes the same image")
	}
	says("shut sesame in 2 words")
	p.wantSound()
	p.wantTidy()
}
