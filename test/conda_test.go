package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// extensionC needs Python's headers, those of a compiler, and those of the torch that it is built against.
const extensionC = `#include <Python.h>
#include <stdio.h>
#include <torch/version.h>
static PyObject *built(PyObject *self, PyObject *unused) {
	char text[100];
	snprintf(text, sizeof text, "against torch %s by gcc %d for " ARCHS, TORCH_VERSION, __GNUC__);
	return PyUnicode_FromString(text);
}
static PyMethodDef methods[] = {{"built", built, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "made_here", "", -1, methods};
PyMODINIT_FUNC PyInit_made_here(void) { return PyModule_Create(&module); }
`

// extensionBackend compiles as setuptools would, by the variables that conda's compilers set, and cannot without torch.
const extensionBackend = `import os, subprocess, sysconfig, zipfile, torch
def build_wheel(directory, config_settings=None, metadata_directory=None):
    tag = "cp%s-cp%s-linux_%s" % (*[sysconfig.get_config_var("py_version_nodot")] * 2, os.uname().machine)
    module = "made_here" + sysconfig.get_config_var("EXT_SUFFIX")
    subprocess.run([os.environ["CC"], *os.environ["CFLAGS"].split(), *os.environ["LDFLAGS"].split(), "-I" + sysconfig.get_path("include"),
        "-I" + os.path.dirname(torch.__file__) + "/include", "-DARCHS=\"" + os.environ["TORCH_CUDA_ARCH_LIST"] + "\"", "-o", module, "made_here.c"], check=True)
    info = "made_here-2.8.dist-info"
    with zipfile.ZipFile(os.path.join(directory, "made_here-2.8-%s.whl" % tag), "w") as z:
        z.write(module)
        z.writestr(info + "/METADATA", METADATA)
        z.writestr(info + "/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: %s\n" % tag)
        z.writestr(info + "/RECORD", "")
    return os.path.basename(z.filename)
`

const extensionMetadata = "Metadata-Version: 2.2\nName: made-here\nVersion: 2.8\nRequires-Dist: torch\n"

