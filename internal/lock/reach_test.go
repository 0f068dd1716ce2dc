package lock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/bootstrap"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/upstream"
)

// place is a recipe's directory with a private one beside it, and a link from the former to the latter.
func place(t *testing.T) (own, private string) {
	t.Helper()
	t.Setenv(reach.Variable, "")
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	own, private = filepath.Join(top, "r"), filepath.Join(top, "private")
	for _, dir := range []string{filepath.Join(own, "inside"), private} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../private", filepath.Join(own, "link")); err != nil {
		t.Fatal(err)
	}
	return own, private
}

// reachRecipe is a recipe that may reach its own directory.
func reachRecipe(own string) *recipe.Recipe {
	r := &recipe.Recipe{Path: filepath.Join(own, recipe.FileName), Dir: own, Reach: reach.In("the recipe's directory", own)}
	r.Target.Platform = "linux/amd64"
	return r
}

// checkReach calls look with AT, which may be relative, and ABS in text replaced by directories. What is outside must be refused, by a link too,
// and what is inside must not.
func checkReach(t *testing.T, own, private, text string, look func(r *recipe.Recipe, text string) error) {
	t.Helper()
	in := func(at, abs string) error {
		return look(reachRecipe(own), strings.NewReplacer("AT", at, "ABS", abs).Replace(text))
	}
	for _, at := range [][2]string{{"../private", private}, {private, private}, {"./link", own + "/link"}} {
		err := in(at[0], at[1])
		if err == nil || !strings.Contains(err.Error(), "outside of the recipe's directory") || !strings.Contains(fault.HintOf(err), "--allow-path ") {
			t.Errorf("%q, %s: got %v", text, at[0], err)
		}
	}
	if err := in("./inside", own+"/inside"); err != nil && strings.Contains(err.Error(), "outside") {
		t.Errorf("%q, inside: %v", text, err)
	}
	t.Setenv(reach.Variable, private)
	if err := in("../private", private); err != nil && strings.Contains(err.Error(), "outside") {
		t.Errorf("%q, with the user's word: %v", text, err)
	}
	t.Setenv(reach.Variable, "")
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestReachOfRequirements: a requirements file that a recipe brings along names nothing outside either.
func TestReachOfRequirements(t *testing.T) {
	own, private := place(t)
	for _, line := range []string{
		"-r AT/file", "--requirement=AT/file", "-r file://ABS/file", "-c AT/file", "-e AT", "--editable=AT", "-f AT", "--find-links file://ABS", "-i file://ABS",
		"--extra-index-url=AT", "x @ file://ABS/x.whl", "x @ file://ABS ; python_version > '3'", "x[all] @ git+file://ABS@main", "AT", "AT/x-1.whl", "file://ABS", "git+file://ABS@main",
	} {
		checkReach(t, own, private, line, func(r *recipe.Recipe, text string) error {
			write(t, filepath.Join(own, "requirements.txt"), "# first\n"+text+"\n")
			r.Python.Requirements = []string{"requirements.txt"}
			_, err := readRequirements(r)
			return err
		})
	}
}

// TestReachOfEnvironment: nor does an environment file.
func TestReachOfEnvironment(t *testing.T) {
	own, private := place(t)
	for _, text := range []string{
		"channels: [AT]\ndependencies: [x]", "channels: ['file://ABS']\ndependencies: [x]", "dependencies: ['AT::x']", "dependencies: [pip, pip: ['-r AT/file']]", "dependencies: [pip, pip: [AT]]",
		"dependencies: [pip, pip: ['x @ file://ABS']]", "dependencies: [pip, pip: ['-e AT']]", "dependencies: [pip, pip: ['--find-links AT', x]]",
	} {
		checkReach(t, own, private, text, func(r *recipe.Recipe, text string) error {
			write(t, filepath.Join(own, "environment.yml"), "name: x\n"+text+"\n")
			r.Conda.Environment = []string{"environment.yml"}
			_, err := WithEnvironments(r)
			return err
		})
	}
}

// TestReachOfPackageLock: a lock of Python packages that comes along names nothing outside.
func TestReachOfPackageLock(t *testing.T) {
	own, private := place(t)
	const hash = "hashes = { sha256 = '0000000000000000000000000000000000000000000000000000000000000000' }"
	for _, text := range []string{
		"directory = { path = 'AT' }",
		"vcs = { type = 'git', path = 'AT', commit-id = '0000000000000000000000000000000000000000' }",
		"vcs = { type = 'git', url = 'file://ABS', commit-id = '0000000000000000000000000000000000000000' }",
		"archive = { path = 'AT/x-1-py3-none-any.whl', " + hash + " }",
		"archive = { url = 'file://ABS/x-1.tar.gz', " + hash + " }",
		"sdist = { path = 'AT/x-1.tar.gz', " + hash + " }",
		"wheels = [{ path = 'AT/x-1-py3-none-any.whl', " + hash + " }]",
		"wheels = [{ url = 'file://ABS/x-1-py3-none-any.whl', " + hash + " }]",
	} {
		checkReach(t, own, private, text, func(r *recipe.Recipe, text string) error {
			p := &Python{File: "pylock.toml", Version: "3.11.2", Platform: "x86_64", Glibc: "2.36", Implementation: "cpython"}
			packages, err := p.read(r, []byte("lock-version = '1.0'\ncreated-by = 'x'\n[[packages]]\nname = 'x'\nversion = '1'\n"+text+"\n"))
			if err == nil && len(packages) != 1 {
				t.Errorf("%s: %d packages", text, len(packages))
			}
			return err
		})
	}
}

// TestReachOfLock: nor does a sconce.lock, nor a list of conda packages.
func TestReachOfLock(t *testing.T) {
	own, private := place(t)
	zero := store.DigestOf(nil)
	for _, made := range map[string]func(at string) *Lock{
		"source git": func(at string) *Lock { return &Lock{Source: map[string]*upstream.Pinned{"x": {Git: at}}} },
		"source url": func(at string) *Lock {
			return &Lock{Source: map[string]*upstream.Pinned{"x": {Files: []upstream.File{{URL: at}}}}}
		},
		"build package": func(at string) *Lock {
			return &Lock{Python: &Python{Compiled: []Compiled{{Requires: []BuildRequirement{{URL: at}}}}}}
		},
		"base package": func(at string) *Lock {
			return &Lock{Base: base.Pinned{Bootstrap: &bootstrap.Pinned{Packages: []bootstrap.Package{{URL: at}}}}}
		},
	} {
		for _, text := range []string{"AT/file", "file://ABS/file"} {
			checkReach(t, own, private, text, func(r *recipe.Recipe, text string) error {
				return made(text).reach(r)
			})
		}
	}
	checkReach(t, own, private, "file://ABS/linux-64/x-1-0.conda#"+zero.Hex(), func(r *recipe.Recipe, text string) error {
		f := &Files{Lock: &Lock{Conda: &Conda{Platform: "linux-64"}}, conda: listing{path: "list.txt", text: []byte("@EXPLICIT\n" + text + "\n")}}
		_, err := f.condaPackages(r)
		return err
	})
}

// TestPartsLeadOut: the files of a lock that came along as links are not read where they may not lead.
func TestPartsLeadOut(t *testing.T) {
	own, private := place(t)
	r := &recipe.Recipe{Path: filepath.Join(own, recipe.FileName), Dir: own, Reach: reach.In("the recipe's directory", own)}
	for name, read := range map[string]func() error{
		"sconce.lock":    func() error { _, err := Read(r); return err },
		"pylock.toml":    func() error { return (&Lock{Python: &Python{File: "pylock.toml"}}).Files(r).pylock.err },
		"conda-lock.yml": func() error { return (&Lock{Conda: &Conda{File: "conda-lock.yml"}}).Files(r).conda.err },
	} {
		for _, target := range []string{filepath.Join(private, "file"), "/dev/zero"} {
			if err := errors.Join(os.RemoveAll(filepath.Join(own, name)), os.Symlink(target, filepath.Join(own, name))); err != nil {
				t.Fatal(err)
			}
			if err := read(); err == nil || !strings.Contains(err.Error(), "leads to "+target+", outside of the recipe's directory") {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
	if _, err := readFile("/dev/zero"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
}
