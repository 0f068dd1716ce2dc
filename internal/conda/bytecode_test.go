package conda_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/cpython"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/tooltest"
)

// thisPython compiles with this machine's Python, one process for each source.
type thisPython struct {
	t     testing.TB
	mu    sync.Mutex
	paths []string
}

const compileOne = `import sys, importlib.util, importlib._bootstrap_external as b
source = sys.stdin.buffer.read()
try:
    code = compile(source, sys.argv[1], "exec", dont_inherit=True)
except SyntaxError:
    sys.exit(9)
sys.stdout.buffer.write(b._code_to_hash_pyc(code, importlib.util.source_hash(source), False))`

func (p *thisPython) Compile(_ context.Context, path string, source []byte) ([]byte, bool, error) {
	p.mu.Lock()
	p.paths = append(p.paths, path)
	p.mu.Unlock()
	cmd := exec.Command("/usr/bin/python3", "-I", "-c", compileOne, path)
	cmd.Stdin = strings.NewReader(string(source))
	out, err := cmd.Output()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 9 {
		return nil, false, nil
	}
	return out, true, err
}

// pyc makes byte code as conda-build does, by the time of the source.
func pyc(t testing.TB, source string, mtime uint32) string {
	t.Helper()
	cmd := exec.Command("/usr/bin/python3", "-I", "-c", `import sys, importlib._bootstrap_external as b
source = sys.stdin.buffer.read()
sys.stdout.buffer.write(b._code_to_timestamp_pyc(compile(source, "x.py", "exec"), int(sys.argv[1]), len(source)))`, fmt.Sprint(mtime))
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.Output()
	if err != nil {
		tooltest.Missing(t, "%v", err)
	}
	return string(out)
}

