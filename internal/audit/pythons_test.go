package audit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/python"
)

// metadata returns a METADATA file.
func metadata(name, version string, lines ...string) string {
	return "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n" + strings.Join(lines, "\n") + "\n\nA description.\n"
}

const (
	sitePackages312 = "opt/venv/lib/python3.12/site-packages/"
	pyvenvCfg       = "home = /usr/local/bin\nimplementation = CPython\nversion_info = 3.12.1\ninclude-system-site-packages = "
)

// Every kind of installation is found, with what its metadata says.
func TestFindPythons(t *testing.T) {
	root := writePython(t, map[string]string{
		"usr/bin/python3":    "-> python3.11",
		"usr/bin/python3.11": "",
		"usr/lib/python3/dist-packages/six-1.16.0.egg-info/PKG-INFO":                          metadata("six", "1.16.0"),
		"usr/lib/python3/dist-packages/PyYAML-6.0.egg-info":                                   metadata("PyYAML", "6.0"),
		"usr/lib/python3/dist-packages/old.egg-info/PKG-INFO":                                 metadata("Old_Thing", "1"),
		"usr/lib/python3/dist-packages/old.egg-info/requires.txt":                             "six\n\n[:python_version < \"3\"]\nfutures\n\n[fast]\nnumpy\n\n[fast:os_name == \"nt\"]\nwin\n",
		"usr/local/lib/python3.12/site-packages/numpy-2.1.0.dist-info/METADATA":               metadata("NumPy", "2.1.0", "Requires-Python: >=3.10", "Requires-Dist: six"),
		"usr/local/lib/python3.12/site-packages/numpy-2.1.0.dist-info/WHEEL":                  "Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_17_x86_64\nTag: cp312-cp312-manylinux2014_x86_64\n",
		"usr/local/lib/python3.12/site-packages/~umpy-2.0.dist-info/METADATA":                 metadata("numpy", "2.0"),
		"usr/local/lib/python3.12/site-packages/bad-2.0.dist-info/METADATA":                   "no metadata",
		"usr/local/bin/python3.12":                                                            "",
		"opt/venv/pyvenv.cfg":                                                                 pyvenvCfg + "true\n",
		sitePackages312:                                                                       "",
		"opt/conda/pkgs/six-1.0-py_0/lib/python3.12/site-packages/six-1.0.dist-info/METADATA": metadata("six", "1.0"),
		"opt/conda/lib/python3.10/site-packages/six-1.0.dist-info/METADATA":                   metadata("six", "1.0"),
		"srv/plain/six-1.5.dist-info/METADATA":                                                metadata("six", "1.5"),
		"usr/lib/python3.9/site-packages/":                                                    "", // empty
	})
	f := pyFacts(t, root, []string{"PYTHONPATH=/srv/plain:/nowhere"})
	want := []Python{
		{Dir: "opt/conda/lib/python3.10/site-packages", Version: "3.10", System: true, Distributions: []Distribution{
			{Name: "six", Version: "1.0", Dir: "opt/conda/lib/python3.10/site-packages/six-1.0.dist-info"},
		}},
		{Dir: "opt/venv/lib/python3.12/site-packages", Version: "3.12", SystemSite: true, Base: "usr/local", Distributions: []Distribution{}},
		{Dir: "srv/plain", System: true, Distributions: []Distribution{{Name: "six", Version: "1.5", Dir: "srv/plain/six-1.5.dist-info"}}},
		{Dir: "usr/lib/python3/dist-packages", Version: "3.11", System: true, Distributions: []Distribution{
			{
				Name: "old-thing", Version: "1", Dir: "usr/lib/python3/dist-packages/old.egg-info",
				Requires: []string{"six", `futures; python_version < "3"`, `numpy; extra == "fast"`, `win; (os_name == "nt") and extra == "fast"`},
			},
			{Name: "pyyaml", Version: "6.0", Dir: "usr/lib/python3/dist-packages/PyYAML-6.0.egg-info"},
			{Name: "six", Version: "1.16.0", Dir: "usr/lib/python3/dist-packages/six-1.16.0.egg-info"},
		}},
		{Dir: "usr/local/lib/python3.12/site-packages", Version: "3.12", System: true, Distributions: []Distribution{{
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
	root := writePython(t, map[string]string{
		"usr/bin/python3":    "-> python3.11",
		"usr/bin/python3.11": "",
		"usr/lib/python3/dist-packages/a-1.dist-info/METADATA":              metadata("a", "1"),
		"usr/local/lib/python3.11/dist-packages/a-2.dist-info/METADATA":     metadata("a", "2"),
		"usr/local/bin/python3.12":                                          "",
		"usr/local/lib/python3.12/site-packages/a-3.dist-info/METADATA":     metadata("a", "3"),
		"root/.local/lib/python3.12/site-packages/a-4.dist-info/METADATA":   metadata("a", "4"),
		"home/u/.local/lib/python3.12/site-packages/a-5.dist-info/METADATA": metadata("a", "5"),
		"opt/venv/pyvenv.cfg":        pyvenvCfg + "true\n",
		sitePackages312 + "more.pth": "import os\n# no\n/srv/lib/python3.12/site-packages\n",
		"opt/alone/pyvenv.cfg":       pyvenvCfg + "false\n",
		"opt/alone/lib/python3.12/site-packages/a-6.dist-info/METADATA": metadata("a", "6"),
		"srv/lib/python3.12/site-packages/a-7.dist-info/METADATA":       metadata("a", "7"),
		"usr/lib/python3.6/site-packages/a-8.dist-info/METADATA":        metadata("a", "8"),
	})
	paths := func(env ...string) map[string][]string {
		got := map[string][]string{}
		for _, e := range environments(pyFacts(t, root, env)) {
			got[e.label()] = sitesOf(e)
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

// pipRequirements are the two kinds of line that pip check writes.
var (
	pipMissing = regexp.MustCompile(`^(\S+) (\S+) requires ([^\s,]+), which is not installed\.$`)
	pipWrong   = regexp.MustCompile(`^(\S+) (\S+) has requirement (.*), but you have (\S+) (\S+)\.$`)
)

// pipCheck returns what pip says of the environment of a program, as name, requirement's name and version found.
func pipCheck(t *testing.T, program string) []string {
	t.Helper()
	cmd := exec.Command("python3", "-m", "pip", "--python", program, "check")
	out, err := cmd.Output()
	if len(out) == 0 {
		t.Fatalf("pip check: %v", err)
	}
	found := []string{}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if m := pipMissing.FindStringSubmatch(line); m != nil {
			found = append(found, strings.Join([]string{python.NormalizeName(m[1]), python.NormalizeName(m[3]), ""}, " "))
		} else if m := pipWrong.FindStringSubmatch(line); m != nil {
			found = append(found, strings.Join([]string{python.NormalizeName(m[1]), python.NormalizeName(m[4]), m[5]}, " "))
		} else if !strings.HasPrefix(line, "No broken") && !strings.Contains(line, "is not supported on this platform") {
			t.Fatalf("pip check wrote %q", line)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// unmetLike returns the same by our own means, for the environment with a prefix; extras, of which pip check knows nothing,
// are left out.
func unmetLike(f *Facts, prefix string) []string {
	found := []string{}
	for _, e := range environments(f) {
		if e.prefix != strings.TrimPrefix(prefix, "/") {
			continue
		}
		for _, u := range e.unmet(f.Platform) {
			version := ""
			if u.found != nil {
				version = u.found.Version
			}
			if u.extra == "" {
				found = append(found, strings.Join([]string{u.by.Name, python.NormalizeName(u.need.Name), version}, " "))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// barePython makes a virtual environment without any package by hand, which is quick.
func barePython(t *testing.T) (prefix, site string) {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import pip, sys; print(sys.executable, '%d.%d' % sys.version_info[:2], '%d.%d.%d' % sys.version_info[:3])").Output()
	words := strings.Fields(string(out))
	if err != nil || len(words) != 3 {
		why := fmt.Sprintf("no Python with pip: %v; apt-get install python3-pip", err)
		if os.Getenv("SCONCE_REQUIRE_TOOLS") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	prefix, err = filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	site = filepath.Join(prefix, "lib/python"+words[1]+"/site-packages")
	config := "home = " + filepath.Dir(words[0]) + "\ninclude-system-site-packages = false\nversion = " + words[2] + "\n"
	if err := errors.Join(
		os.MkdirAll(site, 0o755), os.MkdirAll(prefix+"/bin", 0o755),
		os.WriteFile(prefix+"/pyvenv.cfg", []byte(config), 0o644),
		os.Symlink(words[0], prefix+"/bin/python"),
	); err != nil {
		t.Fatal(err)
	}
	return prefix, site
}

// The judge is pip itself, in an environment whose packages are at odds in every way that metadata can express.
func TestAsPipCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("starts pip")
	}
	prefix, site := barePython(t)
	for name, content := range disagreeing() {
		at := filepath.Join(site, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := pyFacts(t, "/", nil, strings.TrimPrefix(prefix, "/"))
	got, want := unmetLike(f, prefix), pipCheck(t, prefix+"/bin/python")
	if !slices.Equal(got, want) {
		t.Errorf("unmet\n%s\npip check\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(want) < 10 {
		t.Errorf("pip found only %d", len(want))
	}
}

// disagreeing are the metadata of packages, by file.
func disagreeing() map[string]string {
	files := map[string]string{
		"egg-1.0.egg-info/PKG-INFO":     metadata("egg", "1.0"),
		"egg-1.0.egg-info/requires.txt": "missing_egg>=2\nlib>=3\n\n[:python_version < \"3\"]\nnever\n\n[:python_version >= \"3\"]\nalways\n\n[extra]\nno\n",
	}
	for name, version := range map[string]string{
		"lib": "2.0", "local": "2.6.0+cu124", "pre": "2.0rc1", "post": "1.0.post3", "dev": "3.0.dev5", "epoch": "1!1.0", "Mixed_Case.Name": "1.0",
	} {
		files[name+"-"+version+".dist-info/METADATA"] = metadata(name, version)
	}
	for name, requires := range map[string]string{
		"ok1": "lib>=1,<3", "ok2": "local==2.6.0", "ok3": "pre>=2.0a1", "ok4": "post>=1.0", "ok5": "mixed-case-name", "ok6": "nothere; extra == 'x'",
		"ok7": "nothere; sys_platform == 'win32'", "ok8": "lib (>=2)", "ok9": "lib[one,two]>=2", "ok10": "epoch>=1!0", "ok11": "lib~=2.0",
		"bad1": "lib>=3", "bad2": "local==2.6.0+cu118", "bad3": "pre>=2.0", "bad4": "post==1.0", "bad5": "missing", "bad6": "missing>=1; python_version >= '3'",
		"bad7": "lib!=2.0", "bad8": "lib<2", "bad9": "epoch<1!1", "bad10": "dev>=3", "bad11": "local>2.6.0", "bad12": "lib===2.0.0",
		"bad13": "missing @ https://example.com/missing.whl ; os_name == 'posix'", "bad14": "lib==1.*", "bad15": "Mixed.Case_name>1",
		"bad16": "missing; platform_python_implementation == 'CPython' and extra != 'x'", "bad17": "post>1.0",
	} {
		files[name+"-1.0.dist-info/METADATA"] = metadata(name, "1.0", "Requires-Dist: "+requires)
	}
	return files
}
