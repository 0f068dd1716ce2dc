package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// popular are the packages that the tests lay down: scripts, data files, headers, namespace packages, .pth files,
// compiled and pure ones, small and large. Pinned, so that a test means the same tomorrow.
var popular = []string{
	"attrs==26.1.0",
	"certifi==2026.10.18",
	"charset-normalizer==3.5.2",
	"click==8.5.1",
	"coverage==7.17.3",
	"cython==3.3.1",
	"einops==0.8.2",
	"filelock==4.2.11",
	"fsspec==2026.9.0",
	"googleapis-common-protos==1.76.0",
	"greenlet==3.5.6",
	"idna==3.20",
	"ipython==9.18.1",
	"jinja2==3.1.6",
	"jsonschema==4.26.0",
	"jupyter-core==5.9.1",
	"jupyterlab-widgets==3.0.17",
	"markupsafe==3.0.4",
	"matplotlib==3.11.2",
	"mpmath==1.4.1",
	"networkx==3.6.1",
	"ninja==1.13.2",
	"notebook-shim==0.2.4",
	"numpy==2.2.6",
	"packaging==26.3",
	"pandas==3.1.1",
	"pip==26.3",
	"protobuf==7.36.2",
	"psutil==7.2.2",
	"pybind11==3.1.0",
	"pygments==2.21.0",
	"python-dateutil==4.0.0",
	"pytz==2026.6",
	"pyyaml==6.0.3",
	"regex==2026.11.15",
	"requests==2.34.2",
	"rich==15.0.0",
	"ruff==0.17.5",
	"safetensors==0.8.0",
	"scipy==1.17.1",
	"setuptools==84.2.1",
	"six==1.17.0",
	"sympy==1.14.0",
	"tensorboard==2.21.0",
	"tokenizers==0.23.3",
	"tqdm==4.70.1",
	"typing-extensions==4.16.0",
	"tzdata==2026.6",
	"urllib3==2.8.0",
	"wheel==0.48.0",
	"zope-interface==8.7",
}

// wheelDir returns a directory with the wheels of [popular], downloaded once by pip from wherever pip is set up to.
func wheelDir(t testing.TB) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "sconce-test-wheels")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, pin := range popular {
		if findWheel(dir, pin) == "" {
			missing = append(missing, pin)
		}
	}
	if len(missing) == 0 {
		return dir
	}
	python := tooltest.Path(t, "python3")
	args := []string{"-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", dir, "--implementation", "cp", "--python-version", "3.11"}
	for _, tag := range []string{"manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"} {
		args = append(args, "--platform", tag)
	}
	args = append(args, missing...)
	if out, err := mirrortest.Run(func() *exec.Cmd { return exec.Command(python, args...) }); err != nil {
		tooltest.Missing(t, "download test wheels: %v\n%s", err, out)
	}
	return dir
}

// findWheel returns the wheel in dir for a pin like numpy==2.2.6, or "".
func findWheel(dir, pin string) string {
	name, version, _ := strings.Cut(pin, "==")
	paths, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
	for _, p := range paths {
		f, err := parseFileName(filepath.Base(p))
		if err == nil && NormalizeName(f.name) == NormalizeName(name) && sameVersion(f.version, version) {
			return p
		}
	}
	return ""
}

func wheelFor(t testing.TB, name string) string {
	t.Helper()
	dir := wheelDir(t)
	for _, pin := range popular {
		if strings.HasPrefix(pin, name+"==") {
			return findWheel(dir, pin)
		}
	}
	t.Fatalf("%s is not among the test wheels", name)
	return ""
}

func allWheels(t testing.TB) []string {
	t.Helper()
	dir := wheelDir(t)
	var paths []string
	for _, pin := range popular {
		paths = append(paths, findWheel(dir, pin))
	}
	slices.Sort(paths)
	return paths
}

func openWheelFile(t testing.TB, path string) *Wheel {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenWheel(f, info.Size(), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// putWheel stores a wheel as a download would.
func putWheel(t testing.TB, st *store.Store, path string) Item {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return putWheelBytes(t, st, filepath.Base(path), data)
}

func putWheelBytes(t testing.TB, st *store.Store, file string, data []byte) Item {
	t.Helper()
	d, err := st.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	name, err := parseFileName(file)
	if err != nil {
		t.Fatal(err)
	}
	return Item{Name: name.name, Version: name.version, File: file, Digest: d, Size: int64(len(data))}
}

// testTarget is an environment for the Python that runs the tests' worker processes.
func testTarget(version string) Target {
	return Target{Root: "opt/venv", Python: Interpreter{Executable: "/usr/bin/python3", Version: version, Prefix: "/usr", Implementation: "cpython", Platform: "x86_64", Glibc: "2.36"}}
}