// What is shipped stays valid though times change; what the prefix has made stale, and what packages for any Python lack, is
// compiled; without a compiler it is not there. A real Python judges.
func TestBytecode(t *testing.T) {
	python := condatest.LeanPython(t)
	minor := condatest.PythonMinor(t)
	tag := cpython.CacheTag(minor)
	site := "lib/python" + minor + "/site-packages/"
	const built = 1704067200 // the time that condatest gives to files
	source := map[string]string{"fits": "x = 'fits'\n", "patched": "x = '" + condatest.Placeholder + "'\n", "late": "x = 'late'\n", "broken": "x = '" + condatest.Placeholder + "' ?\n"}
	native := condatest.Package{Name: "native", Version: "1", Depends: []string{"python"}, Files: map[string]condatest.File{
		site + "__pycache__/fits.cpython-27.pyc":        {Data: "not read"},
		site + "__pycache__/gone." + tag + ".pyc":       {Data: pyc(t, "1", built)},
		site + "__pycache__/broken." + tag + ".pyc":     {Data: pyc(t, "1", built)},
		site + "__pycache__/patched.cpython-399.pyc":    {Data: pyc(t, "1", built)},
		site + "__pycache__/patched." + tag + ".pyc":    {Data: pyc(t, source["patched"], built)},
		site + "__pycache__/fits." + tag + ".pyc":       {Data: pyc(t, source["fits"], built)},
		site + "__pycache__/late." + tag + ".pyc":       {Data: pyc(t, source["late"], built+1)},
		site + "__pycache__/fits." + tag + ".opt-1.pyc": {Data: pyc(t, source["fits"], built)},
	}}
	for name, text := range source {
		native.Files[site+name+".py"] = condatest.File{Data: text}
	}
	pure := condatest.Package{Name: "pure", Version: "1", Noarch: "python", Depends: []string{"python"}, EntryPoints: []string{"say = pure:say"}, Files: map[string]condatest.File{
		"site-packages/pure/__init__.py": {Data: "def say():\n    print('said by', __file__)\n"},
		"site-packages/pure/template.py": {Data: "{{ no Python }}"},
	}}
	python.Files["lib/python"+minor+"/_own.py"] = condatest.File{Data: "x = '" + condatest.Placeholder + "'\n"}
	python.Files["lib/python"+minor+"/__pycache__/_own."+tag+".pyc"] = condatest.File{Data: pyc(t, "x = 0\n", built)}
	c := condatest.NewChannel(t, python, native, pure)

	root := shortDir(t)
	target := conda.Target{Prefix: root, Python: conda.Python{Version: condatest.PythonVersion(t), SitePackages: strings.TrimSuffix(site, "/")}}
	compiler := &thisPython{t: t}
	l := lay(t, c, conda.Environment{Target: target, Compiler: compiler}, compiler, []string{"python"}, []string{"native", "pure"})
	for _, d := range append(slices.Clone(l.Layers), l.top) {
		unpack(t, l.store, d)
	}
	want := []string{"lib/python" + minor + "/_own.py", site + "broken.py", site + "late.py", site + "patched.py", site + "pure/__init__.py", site + "pure/template.py"}
	for i := range want {
		want[i] = root + "/" + want[i]
	}
	slices.Sort(compiler.paths)
	if !slices.Equal(compiler.paths, want) {
		t.Errorf("compiled %q\nwant %q", compiler.paths, want)
	}
	var there []string
	for _, p := range l.Manifests[1].Packages {
		for _, f := range p.Files {
			if strings.HasSuffix(f.Path, ".pyc") {
				there = append(there, strings.TrimPrefix(f.Path, site))
			}
		}
	}
	slices.Sort(there)
	if want := []string{
		"__pycache__/fits.cpython-27.pyc", "__pycache__/fits." + tag + ".opt-1.pyc", "__pycache__/fits." + tag + ".pyc", "__pycache__/gone." + tag + ".pyc",
		"__pycache__/late." + tag + ".pyc", "__pycache__/patched." + tag + ".pyc", "pure/__pycache__/__init__." + tag + ".pyc",
	}; !slices.Equal(there, want) {
		t.Errorf("byte code: got %q\nwant %q", there, want)
	}

	// The hash of each source is checked by Python itself, and then nothing is.
	for _, check := range []string{"always", "default"} {
		cmd := exec.Command(filepath.Join(root, "bin/python"), "-I", "-B", "-v", "--check-hash-based-pycs", check, "-c",
			"import fits, patched, late, pure, _own; print(fits.x, patched.x, late.x, _own.x, pure.__cached__)")
		printed, err := cmd.CombinedOutput()
		out := strings.ReplaceAll(string(printed), "lib/python3/dist-packages/", site) // Debian's name for it
		if want := "fits " + root + " late " + root + " " + root + "/" + site + "pure/__pycache__/__init__." + tag + ".pyc\n"; err != nil || !strings.Contains(out, want) {
			t.Fatalf("%v: want %q in\n%s", err, want, out)
		}
		for _, module := range []string{"fits", "patched", "late", "pure/__init__", "../_own"} {
			at := filepath.Join(root, site, filepath.Dir(module), "__pycache__", filepath.Base(module)+"."+tag+".pyc")
			if !strings.Contains(out, "# code object from '"+at+"'") {
				t.Errorf("--check-hash-based-pycs %s: %s did not come from byte code:\n%s", check, module, out)
			}
		}
	}
	if out, err := exec.Command(filepath.Join(root, "bin/say")).CombinedOutput(); err != nil || !strings.Contains(string(out), "said by "+root) {
		t.Errorf("the command: %v, %s", err, out)
	}
	records(t, root, l)
	withoutCompiler(t, c, target)
}

