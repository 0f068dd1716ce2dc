package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
	"sconce.dev/sconce/internal/tooltest"

	"sconce.dev/sconce/internal/cluster"
)

// Parts of small images.
const (
	site12     = "usr/local/lib/python3.12/site-packages/"
	venv12     = "opt/venv/lib/python3.12/site-packages/"
	venvConfig = "home = /usr/local/bin\nimplementation = CPython\nversion_info = 3.12.1\ninclude-system-site-packages = "
)

// basePython are the files of an image with a Python 3.12 and its glibc, besides more.
func basePython(more ...map[string]string) map[string]string {
	files := map[string]string{"usr/local/bin/python3.12": "", "lib64/ld-linux-x86-64.so.2": "", site12: ""}
	for _, m := range more {
		maps.Copy(files, m)
	}
	return files
}

// distribution are the files of an installed package.
func distribution(site, name, version string, lines ...string) map[string]string {
	return map[string]string{site + name + "-" + version + ".dist-info/METADATA": factstest.Metadata(name, version, lines...)}
}

// taggedWheel are the files of an installed package with compiled files.
func taggedWheel(site, name, version, tag string, files ...string) map[string]string {
	all := distribution(site, name, version)
	info := site + name + "-" + version + ".dist-info/"
	all[info+"WHEEL"] = "Wheel-Version: 1.0\nTag: " + tag + "\n"
	for _, f := range files {
		all[site+f] = ""
		all[info+"RECORD"] += f + ",,\n"
	}
	return all
}

func torchFiles(site, version, cuda, hip string) map[string]string {
	all := distribution(site, "torch", version)
	all[site+"torch/version.py"] = fmt.Sprintf("from typing import Optional\n__version__ = '%s'\ncuda: Optional[str] = %s\nhip: Optional[str] = %s\n", version, cuda, hip)
	return all
}

// manyModules are modules with byte code for some of them.
func manyModules(site string, n, compiled int, tag string) map[string]string {
	all := distribution(site, "many", "1")
	addModules(all, site+"many/", "m", n, compiled, tag)
	return all
}

// manyTests are tests of such a package, likewise.
func manyTests(site string, n, compiled int, tag string) map[string]string {
	all := make(map[string]string)
	addModules(all, site+"many/tests/unit/", "test_", n, compiled, tag)
	return all
}

func addModules(all map[string]string, dir, name string, n, compiled int, tag string) {
	for i := range n {
		all[fmt.Sprintf("%s%s%d.py", dir, name, i)] = ""
		if i < compiled {
			all[fmt.Sprintf("%s__pycache__/%s%d.%s.pyc", dir, name, i, tag)] = ""
		}
	}
}

var systemSite = map[string]string{"opt/venv/pyvenv.cfg": venvConfig + "true\n", venv12: ""}

// found is what a finding must have.
type found struct {
	severity Severity
	message  string
}

