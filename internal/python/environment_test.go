package python

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// layEnvironment builds an environment of wheels as a build does and unpacks it: its root directory is returned. It
// runs on this machine's Python, from the place where it will be.
func layEnvironment(t testing.TB, st *store.Store, items []Item, compiler Compiler, edit func(*Environment)) string {
	t.Helper()
	python, version := testPython(t)
	dir := t.TempDir()
	target := testTarget(version)
	target.Python.Executable = python
	target.Root = strings.TrimPrefix(dir, "/") + "/venv"
	e := Environment{Target: target, Items: items}
	var layers []layer.Descriptor
	for _, g := range GroupItems(items, 20) {
		d, m, err := BuildLayer(t.Context(), st, g, target, compiler, LayerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, d)
		e.Manifests = append(e.Manifests, m)
	}
	if err := CheckConflicts(e.Manifests, nil); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(&e)
	}
	d, err := BuildEnvironment(t.Context(), st, e, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	unpacked := t.TempDir()
	for _, d := range append(layers, d) {
		unpackOver(t, st, d, unpacked)
	}
	if err := os.Rename(filepath.Join(unpacked, target.Root), filepath.Join(dir, "venv")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "venv")
}

// unpackOver unpacks a layer over others by tar, which is no code of ours.
func unpackOver(t testing.TB, st *store.Store, d layer.Descriptor, dir string) {
	t.Helper()
	blob, err := st.OpenBlob(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	plain, err := layer.Decompress(blob)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	cmd := exec.Command(tooltest.Path(t, "tar"), "-x", "--no-same-owner", "-C", dir)
	cmd.Stdin = plain
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
}

// TestEnvironmentWorks imports, runs commands and asks pip and Python's own metadata reader.
func TestEnvironmentWorks(t *testing.T) {
	start, _ := localPython(t)
	st := storetest.New(t)
	var items []Item
	for _, name := range []string{"jinja2", "markupsafe", "pygments", "pip", "tqdm", "six", "idna"} {
		items = append(items, putWheel(t, st, wheelFor(t, name)))
	}
	items[0].Requested = true
	items[3].DirectURL = &DirectURL{URL: "https://example.org/pip.whl", ArchiveInfo: &ArchiveInfo{Hashes: map[string]string{"sha256": strings.Repeat("0", 64)}}}
	venv := layEnvironment(t, st, items, newPool(t, 2, start), func(e *Environment) { e.Prompt = "demo'\n$(x)" })
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "PYTHONDONTWRITEBYTECODE=1"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	python := filepath.Join(venv, "bin/python")
	if got := run(python, "-c", "import sys, six, jinja2; print(sys.prefix != sys.base_prefix, sys.prefix, jinja2.Template('{{ 1 + 1 }}').render())"); got != "True "+venv+" 2" {
		t.Errorf("python says %q", got)
	}
	if pythonMinor(t) != "3.11" {
		t.Log("markupsafe is compiled for another Python, so pip check would complain")
	} else if got := run(python, "-m", "pip", "check"); got != "No broken requirements found." {
		t.Errorf("pip check says %q", got)
	}
	var listed []struct{ Name, Version string }
	if err := json.Unmarshal([]byte(run(filepath.Join(venv, "bin/pip"), "list", "--format=json", "--disable-pip-version-check")), &listed); err != nil || len(listed) != len(items) {
		t.Errorf("pip lists %v, %v", listed, err)
	}
	if got := run(filepath.Join(venv, "bin/pygmentize"), "-V"); !strings.Contains(got, "Pygments version") {
		t.Errorf("pygmentize says %q", got)
	}
	// Every file that a RECORD lists is there with its hash, and byte code is used.
	check := `
import base64, hashlib, importlib.metadata as md, sys
for d in md.distributions():
    for f in d.files:
        data = open(d.locate_file(f), "rb").read()
        if f.hash and base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() != f.hash.value:
            print("wrong", f)
    print(d.metadata["Name"].lower(), d.read_text("INSTALLER").strip(), d.read_text("REQUESTED") is not None, d.read_text("direct_url.json") or "-")
import jinja2
print(jinja2.__spec__.loader.get_code("jinja2").co_filename, open(jinja2.__cached__, "rb").read(8)[4])
`
	got := run(python, "-c", check)
	for _, want := range []string{"jinja2 sconce True -", "six sconce False -", `pip sconce False {"url":"https://example.org/pip.whl"`, "jinja2/__init__.py 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "wrong") {
		t.Error(got)
	}
	// pip can take away what we laid down, RECORD being right.
	run(python, "-m", "pip", "uninstall", "-y", "jinja2")
	if _, err := os.Stat(filepath.Join(venv, "lib/python"+pythonMinor(t)+"/site-packages/jinja2")); !os.IsNotExist(err) {
		t.Errorf("after pip uninstall: %v", err)
	}
}

func pythonMinor(t testing.TB) string {
	t.Helper()
	_, version := testPython(t)
	return Interpreter{Version: version}.Minor()
}

func TestActivateScripts(t *testing.T) {
	venv := layEnvironment(t, storetest.New(t), nil, nil, func(e *Environment) { e.Prompt = "my env" })
	for shell, test := range map[string]struct{ script, source, which string }{
		"sh":   {"activate", "set -u; . ", "command -v"},
		"dash": {"activate", ". ", "command -v"},
		"bash": {"activate", "set -eu; . ", "command -v"},
		"zsh":  {"activate", ". ", "command -v"},
		"fish": {"activate.fish", "source ", "command -v"},
		"tcsh": {"activate.csh", "source ", "which"},
	} {
		t.Run(shell, func(t *testing.T) {
			path := tooltest.Path(t, shell)
			script := strings.Join([]string{
				test.source + venv + "/bin/" + test.script,
				"echo $VIRTUAL_ENV",
				test.which + " python",
				test.source + venv + "/bin/" + test.script,
				"echo $PATH",
				"deactivate",
				"echo $PATH",
			}, "\n")
			cmd := exec.Command(path, "-c", script)
			cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir()}
			out, err := cmd.CombinedOutput()
			bin := venv + "/bin"
			want := fmt.Sprintf("%s\n%s/python\n%s:/usr/bin:/bin\n/usr/bin:/bin\n", venv, bin, bin)
			if shell == "fish" { // there PATH is a list
				want = strings.ReplaceAll(want, ":", " ")
			}
			if err != nil || string(out) != want {
				t.Errorf("%v; it says\n%s\nwant\n%s", err, out, want)
			}
		})
	}
}

