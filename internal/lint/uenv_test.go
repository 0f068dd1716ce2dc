package lint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/registry/registrytest"
)

const meta = `{"name": "x", "mount": "/user-environment", "views": {}}`

// pack makes a squashfs of files.
func pack(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, "root", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "images", "store.squashfs")
	registrytest.Run(t, "mksquashfs", filepath.Join(dir, "root"), file, "-noappend", "-quiet", "-no-progress")
	return file
}

// A uenv's description is the one inside, unless there is another beside the file.
func TestUenvFiles(t *testing.T) {
	for _, c := range []struct {
		name    string
		inside  map[string]string
		beside  string
		want    []string
		message string
	}{
		{"good", map[string]string{"meta/env.json": meta}, "", nil, ""},
		{"the same beside it", map[string]string{"meta/env.json": meta}, meta, nil, ""},
		{"another beside it", map[string]string{"meta/env.json": meta}, `{}`, []string{"uenv-foreign-meta"}, "is taken"},
		{"none", map[string]string{"bin/x": "x"}, "", []string{"uenv-meta"}, "there is no meta/env.json in it"},
		{"only beside it", map[string]string{"bin/x": "x"}, meta, []string{"uenv-meta"}, "the one beside it is taken"},
		{"broken", map[string]string{"meta/env.json": `{"mount": `}, "", []string{"uenv-meta"}, "no JSON"},
		{"PYTHONPATH", map[string]string{"meta/env.json": strings.Replace(meta, "{}", `{"v": {"env": {"values": {"list": {"PYTHONPATH": [{"op": "prepend", "value": ["/x"]}]}}}}}`, 1)}, "", []string{"uenv-pythonpath"}, "view v sets"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := pack(t, c.inside)
			if c.beside != "" {
				path := filepath.Join(filepath.Dir(file), "meta", "env.json")
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(c.beside), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			result, err := Check(t.Context(), []string{file}, Options{Lookup: os.LookupEnv})
			if err != nil {
				t.Fatal(err)
			}
			if got := names(result.Findings); !slices.Equal(got, c.want) {
				t.Fatalf("found %v, want %v", got, c.want)
			}
			for _, f := range result.Findings {
				if !strings.Contains(f.Message, c.message) {
					t.Errorf("%q lacks %q", f.Message, c.message)
				}
			}
		})
	}
}

// What no uenv is read as is told where it is wrong.
func TestUenvPlaces(t *testing.T) {
	for text, want := range map[string]int{
		"{\n\"mount\": 3\n}":                                       2,
		"{\n\"mount\":\n\"x\",\n\"views\": {\"a\": []}}":           4,
		"{\"mount\": \"/user-tools\",\n\"views\": {\n\"a\": []}\n": 3,
		"[]": 1,
	} {
		path := filepath.Join(t.TempDir(), "env.json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		result, err := Check(t.Context(), []string{path}, Options{Lookup: os.LookupEnv, Kind: UenvMeta})
		if err != nil || len(result.Findings) == 0 || result.Findings[0].Line != want {
			t.Errorf("%q: %+v, %v, want line %d", text, result, err, want)
		}
	}
}

// Whatever a file holds, it is judged, and what is mended can be mended no further.
func FuzzCheck(f *testing.F) {
	f.Add([]byte("image = \"$A:${B}\"\nmounts = [\"/users\"]\n[annotations.hooks.cxi]\nenabled = true\n[env]\nA = 1\n"))
	f.Add([]byte("#!/bin/bash\n#sbatch -N2\nsrun --environment=./x bash -c 'torchrun x'\nsbatch -C a&b\n"))
	f.Add([]byte(`{"mount": "/x", "views": {"a": {"env": {"values": {"list": {"A": [{"op": 1}]}, "scalar": {"B": 2}}}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "file.toml")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		o := Options{Dir: filepath.Dir(path), Lookup: func(string) (string, bool) { return "", false }}
		result, err := Check(t.Context(), []string{path}, o)
		if err != nil {
			return
		}
		for _, f := range result.Findings {
			if f.Message == "" || f.Line < 0 {
				t.Fatalf("%+v", f)
			}
		}
		for _, fix := range result.Fixes() {
			fix.Diff()
		}
	})
}
