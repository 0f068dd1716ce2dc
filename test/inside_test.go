package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

// checkModules imports what it is told in a Python that only looks at finished byte code, and says of every module
// whether it came with one that is never checked against its source (PEP 552: flags 3).
const checkModules = `
import importlib, json, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
seen, bad = 0, []
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None) or ""
    if not file.startswith("/opt/venv/") or not file.endswith(".py"):
        continue
    seen += 1
    cached = getattr(module, "__cached__", None) or ""
    try:
        with open(cached, "rb") as f:
            head = f.read(8)
    except OSError as e:
        bad.append([name, str(e)])
        continue
    if int.from_bytes(head[4:8], "little") != 1:
        bad.append([name, head[4:8].hex()])
print(json.dumps({"seen": seen, "bad": bad}))
`

// metadata prints who was asked for and who installed what.
const metadata = `
import importlib.metadata, json
print(json.dumps({d.name: [d.read_text("INSTALLER"), d.read_text("REQUESTED") is not None] for d in importlib.metadata.distributions(path=["/opt/venv/lib/python3.11/site-packages"])}))
`

// An ordinary user builds an image and looks at it from the inside, with the programs that people use for that.
func TestInsideTheImage(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.take(lockedRecipe(t, newIndex(t), recipe(base(t).ref, everything)), "app")
	p.build("--locked", "app")
	inside := func(args ...string) string {
		t.Helper()
		return p.must(append([]string{"--offline", "run", "--read-only", "app:1", "--"}, args...)...).stdout
	}
	locked := lockedVersions(t, p.path("app/pylock.toml"))

	t.Run("pip", func(t *testing.T) {
		if out := inside("python", "-m", "pip", "check"); !strings.Contains(out, "No broken requirements found") {
			t.Errorf("pip check: %s", out)
		}
		wantVersions(t, "pip list", inside("pip", "list", "--format", "json"), locked)
	})
	t.Run("uv", func(t *testing.T) {
		with := []string{"--offline", "run", "--read-only", "-B", filepath.Join(workshop, "bin", "uv") + ":/tools/uv:ro", "-e", "UV_NO_CACHE=1", "app:1", "--", "/tools/uv", "pip"}
		check := p.must(slices.Concat(with, []string{"check", "--python", "/opt/venv/bin/python"})...)
		if !strings.Contains(check.stderr, "compatible") {
			t.Errorf("uv pip check: %v", check)
		}
		list := p.must(slices.Concat(with, []string{"list", "--python", "/opt/venv/bin/python", "--format", "json"})...)
		wantVersions(t, "uv pip list", list.stdout, locked)
	})
	t.Run("scripts", func(t *testing.T) {
		for _, c := range []struct{ want, script string }{
			{"2.2.6", "numpy-config --version"},
			{"Usage:", "f2py -h"},
			{"U-label", "idna --help"},
			{"pip 26.3", "pip --version"},
			{"<h1>", "echo '# x' > /tmp/x.md && markdown-it /tmp/x.md"},
		} {
			if out := inside("sh", "-c", c.script+" 2>&1"); !strings.Contains(out, c.want) {
				t.Errorf("%s printed %q", c.script, out)
			}
		}
		if out := inside("python", "-m", "rich.panel"); !strings.Contains(out, "rich.Panel ═") {
			t.Errorf("python -m rich.panel printed %q", out)
		}
	})
	t.Run("requested", func(t *testing.T) {
		var found map[string][2]any
		if err := json.Unmarshal([]byte(inside("python", "-c", metadata)), &found); err != nil {
			t.Fatal(err)
		}
		if len(found) != len(locked) {
			t.Errorf("%d distributions, want %d", len(found), len(locked))
		}
		for name, about := range found {
			if requested := slices.Contains(everything, projectName(name)); about[1] != requested {
				t.Errorf("%s: REQUESTED is %v, want %v", name, about[1], requested)
			}
			if about[0] != "sconce" && about[0] != "sconce\n" {
				t.Errorf("%s: INSTALLER is %q", name, about[0])
			}
		}
	})
	t.Run("byte code", func(t *testing.T) {
		var found struct {
			Seen int
			Bad  [][2]string
		}
		out := inside("python", "-c", checkModules, "six", "idna", "certifi", "click", "requests", "rich", "rich.console", "markupsafe", "numpy", "numpy.linalg", "pip._internal.cli.main")
		if err := json.Unmarshal([]byte(out), &found); err != nil {
			t.Fatal(err)
		}
		if found.Seen < 200 || len(found.Bad) > 0 {
			t.Errorf("%d modules were imported; without unchecked byte code: %v", found.Seen, found.Bad)
		}
		// Where the image can be written to, nothing is.
		script := `touch /tmp/before && python -c "import requests, rich.console, numpy" && find /opt/venv /usr/lib/python3 -newer /tmp/before`
		if r := p.must("--offline", "run", "app:1", "--", "sh", "-c", script); r.stdout != "" {
			t.Errorf("importing wrote %s", r.stdout)
		}
	})
	p.wantTidy()
}

// lockedVersions reads a PEP 751 lock as anybody would.
func lockedVersions(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages []struct{ Name, Version string }
	}
	if err := toml.Unmarshal(data, &lock); err != nil {
		t.Fatal(err)
	}
	versions := make(map[string]string)
	for _, p := range lock.Packages {
		versions[projectName(p.Name)] = p.Version
	}
	if len(versions) < len(everything) {
		t.Fatalf("the lock has only %v", versions)
	}
	return versions
}

// wantVersions compares the output of pip list or uv pip list with the lock.
func wantVersions(t *testing.T, who, list string, want map[string]string) {
	t.Helper()
	var packages []struct{ Name, Version string }
	if err := json.Unmarshal([]byte(list), &packages); err != nil {
		t.Fatalf("%s: %v\n%s", who, err, list)
	}
	got := make(map[string]string)
	for _, p := range packages {
		got[projectName(p.Name)] = p.Version
	}
	for name, version := range want {
		if got[name] != version {
			t.Errorf("%s: %s is %q, the lock has %s", who, name, got[name], version)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s lists %d packages, the lock %d: %v", who, len(got), len(want), got)
	}
}
