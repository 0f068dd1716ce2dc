package audit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
	"sconce.dev/sconce/internal/tooltest"

	"sconce.dev/sconce/internal/python"
)

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
func unmetLike(f *facts.Facts, prefix string) []string {
	found := []string{}
	for _, e := range f.Environments() {
		if e.Prefix != strings.TrimPrefix(prefix, "/") {
			continue
		}
		for _, u := range unmetOf(e, f.Platform) {
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
		tooltest.Missing(t, "%v", why)
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
	f := factstest.Of(t, factstest.Dir{Path: "/", Only: []string{strings.TrimPrefix(prefix, "/")}}, "PATH=/nowhere")
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
		"egg-1.0.egg-info/PKG-INFO":     factstest.Metadata("egg", "1.0"),
		"egg-1.0.egg-info/requires.txt": "missing_egg>=2\nlib>=3\n\n[:python_version < \"3\"]\nnever\n\n[:python_version >= \"3\"]\nalways\n\n[extra]\nno\n",
	}
	for name, version := range map[string]string{
		"lib": "2.0", "local": "2.6.0+cu124", "pre": "2.0rc1", "post": "1.0.post3", "dev": "3.0.dev5", "epoch": "1!1.0", "Mixed_Case.Name": "1.0",
	} {
		files[name+"-"+version+".dist-info/METADATA"] = factstest.Metadata(name, version)
	}
	for name, requires := range map[string]string{
		"ok1": "lib>=1,<3", "ok2": "local==2.6.0", "ok3": "pre>=2.0a1", "ok4": "post>=1.0", "ok5": "mixed-case-name", "ok6": "nothere; extra == 'x'",
		"ok7": "nothere; sys_platform == 'win32'", "ok8": "lib (>=2)", "ok9": "lib[one,two]>=2", "ok10": "epoch>=1!0", "ok11": "lib~=2.0",
		"bad1": "lib>=3", "bad2": "local==2.6.0+cu118", "bad3": "pre>=2.0", "bad4": "post==1.0", "bad5": "missing", "bad6": "missing>=1; python_version >= '3'",
		"bad7": "lib!=2.0", "bad8": "lib<2", "bad9": "epoch<1!1", "bad10": "dev>=3", "bad11": "local>2.6.0", "bad12": "lib===2.0.0",
		"bad13": "missing @ https://example.com/missing.whl ; os_name == 'posix'", "bad14": "lib==1.*", "bad15": "Mixed.Case_name>1",
		"bad16": "missing; platform_python_implementation == 'CPython' and extra != 'x'", "bad17": "post>1.0",
	} {
		files[name+"-1.0.dist-info/METADATA"] = factstest.Metadata(name, "1.0", "Requires-Dist: "+requires)
	}
	return files
}

// What an image wants is in a remedy as a word of a shell, with nothing for which no version is.
func TestRemedyIsForPasting(t *testing.T) {
	for text, want := range map[string]string{
		"ttt ===`touch${IFS}M`": "python -m pip install ttt",
		"numpy>=1.26,<3":        "python -m pip install 'numpy",
		"six":                   "python -m pip install six",
		"a===1.0;touch M":       "",
		"a===1!x":               "python -m pip install 'a===1!x'",
	} {
		r, err := python.ParseRequirement(text)
		if err != nil {
			if want != "" {
				t.Error(err)
			}
			continue
		}
		got := unmet{need: r}.remedy()
		if _, command, _ := strings.Cut(got, "install it: "); !strings.HasPrefix(command, want) || strings.ContainsAny(command, "`$;&") {
			t.Errorf("%s: %s", text, got)
		}
	}
}
