package test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lock/locktest"
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

// twoReadings are archives of which programs read different things, made of a good zip.
func twoReadings(t *testing.T, good []byte) map[string][]byte {
	t.Helper()
	const header, entry, end = "PK\x03\x04", "PK\x01\x02", "PK\x05\x06"
	le := binary.LittleEndian
	directory, last := bytes.Index(good, []byte(entry)), bytes.LastIndex(good, []byte(end))
	insert := func(at int, data []byte) []byte { return slices.Concat(good[:at], data, good[at:]) }
	patch := func(data []byte, at int, with ...byte) []byte {
		return slices.Concat(data[:at], with, data[at+len(with):])
	}
	hidden := locktest.File(t, map[string]string{"demo/hidden.py": "evil"})
	member, _, _ := bytes.Cut(hidden, []byte(entry))
	moved := func(data []byte, by int) []byte { // the directory
		at := bytes.LastIndex(data, []byte(end))
		return patch(data, at+16, le.AppendUint32(nil, uint32(directory+by))...)
	}
	comment := patch(good, last+20, le.AppendUint16(nil, uint16(len(hidden)))...)
	name := bytes.Index(good, []byte("demo/__init__.py"))
	wide := slices.Concat([]byte("PK\x06\x06"), le.AppendUint64(nil, 44), make([]byte, 12), le.AppendUint64(nil, 1), le.AppendUint64(nil, 1),
		le.AppendUint64(nil, 60), le.AppendUint64(nil, uint64(directory)), []byte("PK\x06\x07"), make([]byte, 4), le.AppendUint64(nil, uint64(last)), le.AppendUint32(nil, 1))
	return map[string][]byte{
		"two ends":            slices.Concat(comment, hidden),                          // which of them counts?
		"an end of 64 bits":   insert(last, wide),                                      // the same
		"a member in between": moved(insert(directory, member), len(member)),           // a reader of the headers sees it
		"a member in front":   slices.Concat(member, good),                             //
		"a member behind":     slices.Concat(good, member),                             //
		"another name":        patch(good, name, []byte("demo/__evil__.py")...),        // in the header, not in the directory
		"another method":      patch(good, name-22, 0, 0),                              //
		"another archive":     slices.Concat(hidden, good),                             // stacked
		"header in a header":  patch(good, bytes.Index(good[4:], []byte(header))+4, 0), // one that is gone
	}
}

// A zip that two programs read differently is refused, not read in one of the ways: in wheels and in sources (uv CVE-2025-54368).
func TestZipHasOneReading(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		good := demo(t, nil)
		p.wheelRecipe("good", good)
		p.build("good")
		for name, data := range twoReadings(t, good) {
			dir := strings.ReplaceAll(name, " ", "-")
			p.wheelRecipe(dir, data)
			p.fails(1, []string{"demo-1.0-py3-none-any.whl", "hint: "}, "build", dir)
		}
		source := locktest.File(t, map[string]string{"demo/__init__.py": "good", "demo/other": "good"})
		p.tiny("tiny")
		component := func(dir string, data []byte) {
			p.write(dir+"/src.zip", string(data))
			p.write(dir+"/sconce.toml", fmt.Sprintf("name = \"c\"\nversion = \"1\"\n[base]\nimage = \"tiny:1\"\n[source.x]\nurl = \"src.zip\"\nsha256 = \"%x\"\n"+
				"[component.x]\nrun = \"mkdir -p /opt/x; cp -r . /opt/x/\"\n", sha256.Sum256(data)))
		}
		component("good-source", source)
		p.build("good-source")
		for name, data := range twoReadings(t, source) {
			dir := "source-" + strings.ReplaceAll(name, " ", "-")
			component(dir, data)
			p.fails(1, []string{"src.zip"}, "build", dir)
		}
	})
}