func TestPythonRules(t *testing.T) {
	h200 := cluster.Profile{GPU: []string{"9.0"}}
	tests := []struct {
		name   string
		rule   string
		files  map[string]string
		env    []string
		target cluster.Profile
		want   []found
	}{
		{
			name: "wrong version and missing", rule: "python-requirement-unmet",
			files: basePython(distribution(site12, "a", "1", "Requires-Dist: b>=2", "Requires-Dist: c", "Requires-Dist: d; extra == 'x'"), distribution(site12, "b", "1.5")),
			want: []found{
				{Warning, "a 1 requires b>=2, but b 1.5 is installed"},
				{Warning, "a 1 requires c, which is not installed"},
			},
		},
		{
			name: "an extra that another package asks for", rule: "python-requirement-unmet",
			files: basePython(distribution(site12, "a", "1", "Requires-Dist: b[Fast_x]"), distribution(site12, "b", "1", "Requires-Dist: c; extra == 'fast-x'", "Requires-Dist: e; extra == 'other'")),
			want:  []found{{Warning, "b[fast-x] 1 requires c, which is not installed"}},
		},
		{
			name: "extras in a circle", rule: "python-requirement-unmet",
			files: basePython(distribution(site12, "a", "1", "Requires-Dist: b[all]"), distribution(site12, "b", "1", "Requires-Dist: b[all,one]; extra == 'all'", "Requires-Dist: c>1; extra == 'one'"), distribution(site12, "c", "1")),
			want:  []found{{Warning, "b[one] 1 requires c>1, but c 1 is installed"}},
		},
		{
			name: "a patch release that is not known is not judged", rule: "python-requirement-unmet",
			files: basePython(distribution(site12, "a", "1", "Requires-Dist: b; python_full_version < '3.12.3'")),
		},
		{
			name: "and is when it is known", rule: "python-requirement-unmet",
			files: basePython(distribution(site12, "a", "1", "Requires-Dist: b; python_full_version < '3.12.3'")),
			env:   []string{"PYTHON_VERSION=3.12.1"},
			want:  []found{{Warning, "a 1 requires b, which is not installed"}},
		},
		{
			name: "the virtual environment breaks a package of the base", rule: "python-requirement-unmet",
			files: basePython(systemSite, distribution(site12, "scipy", "1.11", "Requires-Dist: numpy<2"), distribution(site12, "numpy", "1.26.4"), distribution(venv12, "numpy", "2.1.0")),
			want:  []found{{Warning, "scipy 1.11 requires numpy<2, but numpy 2.1.0 is installed"}},
		},
		{
			name: "the base is not in the image", rule: "python-requirement-unmet",
			files: map[string]string{
				"opt/venv/pyvenv.cfg": venvConfig + "true\n", venv12 + "a-1.dist-info/METADATA": factstest.Metadata("a", "1", "Requires-Dist: numpy"),
			},
		},
		{
			name: "a package of the Linux distribution", rule: "python-requirement-unmet",
			files: map[string]string{
				"usr/bin/python3.12": "", "usr/bin/python3": "-> python3.12",
				"usr/lib/python3/dist-packages/a-1.dist-info/METADATA": factstest.Metadata("a", "1", "Requires-Dist: numpy"),
			},
			want: []found{{Note, "a 1 requires numpy, which is not installed"}},
		},
		{
			name: "NVIDIA's library for torch", rule: "python-requirement-unmet",
			files: basePython(distribution(site12, "torch", "2.6.0", "Requires-Dist: nvidia-nccl-cu12==2.21.5; platform_system == \"Linux\"", "Requires-Dist: triton==3.2.0")),
			want: []found{
				{Error, "torch 2.6.0 requires nvidia-nccl-cu12==2.21.5, which is not installed"},
				{Warning, "torch 2.6.0 requires triton==3.2.0, which is not installed"},
			},
		},
		{
			name: "Requires-Python", rule: "python-requirement-unmet",
			files: basePython(distribution(site12, "a", "1", "Requires-Python: >=3.13"), distribution(site12, "b", "1", "Requires-Python: >=3.12.4")),
			want:  []found{{Warning, "a 1 is for Python >=3.13 and is installed for Python 3.12"}},
		},
		{
			name: "modules of another version", rule: "python-abi",
			files: basePython(taggedWheel(site12, "numpy", "1.26.4", "cp310-cp310-manylinux_2_17_x86_64", "numpy/core/_m.cpython-310-x86_64-linux-gnu.so", "numpy/fft/_f.cpython-310-x86_64-linux-gnu.so")),
			want:  []found{{Error, "2 compiled modules of numpy for CPython 3.10 on x86_64-linux-gnu, and Python 3.12 on x86_64 (glibc) cannot import them"}},
		},
		{
			name: "a directory of stubs is no other build", rule: "python-abi",
			files: basePython(distribution(site12, "x", "1"), map[string]string{site12 + "x/_C.cpython-310-x86_64-linux-gnu.so": "", site12 + "x/_C/__init__.pyi": ""}),
			want:  []found{{Error, "1 compiled module of x for CPython 3.10"}},
		},
		{
			name: "modules for musl", rule: "python-abi",
			files: basePython(taggedWheel(site12, "x", "1", "cp312-cp312-musllinux_1_2_x86_64", "x/_m.cpython-312-x86_64-linux-musl.so")),
			want:  []found{{Error, "1 compiled module of x for CPython 3.12 on x86_64-linux-musl, and Python 3.12 on x86_64 (glibc) cannot import it"}},
		},
		{
			name: "modules for Arm", rule: "python-abi",
			files: basePython(map[string]string{site12 + "x/_m.cpython-312-aarch64-linux-gnu.so": ""}, distribution(site12, "x", "1")),
			want:  []found{{Error, "1 compiled module of x for CPython 3.12 on aarch64-linux-gnu"}},
		},
		{
			name: "another build beside", rule: "python-abi",
			files: basePython(distribution(site12, "x", "1"), map[string]string{
				site12 + "x/a.cpython-310-x86_64-linux-gnu.so": "", site12 + "x/a.cpython-312-x86_64-linux-gnu.so": "",
				site12 + "x/b.cpython-310-x86_64-linux-gnu.so": "", site12 + "x/b.abi3.so": "",
				site12 + "x/c.cpython-310-x86_64-linux-gnu.so": "", site12 + "x/c.py": "",
				site12 + "x/py10/d.cpython-310-x86_64-linux-gnu.so": "", site12 + "x/py12/d.cpython-312-x86_64-linux-gnu.so": "",
				site12 + "x/libplain.so": "", site12 + "x/e.cpython-310-x86_64-linux-gnu.so": "", site12 + "x/e/__init__.py": "", site12 + "x/hash__mypyc.cpython-310-x86_64-linux-gnu.so": "",
			}),
		},
		{
			name: "some modules only", rule: "python-abi",
			files: basePython(distribution(site12, "x", "1"), map[string]string{
				site12 + "x/a.cpython-310-x86_64-linux-gnu.so": "", site12 + "x/b.cpython-312-x86_64-linux-gnu.so": "",
			}),
			want: []found{{Warning, "1 compiled module of x for CPython 3.10 on x86_64-linux-gnu only, beside 1 that Python 3.12 can import"}},
		},
		{
			name: "a wheel for musl whose module does not say", rule: "python-abi",
			files: basePython(taggedWheel(site12, "x", "1", "cp39-abi3-musllinux_1_2_x86_64", "x/_m.abi3.so"), taggedWheel(site12, "y", "1", "cp39-abi3-manylinux_2_39_x86_64", "y/_m.abi3.so")),
			want:  []found{{Warning, "x 1 was installed from a wheel for cp39-abi3-musllinux_1_2_x86_64, which Python 3.12 on x86_64 (glibc) does not take"}},
		},
		{
			name: "wheels that fit", rule: "python-abi",
			files: basePython(taggedWheel(site12, "torch", "2", "cp312-cp312-linux_x86_64", "torch/_C.cpython-312-x86_64-linux-gnu.so"), taggedWheel(site12, "six", "1", "py2.py3-none-any"), taggedWheel(site12, "seven", "1", "py3-none-any"), taggedWheel(site12, "old", "1", "py2-none-any")),
			want:  []found{{Note, "old 1 was installed from a wheel for py2-none-any"}},
		},
		{
			name: "PYTHONPATH into another environment", rule: "python-abi",
			files: basePython(distribution(site12, "six", "1"), taggedWheel("opt/old/lib/python3.10/site-packages/", "x", "1", "cp310-cp310-linux_x86_64", "x/_m.cpython-310-x86_64-linux-gnu.so")),
			env:   []string{"PYTHONPATH=/opt/old/lib/python3.10/site-packages"},
			want:  []found{{Error, "1 compiled module of x for CPython 3.10"}},
		},
		{
			name: "torch twice", rule: "python-shadowed",
			files: basePython(systemSite, distribution(site12, "six", "1"), distribution(venv12, "six", "2"), distribution(site12, "pip", "1"), distribution(venv12, "pip", "2"),
				taggedWheel(site12, "torch", "2.6.0", "cp312-cp312-linux_x86_64"), taggedWheel(venv12, "torch", "2.7.0", "cp312-cp312-linux_x86_64")),
			want: []found{{Warning, "torch 2.7.0 in /opt/venv/lib/python3.12/site-packages hides version 2.6.0 in /usr/local/lib/python3.12/site-packages, and 1 more of its packages"}},
		},
		{
			name: "only source", rule: "python-shadowed",
			files: basePython(systemSite, distribution(site12, "six", "1"), distribution(venv12, "six", "2"), distribution(site12, "same", "1"), distribution(venv12, "same", "1")),
			want:  []found{{Note, "six 2 in /opt/venv/lib/python3.12/site-packages hides version 1"}},
		},
		{
			name: "PYTHONPATH for another version", rule: "python-shadowed",
			files: basePython(distribution(site12, "six", "1"), distribution("opt/old/lib/python3.10/site-packages/", "x", "1")),
			env:   []string{"PYTHONPATH=/opt/old/lib/python3.10/site-packages"},
			want:  []found{{Warning, "PYTHONPATH puts /opt/old/lib/python3.10/site-packages, which is for Python 3.10, on the path of Python 3.12 in /usr/local"}},
		},
		{
			name: "no byte code", rule: "python-no-bytecode", files: basePython(manyModules(site12, 120, 10, "cpython-312")),
			want: []found{{Warning, "110 of 120 Python modules in /usr/local/lib/python3.12/site-packages have no byte code for Python 3.12"}},
		},
		{
			name: "byte code of another version", rule: "python-no-bytecode", files: basePython(manyModules(site12, 120, 120, "cpython-311")),
			want: []found{{Warning, "120 of 120 Python modules"}},
		},
		{
			name: "tests without byte code", rule: "python-no-bytecode",
			files: basePython(manyModules(site12, 120, 100, "cpython-312"), manyTests(site12, 300, 0, "")),
		},
		{
			name: "byte code for tests alone", rule: "python-no-bytecode",
			files: basePython(manyModules(site12, 120, 10, "cpython-312"), manyTests(site12, 300, 300, "cpython-312")),
			want:  []found{{Warning, "110 of 120 Python modules in /usr/local/lib/python3.12/site-packages have no byte code for Python 3.12"}},
		},
		{name: "byte code for most", rule: "python-no-bytecode", files: basePython(manyModules(site12, 300, 190, "cpython-312"))},
		{
			name: "byte code elsewhere", rule: "python-no-bytecode", files: basePython(manyModules(site12, 120, 0, "")),
			env: []string{"PYTHONPYCACHEPREFIX=/tmp/cache"},
		},
		{
			name: "torch for the processor", rule: "python-torch-cpu", files: basePython(torchFiles(site12, "2.6.0+cpu", "None", "None")), target: h200,
			want: []found{{Error, "torch 2.6.0+cpu is a build for the processor alone, and the target has GPUs of compute capability 9.0"}},
		},
		{
			name: "torch for AMD", rule: "python-torch-cpu", files: basePython(torchFiles(site12, "2.6.0+rocm6.2", "None", "'6.2.41'")), target: h200,
			want: []found{{Error, "torch 2.6.0+rocm6.2 is a build for AMD's ROCm 6.2.41"}},
		},
		{name: "torch without a target", rule: "python-torch-cpu", files: basePython(torchFiles(site12, "2.6.0+cpu", "None", "None"))},
		{name: "torch with CUDA", rule: "python-torch-cpu", files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None")), target: h200},
		{
			name: "torch of which one environment has CUDA", rule: "python-torch-cpu", target: h200,
			files: basePython(systemSite, torchFiles(site12, "2.6.0+cpu", "None", "None"), torchFiles(venv12, "2.6.0", "'12.4'", "None")),
			want:  []found{{Warning, "torch 2.6.0+cpu is a build for the processor alone"}},
		},
		{
			name: "torchvision for another torch", rule: "python-torch-pair",
			files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None"), distribution(site12, "torchvision", "0.20.1", "Requires-Dist: torch==2.5.1"), distribution(site12, "xformers", "0.0.28", "Requires-Dist: torch==2.5.1")),
			want: []found{
				{Error, "torchvision 0.20.1 requires torch==2.5.1, but torch 2.6.0 is installed"},
				{Warning, "xformers 0.0.28 requires torch==2.5.1, but torch 2.6.0 is installed"},
			},
		},
		{
			name: "torchvision for another patch", rule: "python-torch-pair",
			files: basePython(torchFiles(site12, "2.5.1", "'12.4'", "None"), distribution(site12, "torchvision", "0.20.0", "Requires-Dist: torch==2.5.0")),
			want:  []found{{Warning, "torchvision 0.20.0 requires torch==2.5.0, but torch 2.5.1 is installed"}},
		},
		{
			name: "versions that say what they were built for", rule: "python-torch-pair",
			files: basePython(torchFiles(site12, "2.6.0+cu124", "'12.4'", "None"), distribution(site12, "torchvision", "0.21.0+cu118"), distribution(site12, "torchaudio", "2.6.0+cpu"),
				distribution(site12, "torch_scatter", "2.1.2+pt25cu124"), distribution(site12, "torch_sparse", "0.6.18+pt26cu124"), distribution(site12, "other", "1+cu11")),
			want: []found{
				{Warning, "torch-scatter 2.1.2+pt25cu124 was built for PyTorch 2.5, and torch is 2.6.0+cu124"},
				{Warning, "torchaudio 2.6.0+cpu is a build without CUDA, and torch 2.6.0+cu124 has CUDA 12.4"},
				{Error, "torchvision 0.21.0+cu118 was built for CUDA 11, and torch 2.6.0+cu124 for CUDA 12.4"},
			},
		},
		{
			name: "the pair is not told twice", rule: "python-requirement-unmet",
			files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None"), distribution(site12, "torchvision", "0.20.1", "Requires-Dist: torch==2.5.1")),
		},
		{
			name: "toolkit of another major version", rule: "cuda-toolkit-differs",
			files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None"), map[string]string{
				"usr/local/cuda": "-> cuda-13.0", "usr/local/cuda-13.0/version.json": `{"cuda": {"name": "CUDA SDK", "version": "13.0.1"}}`, "usr/local/cuda-13.0/bin/nvcc": "",
			}),
			want: []found{{Warning, "torch 2.6.0 was built for CUDA 12.4, and the CUDA toolkit of the image is 13.0.1"}},
		},
		{
			name: "toolkit of another minor version", rule: "cuda-toolkit-differs",
			files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None"), map[string]string{"opt/cuda/include/cuda.h": "#define CUDA_VERSION 12080\n", "opt/cuda/bin/nvcc": ""}),
			env:   []string{"PATH=/usr/bin:/opt/cuda/bin"},
			want:  []found{{Note, "torch 2.6.0 was built for CUDA 12.4, and the CUDA toolkit of the image is 12.8"}},
		},
		{
			name: "a base of another major version without a compiler", rule: "cuda-toolkit-differs",
			files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None")), env: []string{"CUDA_VERSION=11.8.0"},
			want: []found{{Note, "torch 2.6.0 was built for CUDA 12.4, and the CUDA toolkit of the image is 11.8.0"}},
		},
		{
			name: "a base of another minor version without a compiler", rule: "cuda-toolkit-differs",
			files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None")), env: []string{"CUDA_VERSION=12.6.3"},
		},
		{
			name: "the toolkit of torch", rule: "cuda-toolkit-differs",
			files: basePython(torchFiles(site12, "2.6.0", "'12.4'", "None"), map[string]string{"usr/local/cuda/version.txt": "CUDA Version 12.4.1\n", "usr/local/cuda/bin/nvcc": ""}),
		},
		{
			name: "NCCL of two CUDA versions in one place", rule: "duplicate-nccl",
			files: basePython(distribution(site12, "nvidia_nccl_cu12", "2.21.5"), distribution(site12, "nvidia_nccl_cu13", "2.28.3")),
			want:  []found{{Warning, "nvidia-nccl-cu12 2.21.5 and nvidia-nccl-cu13 2.28.3 lay their library in one place, /usr/local/lib/python3.12/site-packages/nvidia/nccl/lib, where the one installed last is left"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			f := factstest.Of(t, factstest.Dir{Path: factstest.WriteFiles(t, tt.files)}, tt.env...)
			wantFindings(t, pyFindings(t, f, tt.target, tt.rule), tt.want)
		})
	}
}

