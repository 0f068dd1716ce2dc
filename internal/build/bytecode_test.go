package build_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// TestBytecode builds on a base with this machine's own Python, which compiles in the sandbox, and runs the result.
func TestBytecode(t *testing.T) {
	if err := sandbox.Check(); err != nil {
		tooltest.Missing(t, "%v (%s)", err, fault.HintOf(err))
	}
	base := thisPython(t)
	locktest.Isolate(t)
	alpha := locktest.Wheel{Name: "alpha", Version: "1.0", Files: map[string]string{
		"alpha/sets.py":                        "X = {'a', 'b', 'c', 'd'}\ndef f(x): return x in {'e', 'f', 'g'}\n",
		"alpha/template.py":                    "this is {{ no }} Python\n",
		"alpha-1.0.dist-info/entry_points.txt": "[console_scripts]\nsay = alpha.sets:f\n",
	}}
	x := locktest.NewIndex(t, alpha)
	var digests []string
	for range 2 {
		st := storetest.New(t)
		dir := t.TempDir()
		locktest.Write(t, dir, map[string]string{
			"base.tar": string(base), "pylock.toml": x.Pylock(t, alpha), recipe.FileName: strings.ReplaceAll(locktest.Head+python, "bytecode = false", ""),
		})
		result := mustRun(t.Context(), t, st, dir)
		digests = append(digests, string(result.Image.Digest))
		roots, err := sandbox.Layers(t.Context(), st, result.Image.Layers)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		code, err := sandbox.Run(t.Context(), sandbox.Options{
			Layers: roots, ReadOnly: true, Stdout: &out, Stderr: &out, Env: []string{"PATH=/opt/venv/bin:/usr/bin"},
			Args: []string{"/opt/venv/bin/python", "-v", "-c", "import alpha.sets, sys; print(alpha.__version__, sys.prefix, alpha.sets.f('e'))"},
		})
		if err != nil || code != 0 || !strings.Contains(out.String(), "1.0 /opt/venv True\n") {
			t.Fatalf("code %d, %v\n%s", code, err, out.String())
		}
		if !regexp.MustCompile(`code object from '/opt/venv/[^']*/alpha/__pycache__/sets\.cpython-[0-9]+\.pyc'`).MatchString(out.String()) {
			t.Errorf("the module did not come from byte code:\n%s", out.String())
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("two builds gave %s and %s", digests[0], digests[1])
	}
}

// TestBytecodeForAnotherProcessor: where the image's Python does not run, one of this machine with the same version makes the same
// layer of a wheel, byte code included.
func TestBytecodeForAnotherProcessor(t *testing.T) {
	if err := sandbox.Check(); err != nil {
		tooltest.Missing(t, "%v (%s)", err, fault.HintOf(err))
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("arm64 is not another processor here")
	}
	files, executable := pythonFiles(t)
	locktest.Isolate(t)
	alpha := locktest.Wheel{Name: "alpha", Version: "1.0", Files: map[string]string{
		"alpha/sets.py": "X = {'a', 'b', 'c', 'd'}\nY = 2**40 + 1.5\ndef f(x): return x in {'e', 'f', 'g'}\n",
	}}
	x := locktest.NewIndex(t, alpha)
	text := strings.ReplaceAll(locktest.Head+python, "bytecode = false", "")
	wheelLayer := func(base []byte, text string, o build.Options) store.Digest {
		st, dir := storetest.New(t), t.TempDir()
		locktest.Write(t, dir, map[string]string{"base.tar": string(base), "pylock.toml": x.Pylock(t, alpha), recipe.FileName: text})
		result, err := runWith(t.Context(), st, dir, o)
		if err != nil {
			t.Fatal(err)
		}
		index, err := layer.OpenIndex(t.Context(), st, result.Image.Layers[1])
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(index.Entries, func(e layer.IndexEntry) bool { return strings.HasSuffix(e.Path, ".pyc") }) {
			t.Errorf("no byte code in the layer of the wheel: %v", index.Entries)
		}
		return layers(result.Image)[1]
	}
	own := wheelLayer(tarOf(t, files), text, build.Options{})
	other := wheelLayer(asARM(t, tarOf(t, files), executable), strings.ReplaceAll(text, "linux/amd64", "linux/arm64"), build.Options{Python: executable})
	if own != other {
		t.Errorf("the image's own Python makes the layer %s, this machine's %s", own, other)
	}
}

// asARM makes a base look like one for arm64, to those who only read it.
func asARM(t *testing.T, base []byte, executable string) []byte {
	t.Helper()
	const machineAt, aarch64 = 18, 183 // System V ABI, "ELF Header": e_machine
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for r := tar.NewReader(bytes.NewReader(base)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if "/"+h.Name == executable || h.Name == strings.TrimPrefix(filepath.Dir(executable), "/")+"/python3" {
			data[machineAt] = aarch64
		}
		h.Name = strings.ReplaceAll(h.Name, "x86_64-linux-gnu", "aarch64-linux-gnu")
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// thisPython makes a root file system of this machine's Python with its standard library and the libraries that it needs.
func thisPython(t testing.TB) []byte {
	t.Helper()
	files, _ := pythonFiles(t)
	return tarOf(t, files)
}

// pythonFiles lists the files of this machine's Python, by their place in a root file system, and says which is the program.
func pythonFiles(t testing.TB) (files map[string]string, executable string) {
	t.Helper()
	const ask = "import sys, os, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_paths()['stdlib'])"
	python := "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	out, err := exec.Command(python, "-I", "-c", ask).Output()
	if err != nil {
		tooltest.Missing(t, "no Python on this machine: %v", err)
	}
	exe, stdlib, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	files = map[string]string{exe: exe, filepath.Dir(exe) + "/python3": exe}
	for _, lib := range libraries(t, exe) {
		files[lib] = lib
	}
	err = filepath.WalkDir(stdlib, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"test", "tests", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter", "ensurepip", "lib2to3"}, d.Name()) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && (strings.HasSuffix(path, ".py") || strings.Contains(path, "lib-dynload/_struct") || strings.Contains(path, "lib-dynload/binascii")) {
			files[path] = path
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, exe
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

// tarOf packs files, given by their place in the tar and on this machine.
func tarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, path := range files {
		data, err := os.ReadFile(path)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
