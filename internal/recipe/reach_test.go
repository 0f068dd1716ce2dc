package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/reach"
)

// outsideOf are all the ways in which a recipe can name a file of this machine: text of a recipe in which OUT stands for what is outside,
// and IN for the same inside.
var outsideOf = map[string]string{
	"base.image by transport":        "[base]\nimage = 'dir:AT/dir'",
	"base.image with a tag":          "[base]\nimage = 'oci:AT/dir:1'",
	"base.image by its path":         "[base]\nimage = 'AT/x.sqsh'",
	"base.bootstrap.mirror":          "[base]\nbootstrap = { suite = 'bookworm', mirror = 'file://ABS/dir' }",
	"base.bootstrap.sources":         "[base]\nbootstrap = { suite = 'bookworm', sources = ['file://ABS/dir bookworm main'] }",
	"base.bootstrap.dnf":             "[base]\nbootstrap = { dnf = 'file://ABS/dir', trusted = true }",
	"base.bootstrap.keys":            "[base]\nbootstrap = { suite = 'bookworm', keys = ['AT/file'] }",
	"base.recipe":                    "[base]\nrecipe = 'AT/recipe'",
	"target.cluster":                 "[target]\ncluster = 'AT/file.toml'",
	"conda.environment":              "[conda]\nenvironment = ['AT/file']",
	"conda.lock":                     "[conda]\nlock = 'AT/file'",
	"conda.channels":                 "[conda]\npackages = ['x']\nchannels = ['AT/dir']",
	"conda.channels by address":      "[conda]\npackages = ['x']\nchannels = ['file://ABS/dir']",
	"conda.packages":                 "[conda]\npackages = ['AT/dir::x']",
	"python.packages":                "[python]\npackages = ['x @ AT/dir']",
	"python.packages by address":     "[python]\npackages = ['x @ file://ABS/dir ; python_version > \"3\"']",
	"python.packages as repository":  "[python]\npackages = ['x @ git+file://ABS/dir@main#subdirectory=y']",
	"python.requirements":            "[python]\nrequirements = ['AT/file']",
	"python.lock":                    "[python]\nlock = 'AT/file'",
	"python.project":                 "[python]\nproject = 'AT/dir'",
	"python.compile.x.base":          "[python]\npackages = ['x']\n[python.compile.x]\nbase = 'tar:AT/file'",
	"python.compile.x.requires":      "[python]\npackages = ['x']\n[python.compile.x]\nrequires = ['y @ file://ABS/dir']",
	"source.x.url":                   "[source.x]\nurl = 'AT/file'\n[component.x]\nrun = 'make'",
	"source.x.url by address":        "[source.x]\nurl = 'file://ABS/file'\n[component.x]\nrun = 'make'",
	"source.x.git":                   "[source.x]\ngit = 'AT/dir'\ncommit = 'main'\n[component.x]\nrun = 'make'",
	"source.x.patch":                 "[source.x]\nurl = 'https://example.org/x.tar'\npatch = ['AT/file']\n[component.x]\nrun = 'make'",
	"step 1: copy":                   "[[step]]\ncopy = ['AT/file:/x']",
	"step 1: copy of what matches":   "[[step]]\ncopy = ['AT/*:/x/']",
	"step 1: patch":                  "[[step]]\npatch = ['AT/file:/x']",
	"step 1: mounts":                 "[[step]]\nrun = 'true'\nmounts = ['bind:AT/dir:/x']",
	"step 1: mounts in the long way": "[[step]]\nrun = 'true'\nmounts = ['type=bind,source=AT/dir,target=/x']",
	"in a variant":                   "[[step]]\nrun = 'true'\n[[variant.v.step]]\ncopy = ['AT/file:/x']",
}

