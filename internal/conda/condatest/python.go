package condatest

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/cpython"
	"sconce.dev/sconce/internal/tooltest"
)

// machinePython is what this machine says about its Python.
type machinePython struct{ exe, stdlib, version string }

var findPython = sync.OnceValues(func() (machinePython, error) {
	const ask = `import sys, os, sysconfig, platform
print(os.path.realpath(sys.executable)); print(sysconfig.get_paths()["stdlib"]); print(platform.python_version())`
	python := "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	out, err := exec.Command(python, "-I", "-c", ask).Output()
	if err != nil {
		return machinePython{}, err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return machinePython{exe: lines[0], stdlib: lines[1], version: lines[2]}, nil
})

// compileLean prints the modules that starting Python, looking for packages and building a wheel import, as JSON: files of the standard
// library, by their path in it, with the byte code of each in base64. It is valid whatever becomes of times (PEP 552, unchecked).
const compileLean = `import base64, email.parser, importlib.metadata, importlib.util, json, os, struct, sys, sysconfig, tarfile, warnings, zipfile
import encodings.ascii, encodings.cp437, encodings.idna, encodings.latin_1
from importlib._bootstrap_external import _code_to_hash_pyc
stdlib, files = sysconfig.get_paths()["stdlib"] + "/", {}
for name, module in list(sys.modules.items()):
    path = getattr(module, "__file__", None) or ""
    if path.startswith(stdlib) and path.endswith(".py") and "-packages/" not in path and name != "__main__":
        with open(path, "rb") as f:
            source = f.read()
        code = _code_to_hash_pyc(compile(source, path, "exec", dont_inherit=True), importlib.util.source_hash(source), False)
        files[path[len(stdlib):]] = base64.b64encode(code).decode()
print(json.dumps(files))`

// leanModules are those modules, with their byte code.
var leanModules = sync.OnceValues(func() (code map[string][]byte, err error) {
	py, err := findPython()
	if err != nil {
		return nil, err
	}
	out, err := exec.Command(py.exe, "-I", "-c", compileLean).Output()
	if err != nil {
		return nil, err
	}
	return code, json.Unmarshal(out, &code)
})

// LeanPython is [RealPython] with no more of its standard library than it takes to start, to find packages and to build a wheel, and with byte
// code, as a Python of conda has it: whatever is started does not compile what it imports first.
func LeanPython(t testing.TB) Package {
	t.Helper()
	p := RealPython(t)
	modules, err := leanModules()
	if err != nil {
		tooltest.Missing(t, "what this machine's Python imports: %v", err)
	}
	minor := PythonMinor(t)
	library := "lib/python" + minor + "/"
	for name := range p.Files {
		in, of := strings.CutPrefix(name, library)
		if _, needed := modules[in]; of && strings.HasSuffix(in, ".py") && !needed {
			delete(p.Files, name)
		}
	}
	for name, code := range modules {
		if _, there := p.Files[library+name]; !there {
			continue
		}
		dir, file := path.Split(name)
		pyc := strings.TrimSuffix(file, ".py") + "." + cpython.CacheTag(minor) + ".pyc"
		p.Files[library+dir+"__pycache__/"+pyc] = File{Data: string(code)}
	}
	return p
}

// Subdir is the subdir of packages for this machine.
func Subdir() string {
	if runtime.GOARCH == "arm64" {
		return "linux-aarch64"
	}
	return "linux-64"
}

// leftOut are the parts of a standard library that no test needs.
var leftOut = []string{
	"test", "tests", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter", "ensurepip", "lib2to3", "pydoc_data", "turtledemo",
	"distutils", "xmlrpc", "wsgiref", "sqlite3", "curses", "dbm",
}

// RealPython is this machine's Python as the conda package "python" for this machine: its program, by the usual names, and the
// standard library without what tests do not need. It finds its library from where it lies, and needs the libraries of
// [Root]. Its version is that of [PythonVersion].
func RealPython(t testing.TB) Package {
	t.Helper()
	py, err := findPython()
	if err != nil {
		tooltest.Missing(t, "no Python on this machine: %v", err)
	}
	minor := PythonMinor(t)
	files := map[string]File{
		"bin/python" + minor: {Data: read(t, py.exe), Mode: 0o755},
		"bin/python3":        {Link: "python" + minor},
		"bin/python":         {Link: "python" + minor},
		// Debian's looks for packages there.
		DebianPackages: {Link: "../python" + minor + "/site-packages"},
		"lib/python" + minor + "/site-packages/README.txt": {Data: "This directory exists so that 3rd party packages can be installed here.\n"},
	}
	err = filepath.WalkDir(py.stdlib, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains(leftOut, d.Name()) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && (strings.HasSuffix(path, ".py") || neededModule(path)) {
			name, _ := filepath.Rel(py.stdlib, path)
			files["lib/python"+minor+"/"+name] = File{Data: read(t, path)}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return Package{Name: "python", Version: py.version, Build: "0_cpython", Subdir: Subdir(), Files: files, License: "Python-2.0"}
}

// neededModule reports whether a compiled module of the standard library loads without libraries beyond the C library.
func neededModule(path string) bool {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return strings.Contains(path, "lib-dynload/") && slices.Contains([]string{"_struct", "binascii", "_json", "math", "_bisect", "_random", "_posixsubprocess", "select", "_datetime", "_heapq", "_csv", "_pickle", "_socket", "array", "fcntl", "zlib", "_contextvars"}, name)
}

// PythonVersion is the version of [RealPython].
func PythonVersion(t testing.TB) string {
	t.Helper()
	py, err := findPython()
	if err != nil {
		tooltest.Missing(t, "no Python on this machine: %v", err)
	}
	return py.version
}

// PythonMinor is the version of [RealPython] without its last part.
func PythonMinor(t testing.TB) string {
	t.Helper()
	v := PythonVersion(t)
	return v[:strings.LastIndexByte(v, '.')]
}

// Root is a small root file system, as a tar: the loader and libraries that [RealPython] and bash need, bash, and busybox for all
// other commands. It is made once, and nobody may write to it.
func Root(t testing.TB) []byte {
	t.Helper()
	root.Lock()
	defer root.Unlock()
	if root.tar == nil {
		root.tar = tarOf(t, rootFiles(t))
	}
	return root.tar
}

var root struct {
	sync.Mutex
	tar []byte
}

// DebianPackages is where Debian's Python has packages, below its prefix.
const DebianPackages = "lib/python3/dist-packages"

// RootWithPython is [Root] with [LeanPython] in a directory such as "usr", and files in a directory of packages below it:
// [DebianPackages], as a distribution has it, or site-packages of the Python, as who compiles it has.
func RootWithPython(t testing.TB, prefix, packages string, installed map[string]string) []byte {
	t.Helper()
	files := rootFiles(t)
	for name, f := range LeanPython(t).Files {
		if packages != DebianPackages || name != DebianPackages && !strings.Contains(name, "/site-packages/") {
			files[path.Join(prefix, name)] = f
		}
	}
	if packages == DebianPackages && !strings.Contains(files[path.Join(prefix, "lib/python"+PythonMinor(t), "site.py")].Data, "dist-packages") {
		tooltest.Missing(t, "this machine's Python is not Debian's")
	}
	for name, text := range installed {
		files[path.Join(prefix, packages, name)] = File{Data: text}
	}
	return tarOf(t, files)
}

func rootFiles(t testing.TB) map[string]File {
	t.Helper()
	py, err := findPython()
	if err != nil {
		tooltest.Missing(t, "no Python on this machine: %v", err)
	}
	files := map[string]File{"etc/passwd": {Data: "root:x:0:0:root:/root:/bin/sh\n"}, "tmp/.x": {}, "root/.x": {}}
	programs := map[string]string{"bin/bash": find(t, "bash"), "bin/busybox": find(t, "busybox")}
	for at, path := range programs {
		files[at] = File{Data: read(t, path), Mode: 0o755}
	}
	for _, name := range []string{"sh", "ls", "cat", "echo", "mkdir", "rm", "cp", "mv", "ln", "env", "touch", "sort", "grep", "sed", "test", "dirname", "basename", "chmod", "true", "false", "readlink"} {
		files["bin/"+name] = File{Link: "busybox"}
	}
	for _, program := range []string{py.exe, programs["bin/bash"]} {
		for _, lib := range libraries(t, program) {
			files[strings.TrimPrefix(lib, "/")] = File{Data: read(t, lib), Mode: 0o755}
		}
	}
	return files
}

func find(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		tooltest.Missing(t, "%v", err)
	}
	return path
}

// libraries lists what a program loads, by the names it loads it by.
func libraries(t testing.TB, exe string) []string {
	t.Helper()
	out, err := exec.Command("ldd", exe).Output()
	if err != nil {
		tooltest.Missing(t, "ldd %s: %v", exe, err)
	}
	var libs []string
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		libs = append(libs, m[1])
	}
	return libs
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
