package facts_test

import (
	"testing"

	"sconce.dev/sconce/internal/facts/factstest"
)

// Records that are damaged, or lie, are passed over, and lead nowhere out of the prefix.
func TestCondaRecords(t *testing.T) {
	f := factstest.Of(t, factstest.Dir{Path: factstest.WriteFiles(t, map[string]string{
		"lib64/ld-linux-x86-64.so.2":           "",
		"opt/a/conda-meta/broken.json":         `{"name": "broken", "version`,
		"opt/a/conda-meta/list.json":           `[]`,
		"opt/a/conda-meta/nameless.json":       `{"version": "1"}`,
		"opt/a/conda-meta/odd.json":            `{"name": "odd", "version": "1", "depends": 3}`,
		"opt/a/conda-meta/out.json":            `{"name": "out", "version": "1", "missing": {"count": 7}, "paths_data": {"paths": [{"_path": "../../bin/x"}, {"_path": "/bin/y"}, {"_path": ""}, {"_path": "bin/z"}]}}`,
		"opt/a/conda-meta/moved.json":          `{"name": "moved", "version": "1", "paths_data": {"paths": [{"_path": "lib64/x.py", "path_type": "hardlink", "size_in_bytes": 1}]}}`,
		"opt/a/lib/x.py":                       "x",
		"opt/a/lib64":                          "-> lib",
		"opt/b/conda-meta/history":             "",
		"opt/c/pkgs/x/info/index.json":         `{"name": "x", "version": "1"}`,
		"opt/d/conda-meta/directory.json/file": "",
	})})
	if len(f.Conda) != 1 || f.Conda[0].Prefix != "opt/a" || len(f.Conda[0].Packages) != 2 {
		t.Fatalf("%+v", f.Conda)
	}
	moved, out := f.Conda[0].Packages[0], f.Conda[0].Packages[1]
	if moved.Name != "moved" || moved.Missing.Count != 0 || moved.Altered.Count != 0 {
		t.Errorf("%+v", moved)
	}
	if out.Name != "out" || out.Missing.Count != 1 || out.Missing.First[0] != "opt/a/bin/z" {
		t.Errorf("%+v", out)
	}
}
