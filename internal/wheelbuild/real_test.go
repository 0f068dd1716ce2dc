package wheelbuild_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
	"sconce.dev/sconce/internal/wheelbuild"
)

// storeEnv names a directory that keeps the store of these tests from run to run, base included.
const storeEnv = "SCONCE_TEST_STORE"

func TestMain(m *testing.M) {
	sandbox.Init()
	code := m.Run()
	if shared.dir != "" {
		if err := store.RemoveAll(shared.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// shared is the store that all tests use: its base takes half a minute to make.
var shared struct {
	once sync.Once
	dir  string // to be removed
	path string
}

// bench locks recipes on a real Debian with a compiler, and builds what they have to compile.
type bench struct {
	t     *testing.T
	store *store.Store
	runs  runs
	ctx   context.Context
}

func newBench(t *testing.T) *bench {
	t.Helper()
	if testing.Short() {
		t.Skip("bootstraps a base with a compiler, which takes a minute")
	}
	tooltest.Path(t, "uv")
	shared.once.Do(func() {
		if shared.path = os.Getenv(storeEnv); shared.path != "" {
			return
		}
		dir, err := os.MkdirTemp("", "sconce-wheelbuild-*")
		if err != nil {
			t.Fatal(err)
		}
		shared.dir, shared.path = dir, dir
	})
	st, err := store.Open(t.Context(), shared.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	b := &bench{t: t, store: st}
	b.ctx = progress.With(t.Context(), &b.runs)
	return b
}

// runs counts the commands that were run in the sandbox.
type runs struct {
	mu    sync.Mutex
	count int
	lines []string
}

func (r *runs) Emit(e progress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Kind == progress.Start && e.Verb == "step" {
		r.count++
	}
	if e.Kind == progress.Log {
		r.lines = append(r.lines, e.Text)
	}
}

func (r *runs) taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.count
	r.count = 0
	return n
}

const baseTable = "[base]\nbootstrap = { suite = \"bookworm\", packages = [\"python3-dev\", \"gcc\", \"g++\", \"libc6-dev\", \"ccache\"] }\n"

// built is what came of a recipe.
type built struct {
	ground   wheelbuild.Ground
	compiles []lock.Compile
	items    []python.Item
}

// reuseBase puts an earlier lock beside the recipe, whose base counts as long as the recipe asks for the same: resolving one
// takes longer than most of what is tested here.
func (b *bench) reuseBase(dir string) {
	b.t.Helper()
	kept := filepath.Join(shared.path, "test-base.lock")
	name := filepath.Join(dir, "sconce.lock")
	if _, err := os.Stat(name); err == nil {
		if _, err := os.Stat(kept); err != nil {
			copyFile(b.t, name, kept)
		}
		return
	}
	if _, err := os.Stat(kept); err == nil {
		copyFile(b.t, kept, name)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// build locks the recipe in dir and builds what it has to compile.
func (b *bench) build(dir, text string) (*built, error) {
	b.t.Helper()
	return b.buildOn(dir, baseTable+text)
}

func (b *bench) buildOn(dir, text string) (*built, error) {
	b.t.Helper()
	write(b.t, dir, map[string]string{"sconce.toml": "name = \"test\"\n" + text})
	b.reuseBase(dir)
	r, err := recipe.Load(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	client := fetch.New(b.store, fetch.Options{})
	f, err := lock.Update(b.ctx, r, lock.Options{Store: b.store, Fetch: client})
	if err != nil {
		return nil, err
	}
	l, err := f.Locked(r)
	if err != nil {
		return nil, err
	}
	made := &built{ground: b.ground(r, l, client), compiles: l.Compiles}
	builder := &wheelbuild.Builder{
		Runner: &execop.Runner{Store: b.store, Layer: layer.Options{ModTime: layer.DefaultModTime, Compression: layer.None}}, Fetch: client,
		Jobs: wheelbuild.NewJobs(host.AvailableCores().Available, host.AvailableMemory().Available),
	}
	var packages []wheelbuild.Package
	for _, c := range made.compiles {
		packages = append(packages, c.Package)
	}
	ground := func(p wheelbuild.Package) (wheelbuild.Ground, error) {
		on := made.ground
		if p.Isolated {
			on.Layers = on.Layers[:1]
		}
		return on, nil
	}
	lay := func(it python.Item) (layer.Descriptor, error) {
		return b.layers(made.ground, []python.Item{it})[0], nil
	}
	made.items, err = builder.BuildAll(b.ctx, packages, ground, lay)
	return made, err
}

func (b *bench) mustBuild(dir, text string) *built {
	b.t.Helper()
	made, err := b.build(dir, text)
	if err != nil {
		b.t.Fatalf("%v\nhint: %s\n%s", err, fault.HintOf(err), strings.Join(b.runs.lines, "\n"))
	}
	return made
}

// ground is the base with the layers of the lock's wheels.
func (b *bench) ground(r *recipe.Recipe, l *lock.Locked, client *fetch.Client) wheelbuild.Ground {
	b.t.Helper()
	platform := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	im, err := l.Base.Image(b.ctx, r.BaseReference(), platform, base.Options{Store: b.store, Fetch: client})
	if err != nil {
		b.t.Fatal(err)
	}
	g := wheelbuild.Ground{Layers: im.Layers, Python: l.Python.Interpreter(), Root: "opt/venv", SystemSite: l.Python.SystemSitePackages}
	for _, w := range l.Wheels {
		if err := client.Blob(b.ctx, fetch.Request{URL: w.URL, Digest: w.Digest, Size: w.Size}); err != nil {
			b.t.Fatal(err)
		}
		g.Items = append(g.Items, w.Item)
	}
	g.Layers = append(slices.Clone(g.Layers), b.layers(g, g.Items)...)
	return g
}

func (b *bench) layers(g wheelbuild.Ground, items []python.Item) []layer.Descriptor {
	b.t.Helper()
	var layers []layer.Descriptor
	for _, group := range python.GroupItems(items, 20) {
		d, _, err := python.BuildLayer(b.ctx, b.store, group, python.Target{Root: g.Root, Python: g.Python}, nil, python.LayerOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		layers = append(layers, d)
	}
	return layers
}

// says runs Python code on the image with the built packages and returns what it prints.
func (b *bench) says(m *built, code string) string {
	b.t.Helper()
	layers := slices.Concat(m.ground.Layers, b.layers(m.ground, m.items))
	dirs, err := sandbox.Layers(b.ctx, b.store, layers)
	if err != nil {
		b.t.Fatal(err)
	}
	var out strings.Builder
	site := "/opt/venv/lib/python" + m.ground.Python.Minor() + "/site-packages"
	status, err := sandbox.Run(b.ctx, sandbox.Options{
		Layers: dirs, Args: []string{m.ground.Python.Executable, "-c", code}, Env: []string{"PYTHONPATH=" + site, "PATH=/usr/bin:/bin"},
		Stdout: &out, Stderr: &out, ReadOnly: true, NoNetwork: true,
	})
	if err != nil || status != 0 {
		b.t.Fatalf("%v, status %d\n%s", err, status, out.String())
	}
	return strings.TrimSpace(out.String())
}

func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	answerC = `#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "cext", 0, -1, methods};
PyMODINIT_FUNC PyInit_cext(void) { return PyModule_Create(&module); }
`
	answerSetup = `import os
from setuptools import setup, Extension
assert os.environ["MAX_JOBS"] and os.environ["HOME"].startswith("/sconce/")
setup(ext_modules=[Extension("cext", ["cext.c"], define_macros=[("ANSWER", os.environ.get("ANSWER", "42"))])])
`
	answerProject = "[build-system]\nrequires = [\"setuptools>=61\"]\nbuild-backend = \"setuptools.build_meta\"\n[project]\nname = \"cext\"\nversion = \"1.0\"\n"
)

func answer() map[string]string {
	return map[string]string{"cext/setup.py": answerSetup, "cext/cext.c": answerC, "cext/pyproject.toml": answerProject}
}

const askAnswer = "[python]\npackages = [\"cext @ file://DIR/cext\"]\n"

// TestCompile: C code becomes a wheel that can be imported; a second recipe with other packages takes it from the cache, and
// made again it has the same bytes. With other variables it is another.
func TestCompile(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	write(t, dir, answer())
	write(t, dir, map[string]string{"cext/nonce": t.Name() + dir}) // nothing that is kept from an earlier run
	text := strings.ReplaceAll(askAnswer, "DIR", dir)
	one := b.mustBuild(dir, text)
	if got := b.says(one, "import cext; print(cext.answer())"); got != "42" {
		t.Errorf("it says %q", got)
	}
	if n := b.runs.taken(); n != 1 {
		t.Errorf("%d runs", n)
	}
	two := b.mustBuild(dir, strings.ReplaceAll(text, "packages = [", "packages = [\"six\", "))
	if n := b.runs.taken(); n != 0 || two.items[0].Digest != one.items[0].Digest {
		t.Errorf("a second recipe: %d runs, %s and %s", n, one.items[0].Digest, two.items[0].Digest)
	}
	three := b.mustBuild(dir, text+"[python.compile.cext]\nenv = { ANSWER = \"43\" }\n")
	if got := b.says(three, "import cext; print(cext.answer())"); got != "43" || b.runs.taken() != 1 {
		t.Errorf("it says %q", got)
	}
	again := filepath.Join(t.TempDir(), "elsewhere")
	write(t, again, answer())
	write(t, again, map[string]string{"cext/nonce": t.Name() + again})
	other := b.mustBuild(again, strings.ReplaceAll(askAnswer, "DIR", again))
	if b.runs.taken() != 1 || other.items[0].Digest != one.items[0].Digest {
		t.Errorf("built again, it is another wheel: %s and %s", one.items[0].Digest, other.items[0].Digest)
	}
}

// TestCompileAgainst: with isolation = false a build sees the image's packages, and build requirements go before them.
func TestCompileAgainst(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	files := answer()
	files["cext/setup.py"] = "import six, sys\nassert six.__version__ == '1.16.0', six\nassert sys.prefix == '/opt/sconce-build'\nfrom setuptools import setup\nsetup(py_modules=['cext'])\n"
	files["cext/cext.py"] = "nonce = '" + dir + "'\n"
	write(t, dir, files)
	text := strings.ReplaceAll(strings.ReplaceAll(askAnswer, "DIR", dir), "packages = [", "packages = [\"six==1.16.0\", ")
	_, err := b.build(dir, text)
	if err == nil || !strings.Contains(fault.HintOf(err), "requires = [\"six\"] under [python.compile.cext]") {
		t.Errorf("isolated: %v, %q", err, fault.HintOf(err))
	}
	b.mustBuild(dir, text+"[python.compile.cext]\nisolation = false\n")
	made := b.mustBuild(dir, text+"[python.compile.cext]\nisolation = false\nrequires = [\"six\"]\n")
	if c := made.compiles[0]; !slices.Equal(c.Against, []string{"six"}) || len(c.Requires) != 1 {
		t.Errorf("%+v", c)
	}
}

// ownBackend is the source of a package with a backend of its own, which wants a package that its source does not name.
func ownBackend(name, wants string) map[string]string {
	return map[string]string{
		name + "/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"own\"\nbackend-path = [\"backend\"]\n[project]\nname = \"" + name + "\"\nversion = \"1.0\"\n",
		name + "/backend/own.py": strings.ReplaceAll(`import zipfile
def get_requires_for_build_wheel(config_settings=None):
    return ["`+wants+`", "nothing; python_version < '3'"]
def build_wheel(directory, config_settings=None, metadata_directory=None):
    print("building NAME")
    import six
    name = "NAME-1.0-py3-none-any.whl"
    with zipfile.ZipFile(directory + "/" + name, "w") as z:
        z.writestr("NAME.py", "six = %r\n" % six.__version__)
        z.writestr("NAME-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: NAME\nVersion: 1.0\n")
        z.writestr("NAME-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: own\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("NAME-1.0.dist-info/RECORD", "NAME.py,,\nNAME-1.0.dist-info/METADATA,,\nNAME-1.0.dist-info/WHEEL,,\nNAME-1.0.dist-info/RECORD,,\n")
    return name
`, "NAME", name),
	}
}

// TestCompileWants: what only the backend knows to want is named, with the key that adds it; with it, it is built. The backend
// is the source's own.
func TestCompileWants(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	write(t, dir, ownBackend("cext", "six>=1.15"))
	text := strings.ReplaceAll(askAnswer, "DIR", dir)
	_, err := b.build(dir, text)
	if err == nil || !strings.Contains(fault.HintOf(err), `[python.compile.cext]: requires = ["six>=1.15"]`) {
		t.Fatalf("%v, %q", err, fault.HintOf(err))
	}
	b.mustBuild(dir, text+"[python.compile.cext]\nrequires = [\"six\"]\n")
}

// TestCompileAsksAll: what the backends of several packages want is told together, before any of them builds.
func TestCompileAsksAll(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	write(t, dir, ownBackend("good", "six"))
	write(t, dir, ownBackend("early", "absent-one"))
	write(t, dir, ownBackend("late", "absent-two"))
	write(t, dir, map[string]string{"good/nonce": dir, "old/nonce": dir, "old/setup.py": "import absent_three\n"})
	text := strings.ReplaceAll("[python]\npackages = [\"good @ file://DIR/good\", \"early @ file://DIR/early\", \"late @ file://DIR/late\", \"old @ file://DIR/old\"]\n"+
		"[python.compile.good]\nrequires = [\"six\"]\n[python.compile.old]\ndepends = []\n", "DIR", dir)
	_, err := b.build(dir, text)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`[python.compile.early]: requires = ["absent-one"]`, `[python.compile.late]: requires = ["absent-two"]`, `requires = ["absent-three"] under [python.compile.old]`} {
		if !strings.Contains(fault.HintOf(err), want) {
			t.Errorf("the hint lacks %q: %s\n%v", want, fault.HintOf(err), err)
		}
	}
	if said := strings.Join(b.runs.lines, "\n"); strings.Contains(said, "building") {
		t.Errorf("something was built before:\n%s", said)
	}
}

// TestCompileFails: the error has the compiler's own words, and there is no network.
func TestCompileFails(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct{ setup, want string }{
		"compiler": {"from setuptools import setup, Extension\nsetup(ext_modules=[Extension('cext', ['bad.c'])])\n", "exit"},
		"network":  {"import socket\nsocket.create_connection(('192.0.2.1', 9), 3)\n", "exit"},
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"cext/setup.py": c.setup, "cext/bad.c": "int f() { return nonsense; }\n", "cext/pyproject.toml": answerProject})
		_, err := b.build(dir, strings.ReplaceAll(askAnswer, "DIR", dir))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	said := strings.Join(b.runs.lines, "\n")
	for _, want := range []string{"nonsense", "Network is unreachable"} {
		if !strings.Contains(said, want) {
			t.Errorf("what was printed lacks %q:\n%s", want, said)
		}
	}
}

// TestCompileNetwork: with network = true, and only then, what is compiled reaches what other machines reach.
func TestCompileNetwork(t *testing.T) {
	b := newBench(t)
	l, err := net.Listen("tcp", net.JoinHostPort(tooltest.OutsideAddress(t).String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "found outside") }))
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	dir := t.TempDir()
	setup := "from setuptools import setup\nfrom urllib.request import urlopen\nopen('cext.py', 'w').write('found = %r' % urlopen('" + srv.URL + "').read())\nsetup(py_modules=['cext'])\n"
	write(t, dir, map[string]string{"cext/setup.py": setup, "cext/pyproject.toml": answerProject})
	text := strings.ReplaceAll(askAnswer, "DIR", dir)
	if _, err := b.build(dir, text); err == nil || !strings.Contains(fault.HintOf(err), "network = true") {
		t.Errorf("without network: %v, %q", err, fault.HintOf(err))
	}
	made := b.mustBuild(dir, text+"[python.compile.cext]\nnetwork = true\n")
	if got := b.says(made, "import cext; print(cext.found.decode())"); got != "found outside" {
		t.Errorf("it says %q", got)
	}
}

// TestCompileCUDA: nvcc comes as packages of an index, all parts of one version; code is made for the target's GPU. It is named
// as a build requirement, or comes by itself, as that of the CUDA whose libraries the image has, and finds their headers.
func TestCompileCUDA(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("for the machines that CI has")
	}
	b := newBench(t)
	for name, c := range map[string]struct{ packages, how, include string }{
		"named":     {"", "requires = [\"nvidia-cuda-nvcc==13.0.*\", \"nvidia-cuda-runtime==13.0.*\"]", ""},
		"by itself": {"\"nvidia-cuda-runtime==13.0.*\", \"nvidia-cuda-cupti==13.0.*\", ", "isolation = false\ncuda = true", "#include <cupti.h>\n#include <cuda/std/array>\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			dir := t.TempDir()
			write(t, dir, map[string]string{"cext/pyproject.toml": answerProject, "cext/cext/__init__.py": "", "cext/cext/kernel.cu": c.include + kernelCUDA, "cext/setup.py": setupCUDA})
			made := b.mustBuild(dir, "[target]\nplatform = \"linux/amd64\"\ngpu = [\"9.0\"]\n[python]\npackages = ["+c.packages+"\"setuptools\", \"cext @ file://"+dir+"/cext\"]\n"+
				"[python.compile.cext]\n"+c.how+"\n")
			for _, w := range made.compiles[0].Requires {
				if part := w.Name; (part == wheelbuild.CUDACompiler || slices.Contains(wheelbuild.CUDACompilerParts, part)) && !strings.HasPrefix(w.Version, "13.0.") {
					t.Errorf("%s is of version %s", part, w.Version)
				}
			}
			if archs := b.deviceCode(made.items[0], "cext/kernel.so"); !slices.Equal(archs, []string{"elf sm_90"}) {
				t.Errorf("device code for %q", archs)
			}
		})
	}
}