func wantFindings(t *testing.T, got []Finding, want []found) {
	t.Helper()
	ok := len(got) == len(want)
	for i := 0; ok && i < len(want); i++ {
		ok = got[i].Severity == want[i].severity && strings.Contains(got[i].Message, want[i].message)
	}
	if !ok {
		logFindings(t, got)
		t.Errorf("want %v", want)
	}
	for _, f := range got {
		if f.Path == "" || len(f.Seen) == 0 || f.Why == "" || f.Remedy == "" || strings.HasSuffix(f.Message, ".") {
			t.Errorf("incomplete: %+v", f)
		}
	}
}

// sharedLibrary is a library to be linked for a test.
type sharedLibrary struct {
	path, soname string
	needs        []string // names
	rpath        string   // with $ORIGIN
	runpath      bool     // in its new form
}

// linkLibraries puts libraries that need others into root. They have no content.
func linkLibraries(t *testing.T, root string, libraries ...sharedLibrary) {
	t.Helper()
	gcc := tooltest.Path(t, "gcc")
	stubs := t.TempDir()
	link := func(out string, args ...string) {
		args = append([]string{"-shared", "-nostdlib", "-Wl,--no-as-needed", "-x", "c", "/dev/null", "-x", "none", "-o", out}, args...)
		if text, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %v: %v: %s", args, err, text)
		}
	}
	for _, l := range libraries {
		args := []string{"-Wl,-soname," + l.soname}
		for _, need := range l.needs {
			stub := filepath.Join(stubs, need)
			if _, err := os.Stat(stub); err != nil {
				link(stub, "-Wl,-soname,"+need)
			}
			args = append(args, stub)
		}
		if l.rpath != "" {
			tags := "-Wl,--disable-new-dtags"
			if l.runpath {
				tags = "-Wl,--enable-new-dtags"
			}
			args = append(args, tags, "-Wl,-rpath,"+l.rpath)
		}
		at := filepath.Join(root, l.path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		link(at, args...)
	}
}

