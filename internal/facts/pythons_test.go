package facts_test

import (
	"reflect"
	"slices"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
)

const (
	sitePackages312 = "opt/venv/lib/python3.12/site-packages/"
	pyvenvCfg       = "home = /usr/local/bin\nimplementation = CPython\nversion_info = 3.12.1\ninclude-system-site-packages = "
)

// Every kind of installation is found, with what its metadata says.
func TestFindPythons(t *testing.T) {
	root := factstest.WriteFiles(t, map[string]string{
		"usr/bin/python3":    "-> python3.11",
		"usr/bin/python3.11": "",
		"usr/lib/python3/dist-packages/six-1.16.0.egg-info/PKG-INFO":                          factstest.Metadata("six", "1.16.0"),
		"usr/lib/python3/dist-packages/PyYAML-6.0.egg-info":                                   factstest.Metadata("PyYAML", "6.0"),
		"usr/lib/python3/dist-packages/old.egg-info/PKG-INFO":                                 factstest.Metadata("Old_Thing", "1"),
		"usr/lib/python3/dist-packages/old.egg-info/requires.txt":                             "six\n\n[:python_version < \"3\"]\nfutures\n\n[fast]\nnumpy\n\n[fast:os_name == \"nt\"]\nwin\n",
		"usr/local/lib/python3.12/site-packages/numpy-2.1.0.dist-info/METADATA":               factstest.Metadata("NumPy", "2.1.0", "Requires-Python: >=3.10", "Requires-Dist: six"),
		"usr/local/lib/python3.12/site-packages/numpy-2.1.0.dist-info/WHEEL":                  "Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_17_x86_64\nTag: cp312-cp312-manylinux2014_x86_64\n",
		"usr/local/lib/python3.12/site-packages/~umpy-2.0.dist-info/METADATA":                 factstest.Metadata("numpy", "2.0"),
		"usr/local/lib/python3.12/site-packages/bad-2.0.dist-info/METADATA":                   "no metadata",
		"usr/local/bin/python3.12":                                                            "",
		"opt/venv/pyvenv.cfg":                                                                 pyvenvCfg + "true\n",
		sitePackages312:                                                                       "",
		"opt/conda/pkgs/six-1.0-py_0/lib/python3.12/site-packages/six-1.0.dist-info/METADATA": factstest.Metadata("six", "1.0"),
		"opt/conda/lib/python3.10/site-packages/six-1.0.dist-info/METADATA":                   factstest.Metadata("six", "1.0"),
		"srv/plain/six-1.5.dist-info/METADATA":                                                factstest.Metadata("six", "1.5"),
		"usr/lib/python3.9/site-packages/":                                                    "", // empty
	})
	f := factstest.Of(t, factstest.Dir{Path: root}, "PYTHONPATH=/srv/plain:/nowhere")
	want := []facts.Python{
		{Dir: "opt/conda/lib/python3.10/site-packages", Version: "3.10", System: true, Distributions: []facts.Distribution{
			{Name: "six", Version: "1.0", Dir: "opt/conda/lib/python3.10/site-packages/six-1.0.dist-info"},
		}},
		{Dir: "opt/venv/lib/python3.12/site-packages", Version: "3.12", SystemSite: true, Base: "usr/local", Distributions: []facts.Distribution{}},
		{Dir: "srv/plain", System: true, Distributions: []facts.Distribution{{Name: "six", Version: "1.5", Dir: "srv/plain/six-1.5.dist-info"}}},
		{Dir: "usr/lib/python3/dist-packages", Version: "3.11", System: true, Distributions: []facts.Distribution{
			{
				Name: "old-thing", Version: "1", Dir: "usr/lib/python3/dist-packages/old.egg-info",
				Requires: []string{"six", `futures; python_version < "3"`, `numpy; extra == "fast"`, `win; (os_name == "nt") and extra == "fast"`},
			},
			{Name: "pyyaml", Version: "6.0", Dir: "usr/lib/python3/dist-packages/PyYAML-6.0.egg-info"},
			{Name: "six", Version: "1.16.0", Dir: "usr/lib/python3/dist-packages/six-1.16.0.egg-info"},
		}},
		{Dir: "usr/local/lib/python3.12/site-packages", Version: "3.12", System: true, Distributions: []facts.Distribution{{
			Name: "numpy", Version: "2.1.0", Dir: "usr/local/lib/python3.12/site-packages/numpy-2.1.0.dist-info",
			Requires: []string{"six"}, RequiresPython: ">=3.10",
			Tags: []string{"cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux2014_x86_64"},
		}}},
	}
	if !reflect.DeepEqual(f.Pythons, want) {
		t.Errorf("found\n%+v\nwant\n%+v", f.Pythons, want)
	}
}