const (
	kernelCUDA = "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\nextern \"C\" int run(float *x) { twice<<<1, 32>>>(x); return cudaGetLastError(); }\n"
	setupCUDA  = `import os, subprocess
from setuptools import setup
from setuptools.command.build_py import build_py
class build(build_py):
    def run(self):
        super().run()
        out = os.path.join(self.build_lib, "cext", "kernel.so")
        archs = [a.replace(".", "") for a in os.environ["TORCH_CUDA_ARCH_LIST"].split(";")]
        codes = ["-gencode=arch=compute_%s,code=sm_%s" % (a, a) for a in archs]
        home = os.environ["CUDA_HOME"]
        subprocess.run([home + "/bin/nvcc", "-shared", "-Xcompiler", "-fPIC", "-cudart=shared", "-L" + home + "/lib64", "-o", out, "cext/kernel.cu"] + codes, check=True)
setup(packages=["cext"], cmdclass={"build_py": build})
`
)

// deviceCode lists what a library in a wheel has for GPUs.
func (b *bench) deviceCode(wheel python.Item, library string) []string {
	b.t.Helper()
	f, err := b.store.OpenBlob(wheel.Digest)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	z, err := zip.NewReader(f, wheel.Size)
	if err != nil {
		b.t.Fatal(err)
	}
	data, err := fs.ReadFile(z, library)
	if err != nil {
		b.t.Fatal(err)
	}
	found, err := fatbin.Scan(bytes.NewReader(data), int64(len(data)), fatbin.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	var archs []string
	for i := range found.Regions {
		for e := range found.Regions[i].Images() {
			archs = append(archs, fmt.Sprintf("%s %s", e.Kind, e.Arch))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(archs)))
}

// torchEnv asks for the tests that compile against a real torch, which take minutes and 2 GB.
const torchEnv = "SCONCE_TEST_TORCH"

// TestCompileTorch: torch-scatter, which has only a source distribution, is built against the image's torch, once for two
// recipes, and can be imported. The torch is Debian's, which fits into a test; nothing that is done depends on where it is from.
func TestCompileTorch(t *testing.T) {
	b := newBench(t)
	if os.Getenv(torchEnv) == "" {
		t.Skipf("takes minutes; %s=1 runs it", torchEnv)
	}
	dir := t.TempDir()
	const table = "[base]\nbootstrap = { suite = \"bookworm\", packages = [\"python3-dev\", \"g++\", \"python3-torch\", \"libtorch-dev\", \"pybind11-dev\", \"ccache\"] }\n"
	const how = "[python.compile.torch-scatter]\nenv = { CPLUS_INCLUDE_PATH = \"/usr/include/torch/csrc/api/include\" }\n"
	one, err := b.buildOn(dir, table+"[python]\npackages = [\"torch-scatter\"]\n"+how)
	if err != nil {
		t.Fatalf("%v\nhint: %s\n%s", err, fault.HintOf(err), strings.Join(b.runs.lines, "\n"))
	}
	if c := one.compiles[0]; c.Isolated || !slices.Contains(c.Against, "torch") {
		t.Errorf("%+v", c)
	}
	if got := b.says(one, "import torch, torch_scatter; print(torch_scatter.scatter(torch.ones(4), torch.tensor([0, 1, 0, 1])).tolist())"); got != "[2.0, 2.0]" {
		t.Errorf("it says %q", got)
	}
	b.runs.taken()
	two, err := b.buildOn(dir, table+"[python]\npackages = [\"torch-scatter\", \"six\"]\n"+how)
	if err != nil || two.items[0].Digest != one.items[0].Digest || b.runs.taken() != 0 {
		t.Errorf("a second recipe: %v", err)
	}
}

// TestCompileChain: a package that is built against another one that is built waits for it and can import it.
func TestCompileChain(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	write(t, dir, answer())
	write(t, dir, map[string]string{
		"cext/nonce":           dir,
		"after/setup.py":       "import cext\nfrom setuptools import setup\nassert cext.answer() == 42\nsetup(py_modules=['after'])\n",
		"after/after.py":       "nonce = '" + dir + "'\n",
		"after/pyproject.toml": strings.ReplaceAll(answerProject, "\"cext\"", "\"after\""),
	})
	text := "[python]\npackages = [\"after @ file://DIR/after\", \"cext @ file://DIR/cext\"]\n[python.compile.after]\nisolation = false\nrequires = [\"cext\"]\n"
	made := b.mustBuild(dir, strings.ReplaceAll(text, "DIR", dir))
	if got := b.says(made, "import after, cext; print(cext.answer())"); got != "42" {
		t.Errorf("it says %q", got)
	}
}