// TestReach: whatever a recipe names outside of its directory, by a path, by an address or through a link, is refused with a place and a way
// out; inside, and with the user's word, none of it is.
func TestReach(t *testing.T) {
	t.Setenv(reach.Variable, "")
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	own, out := filepath.Join(top, "r"), filepath.Join(top, "private")
	for _, dir := range []string{filepath.Join(own, "inside"), out} {
		for name, text := range map[string]string{
			"file": "x", "file.toml": "", "x.sqsh": "x", "dir/pyproject.toml": "", "recipe/sconce.toml": "name = 'y'\nbase.image = 'debian'\n",
		} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink("../private", filepath.Join(own, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..", filepath.Join(own, "inside", "up")); err != nil {
		t.Fatal(err)
	}
	parse := func(text, at, abs string) error {
		text = strings.NewReplacer("AT", at, "ABS", abs).Replace(text)
		if !strings.Contains(text, "[base]") {
			text = "[base]\nimage = 'debian'\n" + text
		}
		_, err := parseVariant([]byte("name = 'x'\n"+text+"\n"), FileName, own, "")
		return err
	}
	for key, text := range outsideOf {
		t.Run(key, func(t *testing.T) {
			for _, at := range [][2]string{{"../private", out}, {out, out}, {"./link", own + "/link"}, {own + "/link", own + "/link"}} {
				if key == "python.packages" && filepath.IsAbs(at[0]) {
					continue // which is no requirement
				}
				err := parse(text, at[0], at[1])
				if err == nil || !strings.Contains(err.Error(), "outside of the recipe's directory") || !strings.HasPrefix(err.Error(), FileName+":") {
					t.Errorf("with %s: got %v", at[0], err)
					continue
				}
				if !strings.Contains(fault.HintOf(err), "--allow-path "+top) {
					t.Errorf("with %s: the hint is %q", at[0], fault.HintOf(err))
				}
			}
			if err := parse(text, "./inside", own+"/inside"); err != nil {
				t.Errorf("inside: %v", err)
			}
			t.Setenv(reach.Variable, out)
			if err := parse(text, "../private", out); err != nil {
				t.Errorf("with the user's word: %v", err)
			}
		})
	}
	if err := parse("[[test]]\nname = 'x'\nrun = 'true'\nfiles = ['link/file']", "", ""); err == nil || !strings.Contains(err.Error(), "leads to "+out) {
		t.Errorf("files of a test through a link: got %v", err)
	}
	above := "file://" + own + "/inside/up/../private" // which is outside to a program that opens it as it is written
	for _, text := range []string{
		"[source.x]\nurl = '" + above + "'\n[component.x]\nrun = 'make'", "[source.x]\ngit = '" + above + "'\ncommit = 'main'\n[component.x]\nrun = 'make'",
		"[base]\nbootstrap.suite = 'trixie'\nbootstrap.mirror = '" + above + "'",
	} {
		if err := parse(text, "", ""); err == nil || !strings.Contains(err.Error(), "leads to "+out) && !strings.Contains(err.Error(), "outside of") {
			t.Errorf("%s: got %v", text, err)
		}
	}
	for _, text := range []string{"git = 'https://example.org/x'\ncommit = 'main'", "git = 'git@example.org:x'\ncommit = 'main'", "url = 'https://example.org/x.tar'"} {
		if err := parse("[source.x]\n"+text+"\n[component.x]\nrun = 'make'", "", ""); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestFileLeadsOut: a recipe that came along as a link is read where it may lead, and nothing of another file is shown.
func TestFileLeadsOut(t *testing.T) {
	t.Setenv(reach.Variable, "")
	top := t.TempDir()
	own, out := filepath.Join(top, "r"), filepath.Join(top, "private")
	err := errors.Join(os.Mkdir(own, 0o755), os.WriteFile(out, []byte("password\n"), 0o600), os.Symlink(out, filepath.Join(own, FileName)),
		os.Symlink(out, filepath.Join(own, PipelineFile)), os.Symlink("/dev/zero", filepath.Join(own, "zero.toml")), syscall.Mkfifo(filepath.Join(own, "pipe.toml"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"": "outside of the recipe's directory", "zero.toml": "outside of the recipe's directory", "pipe.toml": "it is not a regular file",
	} {
		_, err := Load(filepath.Join(own, name))
		_, other := Variants(filepath.Join(own, name))
		for _, err := range []error{err, other} {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "password") {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
	if _, err := LoadPipeline(filepath.Join(own, PipelineFile)); err == nil || !strings.Contains(err.Error(), "outside of") {
		t.Errorf("a pipeline: got %v", err)
	}
	t.Setenv(reach.Variable, out)
	if _, err := Load(own); err == nil || strings.Contains(err.Error(), "outside of") {
		t.Errorf("with the user's word: got %v", err)
	}
}
