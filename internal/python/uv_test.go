package python

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// laid is one file of an environment, ours or uv's.
type laid struct {
	executable bool
	data       []byte
}

// TestSameFilesAsUv lays the popular wheels down, and one with what is rare in them, and lets uv install the same files. Whatever differs must be explained
// in testdata/uv-differences.txt, and whatever is explained there must differ.
func TestSameFilesAsUv(t *testing.T) {
	if testing.Short() {
		t.Skip("installs every popular wheel, with uv and without")
	}
	wheels := append(allWheels(t), oddWheel(t))
	theirs := installWithUv(t, wheels)
	ours := make(map[string]laid)
	target := testTarget("3.11.2")
	for _, wheel := range wheels {
		layInto(t, ours, openWheelFile(t, wheel), target)
	}
	allowed := readDifferences(t)
	for _, d := range compareLaid(ours, theirs) {
		if !allowed.explains(d) {
			t.Errorf("%s %s: ours %.200q, uv's %.200q", d.kind, d.path, d.ours, d.theirs)
		}
	}
	for _, line := range allowed {
		if !line.used {
			t.Errorf("testdata/uv-differences.txt explains %s %s, but there is no such difference", line.kind, line.pattern)
		}
	}
	if len(ours) < 5000 {
		t.Errorf("only %d files were compared", len(ours))
	}
}

// oddWheel is a wheel with headers, files below lib64, and scripts whose first line is "#!python" with more behind it.
func oddWheel(t *testing.T) string {
	t.Helper()
	const data = "demo_pkg-1.0.data/"
	entries := []wheelEntry{
		{name: "demo/__init__.py", data: "x = 1\n"},
		{name: data + "headers/demo.h", data: "3"},
		{name: data + "headers/sub/demo.h", data: "3"},
		{name: data + "data/lib64/y", data: "5"},
	}
	for name, text := range map[string]string{
		"arguments": "#!python -E -u\nprint()\n", "returns": "#!python\r\nprint()\r\n", "both": "#!python -u\r\nprint()\n", "version": "#!python3\nprint()\n",
		"glued": "#!pythonic\nprint()\n", "empty": "#!python", "window": "#!pythonw\nprint()\n", "other": "#!/bin/sh\n", "none": "print()\n",
	} {
		entries = append(entries, wheelEntry{name: data + "scripts/odd-" + name, data: text})
	}
	file := filepath.Join(t.TempDir(), testWheelFile)
	if err := os.WriteFile(file, craft(t, entries...), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func layInto(t *testing.T, files map[string]laid, w *Wheel, target Target) {
	t.Helper()
	list, err := Layout(w, target)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(data)) != f.Size || sha256Of(data) != f.SHA256 {
			t.Errorf("%s: %d bytes with hash %s, but the layout says %d and %s", f.Path, len(data), sha256Of(data), f.Size, f.SHA256)
		}
		r.Close()
		files[f.Path] = laid{f.Mode&0o111 != 0, data}
	}
}

// installWithUv returns what uv adds to a fresh environment, as if it stood at /opt/venv.
func installWithUv(t *testing.T, wheels []string) map[string]laid {
	t.Helper()
	uv := tooltest.Path(t, "uv")
	venv := filepath.Join(t.TempDir(), "venv")
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(uv, args...)
		cmd.Env = append(os.Environ(), "UV_PYTHON_DOWNLOADS=never", "UV_OFFLINE=1", "UV_CACHE_DIR="+filepath.Join(t.TempDir(), "cache"))
		if out, err := cmd.CombinedOutput(); err != nil {
			tooltest.Missing(t, "uv %s: %v\n%s", args[0], err, out)
		}
	}
	run("venv", "--python", "3.11", venv)
	before := readLaid(t, venv)
	run(append([]string{"pip", "install", "--no-deps", "--link-mode", "copy", "--python", venv}, wheels...)...)
	after := readLaid(t, venv)
	for p := range before {
		delete(after, p)
	}
	return after
}

func readLaid(t *testing.T, root string) map[string]laid {
	t.Helper()
	files := make(map[string]laid)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if strings.HasPrefix(rel, "bin/") {
			data = bytes.Replace(data, []byte(root), []byte("/opt/venv"), 1)
		}
		files[rel] = laid{info.Mode()&0o111 != 0, data}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

type difference struct {
	kind         string // missing, extra, mode, content, wrapper, record
	path         string
	ours, theirs []byte
}

func compareLaid(ours, theirs map[string]laid) []difference {
	var found []difference
	for p, a := range ours {
		b, ok := theirs[p]
		switch {
		case !ok:
			found = append(found, difference{kind: "extra", path: p})
			continue
		case path.Base(p) == "RECORD":
			found = append(found, compareRecords(p, a.data, b.data)...)
		case !bytes.Equal(a.data, b.data):
			found = append(found, difference{contentKind(a.data, b.data), p, a.data, b.data})
		}
		if a.executable != b.executable {
			found = append(found, difference{kind: "mode", path: p})
		}
	}
	for p := range theirs {
		if _, ok := ours[p]; !ok {
			found = append(found, difference{kind: "missing", path: p})
		}
	}
	slices.SortFunc(found, func(a, b difference) int { return strings.Compare(a.path, b.path) })
	return found
}

// contentKind tells a command that differs only in how it is written from a file with other content.
func contentKind(ours, theirs []byte) string {
	called := func(script []byte) string {
		i := bytes.Index(script, []byte("\nfrom "))
		j := bytes.Index(script, []byte("sys.exit("))
		if i < 0 || j < 0 {
			return ""
		}
		from, _, _ := bytes.Cut(script[i+1:], []byte("\n"))
		call, _, _ := bytes.Cut(script[j:], []byte("\n"))
		line, _, _ := bytes.Cut(script, []byte("\n"))
		return string(line) + string(from) + string(call)
	}
	if c := called(ours); c != "" && c == called(theirs) {
		return "wrapper"
	}
	return "content"
}

// compareRecords compares two RECORDs line by line: the files they list and their hashes.
func compareRecords(p string, ours, theirs []byte) []difference {
	var found []difference
	lines := func(data []byte) map[string]string {
		m := make(map[string]string)
		for line := range strings.Lines(strings.ReplaceAll(string(data), "\r", "")) {
			i := strings.LastIndexByte(line[:max(0, strings.LastIndexByte(line, ','))], ',')
			m[line[:max(0, i)]] = strings.TrimSpace(line)
		}
		return m
	}
	a, b := lines(ours), lines(theirs)
	for name, line := range a {
		if b[name] != line {
			found = append(found, difference{"record", path.Join(path.Dir(path.Dir(p)), name), []byte(line), []byte(b[name])})
		}
		delete(b, name)
	}
	for name, line := range b {
		found = append(found, difference{"record", path.Join(path.Dir(path.Dir(p)), name), nil, []byte(line)})
	}
	return found
}

// explained is a line of uv-differences.txt.
type explained struct {
	kind, pattern string
	used          bool
}

type explanations []*explained

func (e explanations) explains(d difference) bool {
	for _, line := range e {
		if ok, _ := path.Match(line.pattern, d.path); ok && line.kind == d.kind {
			line.used = true
			return true
		}
	}
	return false
}

func readDifferences(t *testing.T) explanations {
	t.Helper()
	data, err := os.ReadFile("testdata/uv-differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	var e explanations
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 {
			t.Fatalf("testdata/uv-differences.txt: %q has no explanation", line)
		}
		e = append(e, &explained{kind: fields[0], pattern: fields[1]})
	}
	return e
}
