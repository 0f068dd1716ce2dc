package lock

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
	"sconce.dev/sconce/internal/uv"
)

// Without uv on PATH the pinned one comes from the index that this machine's clients use, runs, and needs no network again.
func TestUVComesByItself(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the real index")
	}
	t.Setenv("PATH", pipAlone(t))
	st := storetest.New(t)
	online := Options{Store: st, Fetch: fetch.New(st, fetch.Options{})}
	r := &recipe.Recipe{Dir: t.TempDir()}
	if len(Indexes(r)) == 0 {
		tooltest.Missing(t, "no index is configured, and there is no pip that knows one")
	}
	program, err := online.uv(r).Path(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "--version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "uv "+uv.Version) {
		t.Errorf("%s, %v", out, err)
	}
	offline := Options{Store: st, Fetch: fetch.New(st, fetch.Options{Offline: true})}
	if again, err := offline.uv(r).Path(t.Context()); err != nil || again != program {
		t.Errorf("without network: %q, %v", again, err)
	}
}

// pipAlone is a directory with a Python that has pip, where this machine has one, and with nothing else.
func pipAlone(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var candidates []string
	if program, err := exec.LookPath("uv"); err == nil { // installed by pip, it lies beside such a Python
		if program, err = filepath.EvalSymlinks(program); err == nil {
			candidates = append(candidates, filepath.Join(filepath.Dir(program), "python3"))
		}
	}
	if program, err := exec.LookPath("python3"); err == nil {
		candidates = append(candidates, program)
	}
	for _, python := range candidates {
		if exec.Command(python, "-c", "import pip").Run() == nil {
			text := "#!/bin/sh\nexec '" + python + "' \"$@\"\n"
			if err := tooltest.WriteProgram(filepath.Join(dir, "python3"), []byte(text)); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	return dir
}

// withDefault lists indexes after the one that pip takes by itself, if there is a pip.
func withDefault(further ...string) []string {
	if pipDefault() == "" {
		return further
	}
	return append([]string{pipDefault()}, further...)
}

func TestIndexes(t *testing.T) {
	for _, c := range []struct {
		name  string
		env   map[string]string
		files map[string]string // below the home
		want  []string
	}{
		{"nothing is said", nil, nil, withDefault()},
		{
			"uv's variables",
			map[string]string{"UV_DEFAULT_INDEX": "https://a/simple", "UV_INDEX": "x=https://b/x https://c/y"},
			nil,
			[]string{"https://a/simple", "https://b/x", "https://c/y"},
		},
		{
			"pip's file", nil,
			map[string]string{".config/pip/pip.conf": "[global]\nindex-url = https://a/p\nextra-index-url = https://b/q\n"},
			[]string{"https://a/p", "https://b/q"},
		},
		{"pip's extra index", map[string]string{"PIP_EXTRA_INDEX_URL": "https://b/q"}, nil, withDefault("https://b/q")},
		{"uv before pip", map[string]string{"PIP_INDEX_URL": "https://pip/"}, map[string]string{
			".config/uv/uv.toml": "[[index]]\nurl = \"https://a/\"\ndefault = true\n[[index]]\nname = \"b\"\nurl = \"https://b/\"\n",
		}, []string{"https://a/", "https://b/"}},
		{"a directory", map[string]string{"UV_DEFAULT_INDEX": "file:///wheels"}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := locktest.Isolate(t)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			for name, text := range c.files {
				path := filepath.Join(home, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := Indexes(&recipe.Recipe{Dir: t.TempDir()}); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
