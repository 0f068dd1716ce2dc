package condatest

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The files of a Debian's Python, and which it is, as its program says.
var (
	debianPython  = regexp.MustCompile(`^usr/(?:bin/python(3\.\d+)$|lib/python3\.\d+/)`)
	pythonVersion = regexp.MustCompile(`\x00(3\.\d+\.\d+)\+?\x00`)
)

// PythonIn is the Python of a Debian, whose root file system is a tar in a file, as the conda package "python" for linux-64 or
// linux-aarch64: the program, by the usual names, and the standard library with all its compiled modules. Nothing of it is run. It needs
// the libraries of that Debian.
func PythonIn(t testing.TB, file, subdir string) Package {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := Package{Name: "python", Build: "0_cpython", Subdir: subdir, License: "Python-2.0", Files: map[string]File{}}
	minor := ""
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(path.Clean(h.Name), "./")
		m := debianPython.FindStringSubmatch(name)
		if h.Typeflag != tar.TypeReg || m == nil {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if v := pythonVersion.FindSubmatch(data); m[1] != "" && v != nil {
			minor, p.Version = m[1], string(v[1])
		}
		at := strings.TrimPrefix(name, "usr/")
		if !slices.ContainsFunc(strings.Split(at, "/"), func(s string) bool { return slices.Contains(leftOut, s) }) {
			p.Files[at] = File{Data: string(data), Mode: uint32(h.Mode) & 0o777}
		}
	}
	if p.Version == "" {
		t.Fatalf("%s has no Python of Debian", file)
	}
	p.Files["bin/python"], p.Files["bin/python3"] = File{Link: "python" + minor}, File{Link: "python" + minor}
	p.Files["lib/python3/dist-packages"] = File{Link: "../python" + minor + "/site-packages"}
	p.Files["lib/python"+minor+"/site-packages/README.txt"] = File{Data: "This directory exists so that 3rd party packages can be installed here.\n"}
	return p
}