// A relocatable environment finds its place by its script, whatever its directory is called and CDPATH says.
func TestActivateFindsItsPlace(t *testing.T) {
	e := Environment{Target: Target{Root: "opt/venv", Relocatable: true}}
	for shell, script := range map[string]struct{ name, template string }{
		"bash": {"activate", activateSh}, "zsh": {"activate", activateSh}, "fish": {"activate.fish", activateFish},
	} {
		t.Run(shell, func(t *testing.T) {
			path := tooltest.Path(t, shell)
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"venv", "-a\nb c"} {
				if shell == "zsh" { // which shows a newline in the name of a script as \n
					name = strings.ReplaceAll(name, "\n", " ")
				}
				for _, at := range []string{name, "elsewhere/" + name} {
					if err := os.MkdirAll(filepath.Join(dir, at, "bin"), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(filepath.Join(dir, name, "bin", script.name), e.activate(script.template), 0o644); err != nil {
					t.Fatal(err)
				}
				given := name // which bash finds here, and CDPATH would find elsewhere
				if shell != "bash" || strings.HasPrefix(name, "-") {
					given = "./" + name
				}
				cmd := exec.Command(path, "-c", "source \"$ACTIVATE\"; printf %s \"$VIRTUAL_ENV\"")
				cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "CDPATH=elsewhere", "ACTIVATE=" + given + "/bin/" + script.name}
				out, err := cmd.CombinedOutput()
				if want := filepath.Join(dir, name); err != nil || string(out) != want {
					t.Errorf("%s: %v: %q, want %q", given, err, out, want)
				}
			}
		})
	}
}

func TestGroups(t *testing.T) {
	var items []Item
	for i := range 100 {
		items = append(items, Item{Name: fmt.Sprintf("pkg-%02d", i), Size: int64(1000 * i), Digest: store.DigestOf([]byte{byte(i)})})
	}
	for i := range 20 {
		items = append(items, Item{Name: fmt.Sprintf("big-%02d", i), Size: int64(i+8) << 20})
	}
	for _, budget := range []int{1, 2, 5, 12, 30, 127} {
		groups := GroupItems(items, budget)
		if len(groups) > budget {
			t.Errorf("%d groups for a budget of %d", len(groups), budget)
		}
		seen := make(map[string]bool)
		for _, g := range groups {
			for _, it := range g.Items {
				seen[it.Name] = true
			}
		}
		if len(seen) != len(items) {
			t.Errorf("with a budget of %d, %d of %d packages are in a group", budget, len(seen), len(items))
		}
	}
	before, after := GroupItems(items, 40), GroupItems(append(items, Item{Name: "einops", Size: 5}), 40)
	if n := changed(before, after); n != 1 {
		t.Errorf("one small package more changes %d groups", n)
	}
	after = GroupItems(append(items, Item{Name: "torch", Size: 1 << 30}), 40)
	if n := changed(before, after); n != 1 || len(after) != len(before)+1 {
		t.Errorf("one large package more changes %d groups", n)
	}
	if groups := GroupItems(nil, 40); len(groups) != 0 {
		t.Errorf("no packages make %d groups", len(groups))
	}
	if GroupItems(items, 12)[0].Name != "big-11" {
		t.Errorf("with no room for all, %s is the first of the large", GroupItems(items, 12)[0].Name)
	}
}

func changed(before, after []Group) int {
	key := func(g Group) string { return fmt.Sprint(g.Items) }
	had := make(map[string]bool)
	for _, g := range before {
		had[key(g)] = true
	}
	n := 0
	for _, g := range after {
		if !had[key(g)] {
			n++
		}
	}
	return n
}