// Each Python imports from its own directories in its own order.
func TestEnvironments(t *testing.T) {
	root := factstest.WriteFiles(t, map[string]string{
		"usr/bin/python3":    "-> python3.11",
		"usr/bin/python3.11": "",
		"usr/lib/python3/dist-packages/a-1.dist-info/METADATA":              factstest.Metadata("a", "1"),
		"usr/local/lib/python3.11/dist-packages/a-2.dist-info/METADATA":     factstest.Metadata("a", "2"),
		"usr/local/bin/python3.12":                                          "",
		"usr/local/lib/python3.12/site-packages/a-3.dist-info/METADATA":     factstest.Metadata("a", "3"),
		"root/.local/lib/python3.12/site-packages/a-4.dist-info/METADATA":   factstest.Metadata("a", "4"),
		"home/u/.local/lib/python3.12/site-packages/a-5.dist-info/METADATA": factstest.Metadata("a", "5"),
		"opt/venv/pyvenv.cfg":        pyvenvCfg + "true\n",
		sitePackages312 + "more.pth": "import os\n# no\n/srv/lib/python3.12/site-packages\n",
		"opt/alone/pyvenv.cfg":       pyvenvCfg + "false\n",
		"opt/alone/lib/python3.12/site-packages/a-6.dist-info/METADATA": factstest.Metadata("a", "6"),
		"srv/lib/python3.12/site-packages/a-7.dist-info/METADATA":       factstest.Metadata("a", "7"),
		"usr/lib/python3.6/site-packages/a-8.dist-info/METADATA":        factstest.Metadata("a", "8"),
	})
	paths := func(env ...string) map[string][]string {
		got := map[string][]string{}
		for _, e := range factstest.Of(t, factstest.Dir{Path: root}, env...).Environments() {
			for _, p := range e.Path {
				got[e.Label()] = append(got[e.Label()], p.Dir)
			}
		}
		return got
	}
	want := map[string][]string{
		"Python 3.11 in /usr":                {"usr/local/lib/python3.11/dist-packages", "usr/lib/python3/dist-packages"},
		"Python 3.12 in /usr/local":          {"root/.local/lib/python3.12/site-packages", "usr/local/lib/python3.12/site-packages"},
		"the virtual environment /opt/alone": {"opt/alone/lib/python3.12/site-packages"},
		"the virtual environment /opt/venv": {
			"opt/venv/lib/python3.12/site-packages", "srv/lib/python3.12/site-packages",
			"root/.local/lib/python3.12/site-packages", "usr/local/lib/python3.12/site-packages",
		},
	}
	if got := paths(); !reflect.DeepEqual(got, want) {
		t.Errorf("paths\n%v\nwant\n%v", got, want)
	}
	got := paths("PYTHONPATH=/opt/alone/lib/python3.12/site-packages", "PYTHONNOUSERSITE=1")
	wantFirst := []string{"opt/alone/lib/python3.12/site-packages", "usr/local/lib/python3.12/site-packages"}
	if p := got["Python 3.12 in /usr/local"]; !slices.Equal(p, wantFirst) {
		t.Errorf("with PYTHONPATH and without the user's: %v, want %v", p, wantFirst)
	}
}
