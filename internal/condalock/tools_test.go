package condalock

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/store"
)

// needs skips the test for the reason given, or fails it where everything must be there.
func needs(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("SCONCE_REQUIRE_TOOLS") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

func needUV(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("uv"); err != nil {
		needs(t, err.Error())
	}
}

// uvPython runs a script of Python with packages from the index.
func uvPython(t testing.TB, script string, packages []string, args ...string) string {
	t.Helper()
	needUV(t)
	all := []string{"run", "--quiet", "--no-project", "--isolated", "--python", ">=3.10"}
	for _, p := range packages {
		all = append(all, "--with", p)
	}
	cmd := exec.Command("uv", append(append(all, "python", "-I", "-c", script), args...)...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// entry of a channel's index.
type pkg struct {
	name, version, build string
	number               int
	depends              []string
	noarch               bool
}

func (p pkg) file() string { return p.name + "-" + p.version + "-" + p.build + ".conda" }

func (p pkg) record(subdir string) map[string]any {
	sum := store.DigestOf([]byte(subdir + p.file()))
	r := map[string]any{
		"name": p.name, "version": p.version, "build": p.build, "build_number": p.number, "depends": listOf(p.depends), "subdir": subdir,
		"sha256": sum.Hex(), "md5": sum.Hex()[:32], "size": 1000, "license": "MIT",
	}
	if p.noarch {
		r["noarch"] = "python"
	}
	return r
}

// writeChannel writes a channel of indexes alone: the solver reads no archive.
func writeChannel(t testing.TB, dir string, packages map[string][]pkg) {
	t.Helper()
	for _, subdir := range []string{"linux-64", "linux-aarch64", "noarch"} {
		archives := map[string]any{}
		for _, p := range packages[subdir] {
			archives[p.file()] = p.record(subdir)
		}
		text, err := json.Marshal(map[string]any{
			"info": map[string]string{"subdir": subdir}, "packages": map[string]any{}, "packages.conda": archives, "repodata_version": 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, subdir, "repodata.json"), string(text))
		e, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, subdir, "repodata.json.zst"), string(e.EncodeAll(text, nil)))
	}
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// torchChannel has what the tests ask for: a torch with and without CUDA, two Pythons.
func torchChannel() map[string][]pkg {
	arch := []pkg{
		{name: "torch", version: "2.7.1", build: "cuda128_py312_0", number: 200, depends: []string{"__cuda >=12.8", "__glibc >=2.28", "python 3.12.*"}},
		{name: "torch", version: "2.7.1", build: "cpu_py312_0", depends: []string{"python 3.12.*"}},
		{name: "torch", version: "2.7.1", build: "cpu_py311_0", depends: []string{"python 3.11.*"}},
		{name: "python", version: "3.12.9", build: "h1_0", depends: []string{"libz"}},
		{name: "python", version: "3.11.9", build: "h1_0", depends: []string{"libz"}},
		{name: "libz", version: "1.3", build: "h1_0"},
		{name: "libz", version: "1.2", build: "h1_0"},
		{name: "new-libc", version: "1", build: "h1_0", depends: []string{"__glibc >=2.99"}},
	}
	return map[string][]pkg{
		"linux-64":      append([]pkg{{name: "intel-only", version: "1", build: "h1_0"}}, arch...),
		"linux-aarch64": arch,
		"noarch":        {{name: "six", version: "1.17.0", build: "pyhd8_0", depends: []string{"python"}, noarch: true}, {name: "uses-torch", version: "1", build: "py_0", depends: []string{"torch"}, noarch: true}},
	}
}

// server serves a channel over loopback, with validators, as real ones do.
type server struct {
	*httptest.Server
	dir   string
	check func(w http.ResponseWriter, r *http.Request) bool // false: it has answered

	mu   sync.Mutex
	seen []string
}

func serve(t testing.TB, packages map[string][]pkg) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	writeChannel(t, filepath.Join(s.dir, "channel"), packages)
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(s.Close)
	return s
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.URL.Path)
	s.mu.Unlock()
	if s.check != nil && !s.check(w, r) {
		return
	}
	file := filepath.Join(s.dir, filepath.FromSlash(r.URL.Path))
	if info, err := os.Stat(file); err == nil {
		w.Header().Set("ETag", fmt.Sprintf(`"%d-%d"`, info.ModTime().UnixNano(), info.Size()))
	}
	http.ServeFile(w, r, file)
}

func (s *server) channel() string { return s.URL + "/channel" }

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// variables makes a lookup of environment variables.
func variables(kv ...string) func(string) (string, bool) {
	all := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		all[kv[i]] = kv[i+1]
	}
	return func(name string) (string, bool) { v, ok := all[name]; return v, ok }
}

// config reads the configuration of a user with these files in their home, and these variables.
func config(t testing.TB, files map[string]string, kv ...string) *Config {
	t.Helper()
	c, err := ReadConfig(variables(append([]string{"HOME", home(t, files)}, kv...)...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func home(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func solver(t testing.TB, c *Config) *Solver {
	t.Helper()
	needUV(t)
	// Not the home of whoever runs the test: rattler finds logins there.
	t.Setenv("UV_CACHE_DIR", uvCache(t))
	t.Setenv("UV_PYTHON_INSTALL_DIR", uvPythons(t))
	t.Setenv("HOME", c.variable("HOME"))
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return &Solver{Store: st, Config: c}
}

var uvCache = uvDir("cache", "dir")

var uvPythons = uvDir("python", "dir")

// uvDir asks uv, once, where it keeps things.
func uvDir(args ...string) func(t testing.TB) string {
	ask := sync.OnceValues(func() (string, error) {
		out, err := exec.Command("uv", args...).Output()
		return strings.TrimSpace(string(out)), err
	})
	return func(t testing.TB) string {
		t.Helper()
		dir, err := ask()
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
}

func machine(t testing.TB, f Facts, kv ...string) *Machine {
	t.Helper()
	m, err := Virtual(f, variables(kv...))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// gpuNode is a usual target.
var gpuNode = Facts{Platform: "linux-64", Glibc: "2.35", CUDA: "12.9"}

func specs(texts ...string) []Spec {
	var all []Spec
	for i, text := range texts {
		all = append(all, Spec{Text: text, Line: i + 1, Column: 5})
	}
	return all
}

// chosen lists packages as NAME-VERSION-BUILD.
func chosen(a *Answer) string {
	var all []string
	for _, p := range a.Packages {
		all = append(all, strings.TrimSuffix(p.File, ".conda"))
	}
	return strings.Join(all, " ")
}

func writeProgram(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