// A Python without the global lock looks for packages in a directory of its own, which its record names (CEP 17), under the usual names
// of byte code: sys.implementation.cache_tag has no "t". Key and layer are others than those of the usual Python.
func TestFreeThreadedBytecode(t *testing.T) {
	minor := condatest.PythonMinor(t)
	tag := cpython.CacheTag(minor)
	site := "lib/python" + minor + "t/site-packages"
	python := condatest.LeanPython(t)
	usual := conda.Python{Version: python.Version, SitePackages: "lib/python" + minor + "/site-packages"}
	python.Build, python.SitePackages = "0_cp"+strings.ReplaceAll(minor, ".", "")+"t", site
	pure := condatest.Package{Name: "pure", Version: "1", Noarch: "python", Depends: []string{"python"}, EntryPoints: []string{"say = pure:say"}, Files: map[string]condatest.File{
		"site-packages/pure/__init__.py": {Data: "def say():\n    print('said by', __file__)\n"},
	}}
	const built = 1704067200
	native := condatest.Package{Name: "native", Version: "1", Depends: []string{"python", "python_abi 3.*"}, Files: map[string]condatest.File{
		site + "/native.py": {Data: "x = 1\n"}, site + "/__pycache__/native." + tag + ".pyc": {Data: pyc(t, "x = 1\n", built)},
	}}
	root := shortDir(t)
	c := condatest.NewChannel(t, python, native, pure)
	packages := c.Packages("https://example.org/c")
	target := conda.Target{Prefix: root, Python: conda.PythonOf(packages)}
	if target.Python.SitePackages != site {
		t.Fatalf("packages are looked for in %s", target.Python.SitePackages)
	}
	compiler := &thisPython{t: t}
	l := lay(t, c, conda.Environment{Target: target, Compiler: compiler}, compiler, []string{"python"}, []string{"native", "pure"})
	for _, d := range append(slices.Clone(l.Layers), l.top) {
		unpack(t, l.store, d)
	}
	if want := []string{root + "/" + site + "/pure/__init__.py"}; !slices.Equal(compiler.paths, want) {
		t.Errorf("compiled %q, want %q", compiler.paths, want)
	}
	cmd := exec.Command(filepath.Join(root, "bin/python"), "-I", "-B", "-v", "--check-hash-based-pycs", "always", "-c", "import sys; sys.path.insert(0, sys.argv[1]); import native, pure", filepath.Join(root, site))
	out, err := cmd.CombinedOutput()
	for _, at := range []string{"__pycache__/native." + tag + ".pyc", "pure/__pycache__/__init__." + tag + ".pyc"} {
		if err != nil || !strings.Contains(string(out), "# code object from '"+filepath.Join(root, site, at)+"'") {
			t.Errorf("%s is not used: %v\n%s", at, err, out)
		}
	}
	group := conda.Group{Name: "pure", Packages: slices.DeleteFunc(packages, func(p conda.Package) bool { return p.Name != "pure" })}
	other := conda.Target{Prefix: root, Python: usual}
	if conda.LayerKey(group, target, true, layer.Options{}) == conda.LayerKey(group, other, true, layer.Options{}) {
		t.Error("the layer has the key of that for the usual Python")
	}
}

// records checks that what a record lists is what is there.
func records(t *testing.T, root string, l laid) {
	t.Helper()
	files := map[string]bool{}
	for _, m := range l.Manifests {
		for _, p := range m.Packages {
			for _, f := range p.Files {
				files[f.Path] = strings.HasPrefix(f.Path, "conda-meta/") // no record lists itself
			}
		}
	}
	paths, err := filepath.Glob(filepath.Join(root, "conda-meta/*.json"))
	if err != nil || len(paths) != 3 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		var r struct{ Files []string }
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Files {
			if _, ok := files[f]; !ok {
				t.Errorf("%s lists %s, which is not there", path, f)
			}
			files[f] = true
		}
	}
	for _, f := range slices.Sorted(maps.Keys(files)) {
		if !files[f] {
			t.Errorf("no record lists %s", f)
		}
	}
}

func withoutCompiler(t *testing.T, c *condatest.Channel, target conda.Target) {
	t.Helper()
	l := lay(t, c, conda.Environment{Target: target}, nil, []string{"python"}, []string{"native", "pure"})
	for _, p := range l.Manifests[1].Packages {
		for _, f := range p.Files {
			if strings.Contains(f.Path, "patched.cp") || strings.Contains(f.Path, "late.cp") || strings.Contains(f.Path, "pure/__pycache__") {
				t.Errorf("%s is there, though nothing compiled it", f.Path)
			}
		}
	}
}

// shortDir is a directory whose path may be a prefix.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Python says what SipHash-1-3 is. SipHash-2-4, which Pythons before 3.11 have, is what its authors give for their own key, whose
// second half is not 0, and so cannot be asked for here.
func TestSipHash(t *testing.T) {
	out, err := exec.Command("/usr/bin/python3", "-I", "-c", `import _imp, json
print(json.dumps([str(_imp.source_hash(0x0a0d0d00 + n, bytes(range(n)))and int.from_bytes(_imp.source_hash(0x0a0d0d00 + n, bytes(range(n))), "little")) for n in range(40)]))`).Output()
	if err != nil {
		tooltest.Missing(t, "%v", err)
	}
	var want []json.Number
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err, string(out))
	}
	for n, w := range want {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i)
		}
		key := uint64(0x0a0d0d00 + n)
		if got := fmt.Sprint(conda.SipHash(1, 3, key, data)); got != w.String() {
			t.Errorf("%d bytes: got %s, want %s", n, got, w)
		}
	}
}
