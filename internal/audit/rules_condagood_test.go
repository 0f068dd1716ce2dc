package audit

import (
	"io"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/facts/factstest"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// soundChannel has packages with all that an installer has to see to: prefixes in texts and binaries, noarch python with entry points,
// links of directories, a file that two packages have alike, and an entry of a menu. The libraries of package a are in the directory lib,
// which may be a link in another package.
func soundChannel(t *testing.T, lib string) *condatest.Channel {
	return condatest.NewChannel(
		t,
		condatest.Package{Name: "python", Version: "3.12.4", Depends: []string{"__glibc >=2.17,<3.0.a0"}, Files: map[string]condatest.File{
			"bin/python3.12": {Data: "\x7fnone" + condatest.Placeholder + "\x00rest", Mode: 0o755}, "bin/python": {Link: "python3.12"}, "lib64": {Link: "lib"},
			"lib/python3.12/os.py": {Data: "prefix = '" + condatest.Placeholder + "'\n"},
		}},
		condatest.Package{
			Name: "tool", Version: "1", Noarch: "python", Depends: []string{"python"}, EntryPoints: []string{"tool = tool:main"},
			Files: map[string]condatest.File{
				"site-packages/tool/__init__.py": {Data: "def main(): pass\n"}, "site-packages/tool-1.dist-info/METADATA": {Data: factstest.Metadata("tool", "1")},
				"python-scripts/tool-sh": {Data: "#!" + condatest.Placeholder + "/bin/python\n", Mode: 0o755}, "Menu/tool.py": {Data: "menu"},
			},
		},
		condatest.Package{Name: "a", Version: "1", Depends: []string{"python"}, Files: map[string]condatest.File{
			lib + "/liba.so.1": {Data: "library"}, "lib/same.py": {Data: "same"}, "bin/script": {Data: "#!/bin/sh\nexec " + condatest.Placeholder + "/bin/x\n", Mode: 0o755},
		}},
		condatest.Package{Name: "b", Version: "1", Files: map[string]condatest.File{"lib/same.py": {Data: "same"}}},
	)
}

// Nothing is found in an environment that is laid down as images have it.
func TestSoundCondaEnvironment(t *testing.T) {
	files := condaLayers(t, soundChannel(t, "lib64"), "/opt/conda")
	if !strings.HasPrefix(files["opt/conda/bin/script"], "#!/bin/sh\nexec /opt/conda/bin/x") {
		t.Fatalf("%q", files)
	}
	wantSoundConda(t, factstest.WriteFiles(t, files))
}

// Nothing is found in one that rattler made, which pixi is built on. Of two packages with different files of one name it tells in the
// records where it put the other.
func TestRattlersEnvironment(t *testing.T) {
	c := soundChannel(t, "lib") // rattler links packages side by side, and fails when a directory is there before the link of its name
	s := c.Serve(t)
	root := t.TempDir()
	condatest.Install(t, s.URL, "linux-64", "/opt/conda", filepath.Join(root, "opt/conda"), "tool", "a", "b")
	wantSoundConda(t, root)

	c.Add(t, condatest.Package{Name: "other", Version: "2", Files: map[string]condatest.File{"lib/same.py": {Data: "not the same"}}})
	root = t.TempDir()
	condatest.Install(t, s.URL, "linux-64", "/opt/conda", filepath.Join(root, "opt/conda"), "a", "other")
	f := factstest.Of(t, factstest.Dir{Path: root})
	wantFindings(t, pyFindings(t, f, cluster.Profile{}, "conda-clobbered"),
		[]found{{Warning, "a 1 and other 2 both have /opt/conda/lib/same.py, and not the same"}})
	wantFindings(t, pyFindings(t, f, cluster.Profile{}, "conda-files"), nil)
}

// wantSoundConda checks that the environment of [soundChannel]'s packages is seen, and without a finding.
func wantSoundConda(t *testing.T, root string) {
	t.Helper()
	f := factstest.Of(t, factstest.Dir{Path: root})
	if len(f.Conda) != 1 || len(f.Conda[0].Packages) != 4 || len(f.Conda[0].Packages[3].Distributions) != 1 {
		t.Fatalf("%+v", f.Conda)
	}
	target := cluster.Profile{Platform: "linux/amd64", CPULevel: 1, GPU: []string{"9.0"}, Driver: "550.54.15"}
	for _, r := range condaRules {
		wantFindings(t, pyFindings(t, f, target, r.ID), nil)
	}
}

// condaLayers returns the files of an environment of all packages of a channel, a layer each.
func condaLayers(t *testing.T, c *condatest.Channel, prefix string) map[string]string {
	t.Helper()
	st := storetest.New(t)
	e := conda.Environment{Packages: c.Packages("https://conda.anaconda.org/conda-forge")}
	e.Target = conda.Target{Prefix: prefix, Python: conda.PythonOf(e.Packages)}
	files := map[string]string{"lib64/ld-linux-x86-64.so.2": ""}
	for _, p := range e.Packages {
		if _, err := st.PutBlob(c.Read(t, p)); err != nil {
			t.Fatal(err)
		}
		d, m, err := conda.BuildLayer(t.Context(), st, conda.Group{Name: p.Name, Packages: []conda.Package{p}}, e.Target, nil, layer.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		e.Layers, e.Manifests = append(e.Layers, d), append(e.Manifests, m)
		readLayer(t, st, d, files)
	}
	top, err := conda.BuildEnvironment(t.Context(), st, e, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	readLayer(t, st, top, files)
	return files
}

// readLayer adds the files of a layer as [factstest.WriteFiles] takes them.
func readLayer(t *testing.T, st *store.Store, d layer.Descriptor, files map[string]string) {
	t.Helper()
	ix, err := layer.OpenIndex(t.Context(), st, d)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range ix.Entries {
		dir, name := path.Split(e.Path)
		if gone, ok := strings.CutPrefix(name, layer.WhiteoutPrefix); ok {
			removeBelow(files, dir+gone)
			continue
		}
		switch e.Type {
		case layer.Symlink:
			removeBelow(files, e.Path)
			files[e.Path] = "-> " + e.Link
		case layer.Regular:
			r, err := ix.Open(i)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			r.Close()
			files[e.Path] = string(data)
		}
	}
}

// removeBelow takes out a path and all below it.
func removeBelow(files map[string]string, at string) {
	for p := range files {
		if p == at || strings.HasPrefix(p, at+"/") {
			delete(files, p)
		}
	}
}
