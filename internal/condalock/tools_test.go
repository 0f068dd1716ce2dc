package condalock

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

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
func torchChannel() []condatest.Package {
	all := []condatest.Package{
		{Name: "six", Version: "1.17.0", Build: "pyhd8_0", Noarch: "python", Depends: []string{"python"}},
		{Name: "pip", Version: "25.0", Noarch: "python", Depends: []string{"python"}},
		{Name: "uses-torch", Version: "1", Noarch: "python", Depends: []string{"torch"}},
		{Name: "intel-only", Version: "1"},
	}
	for _, subdir := range []string{"linux-64", "linux-aarch64"} {
		for _, p := range []condatest.Package{
			{
				Name: "torch", Version: "2.7.1", Build: "cuda128_py312_0", BuildNumber: 200, License: "BSD-3-Clause",
				Depends: []string{"__cuda >=12.8", "__glibc >=2.28", "python 3.12.*"},
			},
			{Name: "torch", Version: "2.7.1", Build: "cpu_py312_0", Depends: []string{"python 3.12.*"}},
			{Name: "torch", Version: "2.7.1", Build: "cpu_py311_0", Depends: []string{"python 3.11.*"}},
			{Name: "python", Version: "3.12.9", Build: "h1_0", Depends: []string{"libz"}, SitePackages: "lib/python3.12/site-packages"},
			{Name: "python", Version: "3.11.9", Build: "h1_0", Depends: []string{"libz"}},
			{Name: "libz", Version: "1.3", Build: "h1_0"},
			{Name: "libz", Version: "1.2", Build: "h1_0"},
		} {
			p.Subdir = subdir
			all = append(all, p)
		}
	}
	return all
}

// server serves a channel over loopback, with validators, as real ones do.
type server struct {
	*httptest.Server
	made  *condatest.Channel
	name  string
	check func(w http.ResponseWriter, r *http.Request) bool // false: it has answered

	mu   sync.Mutex
	seen []string
}

func serve(t testing.TB, packages []condatest.Package) *server {
	t.Helper()
	s := &server{made: condatest.NewChannel(t, packages...), name: "channel"}
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
	file := filepath.Join(s.made.Dir, strings.TrimPrefix(r.URL.Path, "/"+s.name+"/"))
	if info, err := os.Stat(file); err == nil {
		w.Header().Set("ETag", fmt.Sprintf(`"%d-%d"`, info.ModTime().UnixNano(), info.Size()))
	}
	http.ServeFile(w, r, file)
}

func (s *server) channel() string { return s.URL + "/" + s.name }

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
	tooltest.Path(t, "uv")
	// Not the home of whoever runs the test: rattler finds logins there.
	t.Setenv("UV_CACHE_DIR", uvCache(t))
	t.Setenv("UV_PYTHON_INSTALL_DIR", uvPythons(t))
	t.Setenv("HOME", c.variable("HOME"))
	st := storetest.New(t)
	return &Solver{Store: st, Config: c, UV: func(context.Context) (string, error) { return exec.LookPath("uv") }}
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
	if err := tooltest.WriteProgram(file, []byte(text)); err != nil {
		t.Fatal(err)
	}
}
