package tocontainerfile

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/bootstrap"
	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tomltext"
)

const text = `
name = "demo"
version = "2"
[base]
image = "registry.example.org/cuda:12"
[system]
packages = ["git"]
[python]
packages = ["torch"]
prefer = ["torch"]
[[step]]
name = "build it"
copy = ["src:/opt/src", "*.txt:/opt/notes/"]
patch = ["fix.patch:/opt/src"]
run = """
make -C /opt/src && echo "a < b"
make install
"""
env = { MODE = "release" }
workdir = "/opt/src"
mounts = ["cache:ccache", "bind:data:/data", "secret:token:env=TOKEN", "ssh", "tmpfs:/scratch:size=1GiB"]
network = false
[[step]]
link = ["../src/it's$1:/usr/local/bin/it"]
run = "id"
user = "nobody"
[image]
env = { A = "say \"$HOME\"" }
entrypoint = ["/bin/sh"]
cmd = ["-c", "id && id"]
workdir = "/work"
user = "1000"
volumes = ["/scratch"]
[slim]
strip = true
`

const pylock = `lock-version = "1.0"
created-by = "uv"

[[packages]]
name = "torch"
version = "2.8.0"
wheels = [{ url = "https://example.org/torch-2.8.0-py3-none-any.whl", size = 1, hashes = { sha256 = "` + hash + `" } }]
`

const hash = "cae662172fd450bb0cd710a769079c05bfc5d8e35efa6576edc7d0377afdd4a2"

func load(t *testing.T, content string) *recipe.Recipe {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string]string{"sconce.toml": content, "src/Makefile": "all:\n", "pylock.toml": pylock, "ext/setup.py": "", "a.txt": "a", "environment.yml": "dependencies: [data]\nvariables: {LEVEL: \"it's $3\"}\n", "fix.patch": "--- a/x\n+++ b/x\n", "data/x": "x"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := recipe.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func locked() *lock.Lock {
	digest := store.DigestOf([]byte("base"))
	return &lock.Lock{
		Platform: "linux/amd64",
		Base:     base.Pinned{Reference: "registry.example.org/cuda:12", Name: "registry.example.org/cuda:12", Digest: digest},
		System:   &ospackages.Pinned{Manager: "apt", Asked: []string{"git"}, Packages: []ospackages.Package{{Name: "git", Version: "1:2.39.5-0", Architecture: "amd64"}}},
		Python: &lock.Python{
			Executable: "/usr/bin/python3.11", Version: "3.11.2", Implementation: "cpython", Platform: "x86_64", Glibc: "2.36",
			File: "pylock.toml", SystemSitePackages: true,
		},
	}
}

// write is Write of a lock whose files are beside the recipe.
func write(r *recipe.Recipe, l *lock.Lock, o Options) (string, error) {
	locked, err := l.Files(r).Locked(r)
	if err != nil {
		return "", err
	}
	return Write(r, locked, o)
}

func TestWrite(t *testing.T) {
	got, err := write(load(t, text), locked(), Options{GPU: []string{"9.0"}})
	if err != nil {
		t.Fatal(err)
	}
	wantGolden(t, "testdata/demo.containerfile", got)
	checkMeaning(t, last(t, got))
}

func wantGolden(t *testing.T, golden, got string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got; UPDATE_GOLDEN=1 takes it over\n%s", diff)
	}
}

