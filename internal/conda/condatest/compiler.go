package condatest

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// RealCompiler is this machine's C compiler as the conda package "c-compiler": gcc with what it starts, and the headers that
// extensions of Python include. Its activation sets CC, CFLAGS and LDFLAGS, as conda's compilers do. What it links are shared
// libraries that find the C library in the program that loads them. It needs sh, and the C library of [Root].
func RealCompiler(t testing.TB) Package {
	t.Helper()
	gcc, err := filepath.EvalSymlinks(find(t, "gcc"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]File{}
	started := []string{gcc}
	for _, name := range []string{"cc1", "collect2", "as", "ld"} {
		program := find(t, ask(t, gcc, "-print-prog-name="+name))
		started = append(started, program)
		at := "bin/" + name
		if rest, ok := strings.CutPrefix(program, "/usr/lib"); ok { // gcc looks for these from where it is itself
			at = "lib" + rest
		}
		files["lib/cc/"+at] = File{Data: read(t, program), Mode: 0o755}
	}
	files["lib/cc/bin/gcc"] = File{Data: read(t, gcc), Mode: 0o755}
	for _, program := range started {
		for _, lib := range libraries(t, program) {
			if name := path.Base(lib); !strings.HasPrefix(name, "ld-linux") && !strings.HasPrefix(name, "libc.so") {
				files["lib/cc/so/"+name] = File{Data: read(t, lib), Mode: 0o755}
			}
		}
	}
	for _, header := range headers(t) {
		switch rest := strings.TrimPrefix(header, "/usr/"); {
		case isPythons(t, header):
		case strings.HasPrefix(rest, "include/"):
			files["lib/cc/sysroot/usr/"+rest] = File{Data: read(t, header)}
		default:
			files["lib/cc/"+rest] = File{Data: read(t, header)}
		}
	}
	files["bin/conda-linux-gnu-cc"] = File{Mode: 0o755, Data: strings.ReplaceAll(`#!/bin/sh
LD_LIBRARY_PATH=HERE/so PATH=HERE/bin:$PATH exec HERE/bin/gcc --sysroot=HERE/sysroot -fno-use-linker-plugin "$@"
`, "HERE", Placeholder+"/lib/cc")}
	files["etc/conda/activate.d/activate-gcc.sh"] = File{Data: `export CC="$CONDA_PREFIX/bin/conda-linux-gnu-cc" CFLAGS="-O2 -fPIC" LDFLAGS="-shared -nostdlib"` + "\n"}
	return Package{Name: "c-compiler", Version: ask(t, gcc, "-dumpfullversion"), Subdir: Subdir(), Files: files}
}

// WithHeaders adds to a [RealPython] what extensions include of it.
func WithHeaders(t testing.TB, python Package) Package {
	t.Helper()
	for _, header := range headers(t) {
		if !isPythons(t, header) {
			continue
		}
		rest := strings.TrimPrefix(header, "/usr/include/")
		if machine := strings.TrimSuffix(rest, "/python"+PythonMinor(t)+"/pyconfig.h"); machine != rest {
			rest = "python" + PythonMinor(t) + "/" + rest // which the one of all machines includes by that name
		}
		python.Files["include/"+rest] = File{Data: read(t, header)}
	}
	return python
}

// headers lists what an extension of Python includes.
func headers(t testing.TB) []string {
	t.Helper()
	include := "/usr/include/python" + PythonMinor(t)
	if _, err := os.Stat(include + "/Python.h"); err != nil {
		tooltest.Missing(t, "no headers of Python: %v", err)
	}
	cmd := exec.Command(find(t, "gcc"), "-M", "-O2", "-fPIC", "-I"+include, "-x", "c", "-")
	cmd.Stdin = strings.NewReader("#include <Python.h>\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("gcc -M: %v", err)
	}
	var all []string
	for _, word := range strings.Fields(strings.ReplaceAll(string(out), "\\\n", " ")) {
		if path.IsAbs(word) {
			all = append(all, path.Clean(word))
		}
	}
	return all
}

func isPythons(t testing.TB, header string) bool {
	return strings.Contains(header, "/python"+PythonMinor(t)+"/")
}

// ask returns what a program prints.
func ask(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", program, args, err)
	}
	return strings.TrimSpace(string(out))
}