// Which copy each package gets is found as the loader finds it.
func TestDuplicateLibraries(t *testing.T) {
	torch := func(needs, rpath string, runpath bool) sharedLibrary {
		return sharedLibrary{site12 + "torch/lib/libtorch_cuda.so", "libtorch_cuda.so", strings.Fields(needs), rpath, runpath}
	}
	nccl, cudnn, cudnnRpath := "$ORIGIN/../../nvidia/nccl/lib", site12+"nvidia/cudnn/lib/", "$ORIGIN/../../nvidia/cudnn/lib"
	const condaPython = "opt/conda/lib/python3.12/site-packages/"
	tests := []struct {
		name      string
		rule      string
		libraries []sharedLibrary
		env       []string
		want      []found
	}{
		{
			name: "the wheel's by RPATH, whatever LD_LIBRARY_PATH says", rule: "duplicate-nccl", env: []string{"LD_LIBRARY_PATH=/opt/nccl/lib"},
			libraries: []sharedLibrary{torch("libnccl.so.2", nccl, false), {path: site12 + "nvidia/nccl/lib/libnccl.so.2", soname: "libnccl.so.2"}, {path: "opt/nccl/lib/libnccl.so.2.18.1", soname: "libnccl.so.2"}},
		},
		{
			name: "an older one by LD_LIBRARY_PATH", rule: "duplicate-nccl", env: []string{"LD_LIBRARY_PATH=/opt/nccl/lib"},
			libraries: []sharedLibrary{torch("libnccl.so.2", nccl, true), {path: site12 + "nvidia/nccl/lib/libnccl.so.2", soname: "libnccl.so.2"}, {path: "opt/nccl/lib/libnccl.so.2.18.1", soname: "libnccl.so.2"}},
			want:      []found{{Error, "LD_LIBRARY_PATH puts NCCL 2.18.1 before version 2.21.5, which libtorch_cuda.so would get by itself"}},
		},
		{
			name: "a newer one by LD_LIBRARY_PATH", rule: "duplicate-nccl", env: []string{"LD_LIBRARY_PATH=/opt/nccl/lib"},
			libraries: []sharedLibrary{torch("libnccl.so.2", nccl, true), {path: site12 + "nvidia/nccl/lib/libnccl.so.2", soname: "libnccl.so.2"}, {path: "opt/nccl/lib/libnccl.so.2.28.3", soname: "libnccl.so.2"}},
			want:      []found{{Warning, "LD_LIBRARY_PATH puts NCCL 2.28.3 before version 2.21.5, which libtorch_cuda.so would get by itself"}},
		},
		{
			name: "two packages, two versions", rule: "duplicate-nccl",
			libraries: []sharedLibrary{
				torch("libnccl.so.2", nccl, false),
				{path: site12 + "nvidia/nccl/lib/libnccl.so.2", soname: "libnccl.so.2"},
				{path: "usr/lib64/libnccl.so.2.18.1", soname: "libnccl.so.2"},
				{path: site12 + "horovod/lib.so", needs: []string{"libnccl.so.2"}},
			},
			want: []found{{Warning, "packages of Python 3.12 in /usr/local get different versions of NCCL: horovod gets 2.18.1, and torch gets 2.21.5"}},
		},
		{
			name: "an extension of torch gets torch's", rule: "duplicate-nccl",
			libraries: []sharedLibrary{
				torch("libnccl.so.2", nccl, false),
				{path: site12 + "nvidia/nccl/lib/libnccl.so.2", soname: "libnccl.so.2"},
				{path: "usr/lib64/libnccl.so.2.18.1", soname: "libnccl.so.2"},
				{path: site12 + "apex/nccl_p2p.so", needs: []string{"libnccl.so.2", "libc10.so"}},
			},
		},
		{
			name: "parts of another cuDNN", rule: "duplicate-cudnn", env: []string{"LD_LIBRARY_PATH=/opt/cudnn/lib"},
			libraries: []sharedLibrary{
				torch("libcudnn.so.9", cudnnRpath, false),
				{path: cudnn + "libcudnn.so.9", soname: "libcudnn.so.9", rpath: "$ORIGIN", runpath: true},
				{path: cudnn + "libcudnn_graph.so.9", soname: "libcudnn_graph.so.9"},
				{path: "opt/cudnn/lib/libcudnn_graph.so.9.5.1", soname: "libcudnn_graph.so.9"},
			},
			want: []found{{Error, "LD_LIBRARY_PATH has parts of cuDNN 9.5.1, which libcudnn.so.9 9.1.0.70 loads in place of its own"}},
		},
		{
			name: "a package that could load cuDNN 8 or 9", rule: "duplicate-cudnn",
			libraries: []sharedLibrary{{path: site12 + "x/a.so", needs: []string{"libcudnn.so.8"}}, {path: site12 + "x/b.so", needs: []string{"libcudnn.so.9"}}},
			want:      []found{{Warning, "parts of /usr/local/lib/python3.12/site-packages/x need libcudnn.so.8 and libcudnn.so.9, and both may be loaded"}},
		},
		{
			name: "packages with a cuDNN each", rule: "duplicate-cudnn",
			libraries: []sharedLibrary{{path: site12 + "x/a.so", needs: []string{"libcudnn.so.8"}}, {path: site12 + "y/b.so", needs: []string{"libcudnn.so.9"}}},
		},
		{
			name: "OpenMP of two families", rule: "duplicate-openmp",
			libraries: []sharedLibrary{
				{path: site12 + "x/a.so", needs: []string{"libgomp.so.1"}},
				{path: "usr/lib64/libgomp.so.1", soname: "libgomp.so.1"},
				{path: site12 + "y/b.so", needs: []string{"libiomp5-abcdef12.so"}, rpath: "$ORIGIN/../y.libs"},
				{path: site12 + "y.libs/libiomp5-abcdef12.so", soname: "libiomp5-abcdef12.so"},
			},
			want: []found{{Note, "packages of Python 3.12 in /usr/local load 2 OpenMP runtimes: GNU (libgomp), Intel (libiomp5)"}},
		},
		{
			name: "OpenMP of conda and of a wheel", rule: "duplicate-openmp", // conda's libgomp is LLVM's by another name
			libraries: []sharedLibrary{
				{path: condaPython + "x/a.so", needs: []string{"libgomp.so.1"}, rpath: "$ORIGIN/../../.."},
				{path: "opt/conda/lib/libomp.so", soname: "libgomp.so.1"},
				{path: condaPython + "y/b.so", needs: []string{"libgomp-a34b3233.so.1"}, rpath: "$ORIGIN/../y.libs"},
				{path: condaPython + "y.libs/libgomp-a34b3233.so.1", soname: "libgomp-a34b3233.so.1"},
			},
			want: []found{{Note, "packages of Python 3.12 in /opt/conda load 2 OpenMP runtimes: GNU (libgomp), LLVM (libomp)"}},
		},
		{
			name: "OpenMP of one family in two wheels", rule: "duplicate-openmp",
			libraries: []sharedLibrary{
				{path: site12 + "x/a.so", needs: []string{"libgomp-a34b3233.so.1"}, rpath: "$ORIGIN"},
				{path: site12 + "x/libgomp-a34b3233.so.1", soname: "libgomp-a34b3233.so.1"},
				{path: site12 + "y/b.so", needs: []string{"libgomp-c1234567.so.1"}, rpath: "$ORIGIN/../y.libs"},
				{path: site12 + "y.libs/libgomp-c1234567.so.1", soname: "libgomp-c1234567.so.1"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			root := factstest.WriteFiles(t, basePython(distribution(site12, "nvidia_nccl_cu12", "2.21.5"), distribution(site12, "nvidia_cudnn_cu12", "9.1.0.70"),
				map[string]string{"opt/conda/bin/python3.12": ""}, distribution(condaPython, "six", "1.17.0")))
			linkLibraries(t, root, tt.libraries...)
			for _, l := range tt.libraries { // the link that ldconfig or a package makes
				if at := filepath.Join(filepath.Dir(l.path), l.soname); l.soname != "" && at != l.path {
					if err := os.Symlink(filepath.Base(l.path), filepath.Join(root, at)); err != nil {
						t.Fatal(err)
					}
				}
			}
			f := factstest.Of(t, factstest.Dir{Path: root}, tt.env...)
			wantFindings(t, pyFindings(t, f, cluster.Profile{}, tt.rule), tt.want)
		})
	}
}

// A rule about Python says nothing of an image without any.
func TestNoPython(t *testing.T) {
	root := factstest.WriteFiles(t, map[string]string{"usr/bin/sh": "", "usr/lib/python3.11/site-packages/README": ""})
	f := factstest.Of(t, factstest.Dir{Path: root}, "PYTHONPATH=/x")
	if got := pyFindings(t, f, cluster.Profile{GPU: []string{"9.0"}}); len(got) > 0 {
		logFindings(t, got)
		t.Error("findings")
	}
}

// Stacks as people install them have nothing worse than missing byte code, and versions that hide those of the Python they
// are put on. SCONCE_TEST_SITES lists their site directories, of one version of Python.
func TestCleanPythonStacks(t *testing.T) {
	sites := os.Getenv("SCONCE_TEST_SITES")
	if sites == "" {
		t.Skip("SCONCE_TEST_SITES is not set")
	}
	for _, site := range filepath.SplitList(sites) {
		t.Run(filepath.Base(site), func(t *testing.T) {
			f := factstest.Of(t, factstest.Dir{Path: "/", Only: []string{strings.TrimPrefix(site, "/")}}, "PATH=/nowhere", "PYTHONPATH="+site)
			if len(f.Pythons) != 1 || len(f.Pythons[0].Distributions) == 0 {
				t.Fatalf("found %v", f.Pythons)
			}
			for _, x := range pyFindings(t, f, cluster.Profile{GPU: []string{"9.0"}}) {
				if x.Rule != "python-no-bytecode" {
					logFindings(t, []Finding{x})
					t.Error("a finding")
				}
			}
		})
	}
}

// pyFindings runs the rules about Python, or those of some IDs.
func pyFindings(t *testing.T, f *facts.Facts, target cluster.Profile, ids ...string) []Finding {
	t.Helper()
	var all []Finding
	s := &Subject{Facts: f, Target: target, Context: t.Context()}
	for _, r := range slices.Concat(pythonRules, condaRules) {
		if len(ids) > 0 && !slices.Contains(ids, r.ID) {
			continue
		}
		if err := r.look(s, func(x Finding) {
			x = r.complete(x)
			wellSaid(t, x)
			all = append(all, x)
		}); err != nil {
			t.Fatalf("%s: %v", r.ID, err)
		}
	}
	return all
}

// logFindings shows findings as a person would read them.
func logFindings(t *testing.T, findings []Finding) {
	t.Helper()
	for _, f := range findings {
		seen, _ := json.Marshal(f.Seen)
		t.Logf("%s %s: %s\n  path %s\n  seen %s\n  why %s\n  do %s", f.Severity, f.Rule, f.Message, f.Path, seen, f.Why, f.Remedy)
	}
}