// last reads what was written as a builder does, and returns its last stage.
func last(t *testing.T, text string) *containerfile.Stage {
	t.Helper()
	parsed, err := containerfile.Parse("Containerfile", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	config := func(_ context.Context, _ string, _ v1.Platform) (*v1.ConfigFile, error) {
		return &v1.ConfigFile{Config: v1.Config{Env: []string{"PATH=/bin"}}}, nil
	}
	b, err := parsed.Evaluate(t.Context(), containerfile.Options{Platform: v1.Platform{OS: "linux", Architecture: "amd64"}}, config)
	if err != nil {
		t.Fatal(err)
	}
	return b.Stages[len(b.Stages)-1]
}

func checkMeaning(t *testing.T, s *containerfile.Stage) {
	t.Helper()
	if diff := cmp.Diff([]string{"PATH=/opt/venv/bin:/bin", "VIRTUAL_ENV=/opt/venv", `A=say "$HOME"`}, s.Config.Env, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("environment (-want +got)\n%s", diff)
	}
	var scripts []string
	for _, op := range s.Ops {
		if op.Run != nil {
			scripts = append(scripts, op.Run.Args[len(op.Run.Args)-1])
		}
	}
	if !strings.Contains(strings.Join(scripts, ""), "make -C /opt/src && echo \"a < b\"\nmake install\n") {
		t.Errorf("the script is none of %q", scripts)
	}
	if s.Config.User != "1000" || s.Config.WorkingDir != "/work" || len(s.Config.Cmd) != 2 {
		t.Errorf("configuration %+v", s.Config)
	}
}

// System packages are those of the base's own manager, and of the architecture that the lock has.
func TestSystemPackages(t *testing.T) {
	r, l := load(t, "name = \"demo\"\n[base]\nimage = \"x\"\n"), locked()
	l.Python = nil
	l.System = &ospackages.Pinned{Manager: "apt", Remove: []string{"exim4"}, Packages: []ospackages.Package{
		{Name: "git", Version: "1", Architecture: "amd64"}, {Name: "libc6", Version: "2", Architecture: "i386"}, {Name: "tzdata", Version: "3", Architecture: "all"},
	}}
	got, err := write(r, l, Options{})
	if err != nil || !strings.Contains(got, "    dpkg --add-architecture i386 && apt-get update") ||
		!strings.Contains(got, "        git=1 \\\n        libc6:i386=2 \\\n        tzdata=3 \\\n        exim4-\n") {
		t.Errorf("%v\n%s", err, got)
	}
	l.System = &ospackages.Pinned{Manager: "dnf", Packages: []ospackages.Package{{Name: "git", Version: "1:2.3-4.el9", Architecture: "x86_64"}}}
	got, err = write(r, l, Options{})
	if err != nil || strings.Contains(got, "apt-get") || !strings.Contains(got, "dnf install") || !strings.Contains(got, " git-1:2.3-4.el9.x86_64\n") {
		t.Errorf("%v\n%s", err, got)
	}
	l.System.Manager = "zypper"
	got, err = write(r, l, Options{})
	if err != nil || !strings.Contains(got, "RUN zypper --non-interactive install --no-recommends --oldpackage \\\n        git.x86_64=1:2.3-4.el9\n") {
		t.Errorf("%v\n%s", err, got)
	}
	l.System.Manager = "pacman"
	if _, err = write(r, l, Options{}); err == nil {
		t.Error("packages of a manager that is not known")
	}
}

// Names mean themselves, whatever a builder would make of them.
func TestOddNames(t *testing.T) {
	r, l := load(t, "name = \"demo\"\n[base]\nimage = \"x\"\n[[step]]\nrun = \"id\"\n[image]\nworkdir = '/w$k'\nvolumes = ['/v$v']\n"), locked()
	l.Python, l.System = nil, nil
	r.Steps[0].Copy = []string{`it's$b\*"x":/x$y z\q/`}
	got, err := write(r, l, Options{})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := containerfile.Parse("Containerfile", []byte(got))
	if err != nil {
		t.Fatal(err)
	}
	config := func(context.Context, string, v1.Platform) (*v1.ConfigFile, error) { return &v1.ConfigFile{}, nil }
	b, err := parsed.Evaluate(t.Context(), containerfile.Options{}, config)
	if err != nil {
		t.Fatal(err)
	}
	s := b.Stages[0]
	if c := s.Ops[0].Copy; c.Sources[0] != `it's$b\*"x"` || c.Dest != `/x$y z\q/` {
		t.Errorf("%q to %q\n%s", c.Sources, c.Dest, got)
	}
	if _, ok := s.Config.Volumes["/v$v"]; !ok || s.Config.WorkingDir != "/w$k" {
		t.Errorf("%q, %v", s.Config.WorkingDir, s.Config.Volumes)
	}
	for _, mount := range []string{"bind:data:/a,b", "bind:data:/a b", "cache:c:/a$b"} {
		r.Steps[0].Mounts = []string{mount}
		if _, err := write(r, l, Options{}); err == nil || !strings.Contains(err.Error(), "cannot stand in a mount") {
			t.Errorf("%s: %v", mount, err)
		}
	}
}

// What a command has is JSON's for a builder, which takes what is no JSON for a line of a shell.
func TestLiteralEscapes(t *testing.T) {
	odd := []string{`\u003c`, `\\u0026`, "<a&b>", `"\u003e"`, "$(touch M)", "ünï"}
	var quoted []string
	for _, word := range odd {
		quoted = append(quoted, tomltext.String(word))
	}
	list := "[" + strings.Join(quoted, ", ") + "]"
	got, err := write(load(t, `
name = "x"
version = "1"
[base]
image = "registry.example.org/cuda:12"
[[step]]
run = 'python3 -c "print(\"a\u003cb\\u0026\")" && true'
[image]
entrypoint = `+list+`
cmd = `+list+`
`), &lock.Lock{Platform: "linux/amd64", Base: locked().Base}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, begins := range []string{"RUN ", "ENTRYPOINT ", "CMD "} {
		_, rest, _ := strings.Cut(got, "\n"+begins)
		line, _, _ := strings.Cut(rest, "\n")
		var words []string
		if err := json.Unmarshal([]byte(line), &words); err != nil {
			t.Errorf("%s%s: %v\n%s", begins, line, err, got)
			continue
		}
		if want := odd; begins[0] != 'R' && !slices.Equal(words, want) {
			t.Errorf("%s%q, want %q", begins, words, want)
		}
		if begins[0] == 'R' && !strings.Contains(words[len(words)-1], `print(\"a\u003cb\\u0026\")" && true`) {
			t.Errorf("%q", words)
		}
	}
}

func TestBootstrapped(t *testing.T) {
	r := load(t, "name = \"demo\"\n[base]\nbootstrap = { suite = \"noble\", packages = [\"python3\"] }\n")
	l := &lock.Lock{Base: base.Pinned{Bootstrap: &bootstrap.Pinned{Suite: "noble"}}}
	got, err := write(r, l, Options{})
	if err != nil || !strings.Contains(got, "FROM docker.io/library/ubuntu:noble\n") || !strings.Contains(got, "python3") {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err = write(r, l, Options{Base: "mine:1"}); err != nil || !strings.Contains(got, "FROM mine:1\n") {
		t.Errorf("%v\n%s", err, got)
	}
}

// A base of RPM packages becomes the distribution's image, where there is one that is known.
func TestBootstrappedRPM(t *testing.T) {
	for release, want := range map[string]string{
		"rocky:9": "FROM docker.io/rockylinux/rockylinux:9\nRUN --mount=type=cache,target=/var/cache/dnf,sharing=locked \\\n    dnf install -y --setopt=install_weak_deps=False \\\n        python3 \\\n        git-2.4\n",
		"alma:10": "FROM docker.io/library/almalinux:10\n", "fedora:42": "FROM docker.io/library/fedora:42\n",
		"opensuse:15.6": "FROM docker.io/opensuse/leap:15.6\nRUN zypper --non-interactive install --no-recommends \\\n        python3 \\\n        git=2.4\n",
	} {
		r := load(t, "name = \"demo\"\n[base]\nbootstrap = { dnf = \""+release+"\", packages = [\"python3\", \"git=2.4\"] }\n")
		l := &lock.Lock{Base: base.Pinned{Bootstrap: &bootstrap.Pinned{Manager: "rpm", Suite: release}}}
		if got, err := write(r, l, Options{}); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v\n%s", release, err, got)
		}
	}
	r := load(t, "name = \"demo\"\n[base]\nbootstrap = { dnf = \"https://mirror.example.org/os\", trusted = true }\n")
	l := &lock.Lock{Base: base.Pinned{Bootstrap: &bootstrap.Pinned{Manager: "rpm", Suite: "testland:7"}}}
	if _, err := write(r, l, Options{}); err == nil || !strings.Contains(fault.HintOf(err), "--base") {
		t.Errorf("%v", err)
	}
	if got, err := write(r, l, Options{Base: "mine:1"}); err != nil || !strings.Contains(got, "FROM mine:1\n") {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestOutsideTheContext(t *testing.T) {
	for what, change := range map[string]func(*recipe.Step){
		"copy": func(s *recipe.Step) { s.Copy = []string{"../x:/x"} },
		"bind": func(s *recipe.Step) { s.Mounts = []string{"bind:/etc:/x"} },
	} {
		r := load(t, "name = \"demo\"\n[base]\nimage = \"x\"\n[[step]]\nrun = \"id\"\n")
		change(&r.Steps[0])
		if _, err := write(r, locked(), Options{}); err == nil || !strings.Contains(err.Error(), "not below the recipe's directory") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

const compiledText = `
name = "compiled"
version = "1"
[base]
image = "registry.example.org/python:3"
[target]
gpu = ["9.0", "10.0"]
[python]
packages = ["torch", "flash-attn", "greet", "greeting @ ./ext", "apex @ git+https://example.org/apex"]
[python.compile.greet]
isolation = true
jobs = 3
[python.compile.greeting]
isolation = false
requires = ["greet"]
env = { GREETING = 'it is "$HOME" \' }
[slim]
strip = true
`

const compiledLock = pylock + `
[[packages]]
name = "flash-attn"
version = "2.8.3"
sdist = { url = "https://example.org/flash_attn-2.8.3.tar.gz", size = 1, hashes = { sha256 = "` + hash + `" } }

[[packages]]
name = "greeting"
version = "1.0"
directory = { path = "ext" }

[[packages]]
name = "greet"
version = "1.0"
sdist = { url = "https://example.org/greet-1.0.tar.gz", size = 1, hashes = { sha256 = "` + hash + `" } }

[[packages]]
name = "apex"
version = "0.1"
vcs = { type = "git", url = "https://example.org/apex", commit-id = "0123456789abcdef0123456789abcdef01234567" }
`

// loadCompiled has four packages without a wheel: one that is known, one in a directory that is built against another one,
// and one of a repository.
func loadCompiled(t *testing.T) (*recipe.Recipe, *lock.Lock) {
	t.Helper()
	r, l := load(t, compiledText), locked()
	if err := os.WriteFile(filepath.Join(r.Dir, "pylock.toml"), []byte(compiledLock), 0o644); err != nil {
		t.Fatal(err)
	}
	requires := func(name, version string) lock.BuildRequirement {
		file := name + "-" + version + "-py3-none-any.whl"
		return lock.BuildRequirement{Name: name, Version: version, File: file, URL: "https://example.org/" + file, Digest: store.DigestOf([]byte(name))}
	}
	l.System, l.Python.SystemSitePackages = nil, false
	l.Python.Compiled = []lock.Compiled{
		{Name: "flash-attn", Version: "2.8.3", Against: []string{"torch"}, Requires: []lock.BuildRequirement{requires("nvidia-cuda-nvcc", "13.0.1"), requires("setuptools", "80.9.0")}},
		{Name: "greeting", Version: "1.0", Against: []string{"greet"}},
		{Name: "greet", Version: "1.0", Isolation: true, Requires: []lock.BuildRequirement{requires("setuptools", "70.0.0"), requires("torch", "2.8.0")}},
		{Name: "apex", Version: "0.1", Against: []string{"torch"}},
	}
	return r, l
}

// TestCompiled: each package that has no wheel gets what its build needs, in the order in which they need each other.
func TestCompiled(t *testing.T) {
	r, l := loadCompiled(t)
	got, err := write(r, l, Options{UV: "uv:1"})
	if err != nil {
		t.Fatal(err)
	}
	wantGolden(t, "testdata/compiled.containerfile", got)
	var scripts []string
	for _, op := range last(t, got).Ops {
		if op.Run != nil {
			scripts = append(scripts, op.Run.Args[len(op.Run.Args)-1])
		}
	}
	if !strings.Contains(strings.Join(scripts, ""), `'GREETING=it is "$HOME" '\\'' `) {
		t.Errorf("the variable is not whole in %q", scripts)
	}
}

// TestCompiledElsewhere: what the recipe compiles in another image is compiled in a stage of it.
func TestCompiledElsewhere(t *testing.T) {
	r, l := loadCompiled(t)
	l.Python.Compiled[0].Base = &lock.CompileBase{Executable: "/opt/bin/python3", Image: base.Pinned{Name: "registry.example.org/devel:1", Digest: l.Base.Digest}}
	got, err := write(r, l, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"FROM registry.example.org/devel@" + string(l.Base.Digest) + " AS compiled\n", "uv venv --python /opt/bin/python3 /opt/venv;",
		"COPY --from=compiled /opt/venv /opt/venv\n", "uv venv --allow-existing --python /usr/bin/python3.11 /opt/venv\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if s := last(t, got); s.Config.Env[0] != "PATH=/opt/venv/bin:/bin" && s.Config.Env[1] != "PATH=/opt/venv/bin:/bin" || strings.Count(got, "uv pip sync") != 5 {
		t.Errorf("environment %q\n%s", s.Config.Env, got)
	}
}

// TestSourceOutsideTheContext: a source that the build cannot see is an error now, not then.
func TestSourceOutsideTheContext(t *testing.T) {
	t.Setenv(reach.Variable, "/")
	for change, want := range map[[2]string]string{
		{`path = "ext"`, `path = "../ext"`}:                                   "greeting: ",
		{"https://example.org/apex", "file:///srv/apex"}:                      "apex: file:///srv/apex is a repository of this machine",
		{`url = "https://example.org/torch-2`, `path = "/srv/wheels/torch-2`}: "/srv/wheels/torch-2.8.0-py3-none-any.whl is not below",
	} {
		r, l := loadCompiled(t)
		text := strings.Replace(compiledLock, change[0], change[1], 1)
		if err := os.WriteFile(filepath.Join(r.Dir, "pylock.toml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := write(r, l, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", change[1], err)
		}
	}
}
