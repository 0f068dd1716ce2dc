package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// wheelRecipe writes a recipe with one wheel, locked by a pylock.toml that somebody else wrote, so that sconce alone reads it.
func (p *place) wheelRecipe(dir string, wheel []byte) {
	p.t.Helper()
	const file = "demo-1.0-py3-none-any.whl"
	files := map[string]string{
		"base.tar": string(locktest.Base{}.Tar(p.t)), file: string(wheel),
		"sconce.toml": locktest.Head + "[python]\nlock = \"pylock.toml\"\nbytecode = false\n",
		"pylock.toml": fmt.Sprintf("lock-version = \"1.0\"\ncreated-by = \"somebody\"\nrequires-python = \">=3.11\"\n[[packages]]\nname = \"demo\"\nversion = \"1.0\"\n"+
			"[[packages.wheels]]\nname = %q\npath = %q\nhashes = { sha256 = \"%x\" }\n", file, file, sha256.Sum256(wheel)),
	}
	locktest.Write(p.t, p.path(dir), files)
	p.own()
}

// demo is a wheel with more files.
func demo(t *testing.T, files map[string]string) []byte {
	return locktest.Wheel{Name: "demo", Version: "1.0", Files: files}.Bytes(t)
}

// A wheel that brings an interpreter, or writes outside of what is its own, is refused before anything is laid down (uv 0.12: wheels that
// replace the interpreter; pip CVE-2025-8869 and its kin for names that lead out). What only extends Python is taken.
func TestWheelReplacesInterpreter(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		entry := func(name string) map[string]string {
			return map[string]string{"demo-1.0.dist-info/entry_points.txt": "[console_scripts]\n" + name + " = demo:main\n"}
		}
		data := func(name string) map[string]string { return map[string]string{"demo-1.0.data/" + name: "evil"} }
		for name, test := range map[string]struct {
			files map[string]string
			want  string
		}{
			"script python":        {data("scripts/python"), "bin/python, which belongs to the Python environment"},
			"script python3":       {data("scripts/python3"), "bin/python3, which belongs to the Python environment"},
			"script python3.11":    {data("scripts/python3.11"), "bin/python3.11, which belongs to the Python environment"},
			"below python":         {data("scripts/python/x"), "bin/python"},
			"script of another":    {data("scripts/python3.12"), "bin/python3.12"},
			"script of no GIL":     {data("scripts/python3.11t"), "bin/python3.11t"},
			"script Python":        {data("scripts/Python"), "bin/Python"},
			"script pythonw":       {data("scripts/pythonw"), "bin/pythonw"},
			"data python":          {data("data/bin/python"), "bin/python, which belongs to the Python environment"},
			"command python":       {entry("python"), "bin/python, which belongs to the Python environment"},
			"command Python":       {entry("Python"), "bin/Python"},
			"command python3":      {entry("python3"), "bin/python3, which belongs to the Python environment"},
			"command activate":     {entry("activate"), "bin/activate, which belongs to the Python environment"},
			"configuration":        {data("data/pyvenv.cfg"), "pyvenv.cfg, which belongs to the Python environment"},
			"below a link":         {data("data/lib64/python3.11/site-packages/../../../x"), "could lead anywhere"},
			"a name upwards":       {map[string]string{"../../bin/python": "evil"}, "could lead anywhere"},
			"an absolute name":     {map[string]string{"/usr/bin/python3": "evil"}, "absolute path"},
			"another's metadata":   {map[string]string{"pip-24.0.dist-info/RECORD": "evil"}, "two metadata directories"},
			"a command with slash": {entry("../python"), "cannot be the name of a command"},
			"a place of its own":   {data("bin/python"), "no known place"},
		} {
			dir := strings.ReplaceAll(name, " ", "-")
			p.wheelRecipe(dir, demo(t, test.files))
			if r := p.fails(1, []string{test.want, "demo-1.0-py3-none-any.whl", "hint: "}, "build", dir, "-o", "oci:"+p.path(dir, "out")); p.exists(dir, "out") {
				t.Errorf("%s: something was written: %v", name, r)
			}
		}
		p.wheelRecipe("good", demo(t, map[string]string{
			"demo.pth": "import demo\n", "sitecustomize.py": "x = 1\n", "demo-1.0.data/scripts/demo": "#!python\n", "demo-1.0.data/scripts/python-demo": "#!python\n",
			"demo-1.0.dist-info/entry_points.txt": "[console_scripts]\npythonic = demo:main\n",
		}))
		p.build("good")
	})
}

func (p *place) exists(elem ...string) bool {
	_, err := os.Lstat(p.path(elem...))
	return err == nil
}

// Two names for one file of RECORD: what it lists is not what is laid down, so that an uninstaller would remove another's files.
func TestRecordLeadsOut(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		files := locktest.Wheel{Name: "demo", Version: "1.0"}.Unpacked()
		files["demo-1.0.dist-info/RECORD"] += "../../../bin/python,sha256=AAAA,1\n/etc/passwd,,\n"
		p.wheelRecipe("app", locktest.File(t, files))
		p.build("app", "-o", "tar:"+p.path("out.tar"))
		record := p.must("inspect", "--help") // see below
		_ = record
		if out := fileInTar(t, p.path("out.tar"), "opt/venv/lib/python3.11/site-packages/demo-1.0.dist-info/RECORD"); strings.Contains(out, "bin/python") || strings.Contains(out, "/etc/") || !strings.Contains(out, "demo/__init__.py") {
			t.Errorf("RECORD is %s", out)
		}
	})
}

// fileInTar is the content of a file in a tar.
func fileInTar(t *testing.T, archive, name string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s is not in %s: %v", name, archive, err)
		}
		if strings.TrimPrefix(h.Name, "./") == name {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
	}
}

var _ = []any{bytes.NewReader, gzip.NewReader, binary.LittleEndian, json.Marshal, maps.Keys[map[string]int], exec.Command, filepath.Join, slices.Sorted[string], condatest.Placeholder, tooltest.Path}
