package test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/madetest"
	"sconce.dev/sconce/internal/tooltest"
)

// compilerRecipe is a base with a C++ compiler, without Python, whose C library is that of condatest's PyTorch.
const compilerRecipe = `name = "compiler"
version = "1"

[base]
bootstrap = { suite = "trixie", variant = "minbase", packages = ["g++"] }
`

// compilerBase returns that base as a SIF file, and as an image in a layout, whose layers a store takes as they are.
func compilerBase(t *testing.T) (sif, ref string) {
	t.Helper()
	layout := func(dir string) string { return "oci:" + filepath.Join(dir, "layout") + ":compiler" }
	dir := madetest.Once(t, "compiler", compilerRecipe+"sif, oci", func(ctx context.Context, work, dir string) error {
		return madetest.Build(ctx, work, compilerRecipe, filepath.Join(dir, "compiler.sif"), layout(dir))
	})
	return filepath.Join(dir, "compiler.sif"), layout(dir)
}

// torchExtension is an extension as PyTorch's own pages have it: setup.py needs torch, and so does what it compiles.
var torchExtension = map[string]string{
	"pyproject.toml": "[build-system]\nrequires = [\"setuptools\", \"torch\"]\nbuild-backend = \"setuptools.build_meta\"\n",
	"PKG-INFO":       "Metadata-Version: 2.2\nName: ext\nVersion: 1.0\nRequires-Dist: torch\n",
	"setup.py": `import os
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
level = ("LEVEL", os.environ["EXT_LEVEL"])
extension = CppExtension("ext", ["ext.cpp"], define_macros=[level], extra_compile_args=["-g0", "-O0"])
setup(name="ext", version="1.0", ext_modules=[extension], cmdclass={"build_ext": BuildExtension})
`,
	"ext.cpp": `#include <torch/extension.h>
torch::Tensor f(torch::Tensor x) { return x.cumsum(0) * LEVEL; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }
`,
}

// The chain of who builds with cotainr, with a real PyTorch, as an ordinary user: a base with a compiler as a SIF file, an environment with
// PyTorch of conda and a variable, and a second one with an extension in C++ that is compiled against it. Channel and index are on this machine,
// and nothing else can be reached.
func TestCotainrTorch(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	packages := condatest.TorchChannel(t)
	channel := packages.Serve(t)
	base, sameBase := compilerBase(t)
	p := newPlace(t, ordinary(t))
	ix := newIndex(t)
	ix.dir = solverIndex(t, ix.dir, map[string][]byte{"ext-1.0.tar.gz": sourceOf(t, "ext-1.0", torchExtension)})
	ix.use(p)
	p.env = append(p.env, "http_proxy=http://127.0.0.1:9", "https_proxy=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "HTTPS_PROXY=http://127.0.0.1:9",
		"UV_PYTHON_DOWNLOADS=never")
	p.write(".condarc", "channels: []\n")
	p.write("pytorch.yml", "channels:\n  - "+channel.URL+"\n  - nodefaults\ndependencies:\n  - python\n  - pytorch\nvariables:\n  PIP_NO_BUILD_ISOLATION: 0\n  EXT_LEVEL: 2\n")
	p.write("extensions.yml", "channels:\n  - "+channel.URL+"\n  - nodefaults\ndependencies:\n  - pip:\n      - ext\n")
	p.must(strings.Fields("cotainr build --accept-licenses --base-image " + base + " --conda-env pytorch.yml extensions.yml -v final.sif")...)

	const show = "import torch, ext; print(torch.__version__, ext.f(torch.ones(3)).tolist(), torch.linalg.inv(2 * torch.eye(2)).sum().item())"
	if r := p.must("run", "final.sif", "--", "python", "-c", show); r.stdout != "2.6.0+debian [2.0, 4.0, 6.0] 1.0\n" {
		t.Errorf("the extension says %q", r.stdout)
	}

	// For a target with a GPU, this build is not taken silently where there is one with CUDA. A SIF file would be compressed anew to lock on it.
	packages.Add(t, condatest.Package{
		Name: "pytorch", Version: "2.6.0", Build: "cuda126_py313_200", BuildNumber: 200, Subdir: condatest.Subdir(), Depends: []string{"python 3.13.*", "__cuda >=12.6"},
	})
	recipe := condaOn(sameBase, channel.URL, `"pytorch"`) + "[target]\ngpu = [\"9.0\"]\n"
	p.write("gpu/sconce.toml", recipe)
	p.fails(1, []string{"pytorch comes without CUDA: its builds with CUDA want __cuda >=12.6", "driver ="}, "lock", "gpu")
	p.write("gpu/sconce.toml", recipe+"driver = \"570.86\"\n")
	p.must("lock", "gpu")
	if lock := p.read("gpu/conda-lock.yml"); !strings.Contains(lock, "/pytorch-2.6.0-cuda126_py313_200.conda") {
		t.Errorf("for a GPU with its driver, the lock has\n%s", lock)
	}
	p.wantSound()
	p.wantTidy()
}
