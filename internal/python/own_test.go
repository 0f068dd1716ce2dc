package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// Packages in an interpreter's own prefix lie where pip puts them there, name that interpreter in their commands, and bring
// nothing that would make a virtual environment of it.
func TestOwnPrefix(t *testing.T) {
	exe, version := testPython(t)
	st := storetest.New(t)
	item := putWheel(t, st, wheelFor(t, "pygments"))
	item.Requested = true
	dir := t.TempDir()
	prefix := filepath.Join(dir, "prefix")
	interpreter := testTarget(version).Python
	interpreter.Prefix, interpreter.Executable = prefix, prefix+"/bin/python"+interpreter.Minor()
	target := Target{Root: strings.TrimPrefix(prefix, "/"), Python: interpreter, Own: true}

	d, m, err := BuildLayer(t.Context(), st, Group{Name: "pygments", Items: []Item{item}}, target, nil, LayerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := BuildEnvironment(t.Context(), st, Environment{Target: target, Items: []Item{item}, Manifests: []Manifest{m}}, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	unpacked := t.TempDir()
	for _, l := range []layer.Descriptor{d, own} {
		unpackOver(t, st, l, unpacked)
	}
	if err := os.Rename(filepath.Join(unpacked, target.Root), prefix); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pyvenv.cfg", "lib64", "bin/activate", "bin/python"} {
		if _, err := os.Lstat(filepath.Join(prefix, name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	// A Python that lies in the prefix, as conda lays one down, takes it for its own.
	stdlib, err := exec.Command(exe, "-c", "import os; print(os.path.dirname(os.__file__))").Output()
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(prefix, "lib/python"+interpreter.Minor())
	entries, err := os.ReadDir(strings.TrimSpace(string(stdlib)))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "site-packages" && e.Name() != "dist-packages" {
			if err := os.Symlink(filepath.Join(strings.TrimSpace(string(stdlib)), e.Name()), filepath.Join(lib, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	program, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := tooltest.WriteProgram(interpreter.Executable, program); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(prefix, "bin/pygmentize"), "-V").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Pygments version") {
		t.Errorf("pygmentize: %v %s", err, out)
	}
	record, err := os.ReadFile(filepath.Join(lib, "site-packages/pygments-"+item.Version+".dist-info/RECORD"))
	if err != nil || !strings.Contains(string(record), "../../../bin/pygmentize,") || !strings.Contains(string(record), "/REQUESTED,") {
		t.Errorf("RECORD: %v\n%s", err, record)
	}
}
