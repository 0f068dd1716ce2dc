package host

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// pythonHere makes a program that says it is a Python.
func pythonHere(t *testing.T, path, version string, usual bool) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho '{\"Path\": \"%s\", \"Version\": \"%s\", \"Usual\": %t}'\n", path, version, usual)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestFindPython: the very version, else the newest of those that make the same byte code, wherever it is.
func TestFindPython(t *testing.T) {
	dir := t.TempDir()
	for path, version := range map[string]string{
		"a/python3": "3.11.2", "a/python3.12": "3.12.9", "b/python3.11": "3.11.7", "b/python3.13": "3.13.1", "b/python3.14": "3.14.0rc1",
		"uv/cpython-3.12.11-linux-x86_64-gnu/bin/python3.12": "3.12.11", "uv/cpython-3.12.3-linux-x86_64-gnu/bin/python3.12": "3.12.3",
	} {
		pythonHere(t, filepath.Join(dir, path), version, path != "b/python3.13")
	}
	pythonHere(t, filepath.Join(dir, "a/python3.11"), "damaged\"", true)
	t.Setenv("PATH", filepath.Join(dir, "a")+":"+filepath.Join(dir, "b")+":"+os.Getenv("PATH")+":relative")
	t.Setenv("UV_PYTHON_INSTALL_DIR", filepath.Join(dir, "uv"))
	for version, want := range map[string]string{
		"3.12.3":    "uv/cpython-3.12.3-linux-x86_64-gnu/bin/python3.12",
		"3.12.9":    "a/python3.12",
		"3.12.1":    "uv/cpython-3.12.11-linux-x86_64-gnu/bin/python3.12",
		"3.14.0rc1": "b/python3.14",
		"3.14.0rc2": "",
		"3.99.0":    "",
	} {
		p, ok := FindPython(t.Context(), version)
		if want != "" {
			want = filepath.Join(dir, want)
		}
		if p.Path != want || ok != (want != "") {
			t.Errorf("for %s: %+v, want %s", version, p, want)
		}
	}
	if p, _ := FindPython(t.Context(), "3.13.1"); p.Path == filepath.Join(dir, "b/python3.13") {
		t.Errorf("a Python without a global lock is taken: %+v", p)
	}
}