// The whole way of who builds with cotainr, as an ordinary user: a base as a SIF file, an environment with PyTorch, and a second one with
// a package that is compiled in C against the first one's torch, by the compiler that conda brings. Channel and index are on this
// machine, and nothing else can be reached.
func TestCotainrChain(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	channel := condatest.NewChannel(t, condatest.WithHeaders(t, condatest.RealPython(t)), condatest.RealCompiler(t),
		condatest.Package{Name: "ninja", Version: "1.13", Noarch: "generic", Files: map[string]condatest.File{"share/ninja": {Data: "ninja\n"}}},
		condatest.Package{Name: "pip", Version: "25.0", Noarch: "python", Depends: []string{"python"}, Files: map[string]condatest.File{"site-packages/pip.py": {Data: "made = 'by conda'\n"}}}).Serve(t)
	p := newPlace(t, ordinary(t))
	ix := newIndex(t)
	ix.dir = extensionIndex(t, ix.dir)
	ix.use(p)
	p.env = append(p.env, "http_proxy=http://127.0.0.1:9", "https_proxy=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "HTTPS_PROXY=http://127.0.0.1:9",
		"UV_PYTHON_DOWNLOADS=never", "TORCH_CUDA_ARCH_LIST=8.0")
	p.write("root.tar", string(condatest.Root(t)))
	p.write(".condarc", "channels: []\n")
	p.write("conda_envs/pytorch_success.yml", "name: pytorch\nchannels:\n  - "+channel.URL+"\n  - nodefaults\ndependencies:\n  - python\n  - ninja\n  - c-compiler\n"+
		"  - pip:\n      - torch==2.7.0\nvariables:\n  PIP_NO_BUILD_ISOLATION: 0\n  TORCH_CUDA_ARCH_LIST: \"9.0\"\n")
	p.write("conda_envs/extensions.yml", "name: extensions\nchannels:\n  - "+channel.URL+"\n  - nodefaults\ndependencies:\n  - pip:\n      - made-here\n")
	p.must("copy", "tar:root.tar", "sif:25.3-devel-cuda12.8-ubuntu24.04.sif")
	p.must(strings.Fields("cotainr build --accept-licenses --base-image 25.3-devel-cuda12.8-ubuntu24.04.sif --conda-env conda_envs/pytorch_success.yml conda_envs/extensions.yml -v final_container.sif")...)

	says := []string{"python", "-c", "import made_here, pip; assert pip.made == 'by conda', pip; print(made_here.built())"}
	built := p.must(append([]string{"run", "final_container.sif", "--"}, says...)...).stdout
	if !strings.HasPrefix(built, "against torch 2.7.0 by gcc ") || !strings.HasSuffix(built, " for 9.0\n") {
		t.Errorf("the extension says %q", built)
	}
	r := p.must("export", "conda", "final_container.sif", "--format", "explicit")
	if !strings.Contains(r.stdout, channel.URL+"/"+condatest.Subdir()+"/c-compiler-") {
		t.Errorf("the image is made of:\n%s", r.stdout)
	}
	if gets := ix.downloads(); gets["made_here-2.8.tar.gz"] == 0 {
		t.Errorf("downloaded: %v", gets)
	}
	p.wantSound()
	p.wantTidy()

	t.Run("Apptainer", func(t *testing.T) {
		if r := judgedBy(t, "apptainer", p).must(append([]string{"exec", "final_container.sif"}, says...)...); r.stdout != built {
			t.Error(r)
		}
	})
	t.Run("enroot", func(t *testing.T) {
		enroot := judgedBy(t, "enroot", p)
		p.must("copy", "final_container.sif", "final.sqsh")
		enroot.must("create", "--name", "final", "final.sqsh")
		if r := enroot.must(append([]string{"start", "final"}, says...)...); r.stdout != built {
			t.Error(r)
		}
	})
}

// solverIndex makes the files of an index: the solver, and what is given.
func solverIndex(t *testing.T, wheels string, files map[string][]byte) string {
	t.Helper()
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	downloadWheels(t, wheels, machine, []string{condatest.Rattler})
	dir := t.TempDir()
	solver, err := filepath.Glob(filepath.Join(wheels, "py_rattler-*"+machine+".whl"))
	for _, file := range solver {
		err = errors.Join(err, os.Link(file, filepath.Join(dir, filepath.Base(file))))
	}
	for name, data := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// extensionIndex makes the files of an index: the solver, a torch with a header, and the source of an extension.
func extensionIndex(t *testing.T, wheels string) string {
	t.Helper()
	torch := locktest.Wheel{Name: "torch", Version: "2.7.0", Files: map[string]string{"torch/include/torch/version.h": "#define TORCH_VERSION \"2.7.0\"\n"}}
	return solverIndex(t, wheels, map[string][]byte{
		torch.File(): torch.Bytes(t),
		"made_here-2.8.tar.gz": sourceOf(t, "made_here-2.8", map[string]string{
			"PKG-INFO":       extensionMetadata,
			"pyproject.toml": "[project]\nname = \"made-here\"\nversion = \"2.8\"\ndependencies = [\"torch\"]\n[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
			"backend.py":     "METADATA = \"\"\"" + extensionMetadata + "\"\"\"\n" + extensionBackend,
			"made_here.c":    extensionC,
		}),
	})
}

// sourceOf packs a source distribution.
func sourceOf(t *testing.T, name string, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for file, text := range files {
		err := w.WriteHeader(&tar.Header{Name: name + "/" + file, Mode: 0o644, Size: int64(len(text))})
		if _, writeErr := w.Write([]byte(text)); errors.Join(err, writeErr) != nil {
			t.Fatal(err, writeErr)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
