package hostconfig

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/tooltest"
)

// machine is a root directory and a home with nothing but files, by path: those of the home begin with ~/.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root, home := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range slices.Concat(indexes, []string{"PIP_CONFIG_FILE", "UV_CONFIG_FILE", "NPM_CONFIG_USERCONFIG", "CONDARC", "SSL_CERT_FILE", "APT_CONFIG"}) {
		t.Setenv(name, "")
	}
	for name, text := range files {
		file := filepath.Join(root, name)
		if rest, ok := strings.CutPrefix(name, "~/"); ok {
			file = filepath.Join(home, rest)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func loaded(t *testing.T, root string, kinds ...string) *Config {
	t.Helper()
	c, err := load(root, kinds, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Config) content(name string) string {
	for _, f := range c.Files {
		if f.Target == Dir+"/"+name {
			return string(f.Content)
		}
	}
	return "(no file)"
}

func TestLoad(t *testing.T) {
	root := machine(t, map[string]string{
		"~/.config/pip/pip.conf": "user's", "etc/pip.conf": "site's", "etc/uv/uv.toml": "uv's", "~/.npmrc": "a=${SCONCE_TEST_WORD} ${SCONCE_TEST_UNSET}",
		"etc/pki/tls/certs/ca-bundle.crt": "certificates", "etc/apt/apt.conf.d/50hook": "DPkg::Post-Invoke {\"x\";};\n",
		"etc/apt/apt.conf.d/90proxy": "// a proxy\nAcquire::http::Proxy \"http://proxy:3128\";\nAcquire::http::Proxy-Auto-Detect \"/x\";\n",
		"etc/conda/.condarc":         "channels",
	})
	t.Setenv("SCONCE_TEST_WORD", "b")
	t.Setenv("PIP_INDEX_URL", "http://index/simple")
	c := loaded(t, root, Kinds...)
	for name, want := range map[string]string{
		"pip.conf": "user's", "uv.toml": "uv's", "npmrc": "a=b ${SCONCE_TEST_UNSET}", "ca.crt": "certificates", "condarc": "channels",
		"apt.conf": "Acquire::http::Proxy \"http://proxy:3128\";\nAcquire::https::CaInfo \"/run/sconce-host/ca.crt\";\n",
	} {
		if got := c.content(name); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
	for _, kv := range []string{
		"PIP_CONFIG_FILE=/run/sconce-host/pip.conf", "PIP_INDEX_URL=http://index/simple", "REQUESTS_CA_BUNDLE=/run/sconce-host/ca.crt",
		"SSL_CERT_FILE=/run/sconce-host/ca.crt", "APT_CONFIG=/run/sconce-host/apt.conf", "CONDARC=/run/sconce-host/condarc",
	} {
		if !slices.Contains(c.Env, kv) {
			t.Errorf("%s is not in %v", kv, c.Env)
		}
	}
	for _, kind := range Kinds {
		if !c.Has(kind) {
			t.Errorf("%s is not there: %v", kind, c.Kinds)
		}
	}
}

// apt itself fetches from the mirror what is the distribution's and nothing else, with its image's sources as they are.
func TestMirrorsOfApt(t *testing.T) {
	tooltest.Path(t, "apt-get")
	var mu sync.Mutex
	var got []string
	server := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if path.Base(r.URL.Path) == "InRelease" {
				got = append(got, name+r.URL.Path)
			}
			http.NotFound(w, r)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	vendor, mirror := server("vendor"), server("mirror")
	const old = "http://nowhere.invalid/debian"
	sources := map[string]string{
		"sources.list":   "deb " + old + "-security bookworm-security main\ndeb " + vendor + "/linux/debian bookworm stable", // its last line has no end
		"debian.sources": "Types: deb\nURIs: " + old + "\nSuites: bookworm\nComponents: main\n",
	}
	dir := machine(t, map[string]string{
		"etc/apt/sources.list": sources["sources.list"], "etc/apt/sources.list.d/debian.sources": sources["debian.sources"],
		"etc/apt/preferences.d/none": "", "here/etc/apt/sources.list": "deb " + mirror + "/debian bookworm main\n",
	})
	want := []string{"mirror/debian-security/dists/bookworm-security/InRelease", "mirror/debian/dists/bookworm/InRelease", "vendor/linux/debian/dists/bookworm/InRelease"}
	for name, named := range map[string]map[string]string{"the machine's": nil, "a site's": {"debian": mirror + "/debian/"}} {
		root := filepath.Join(dir, "here")
		if named != nil {
			root = t.TempDir()
		}
		c, err := load(root, []string{"apt"}, named)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range c.WithSources(sources).Files {
			if err := os.WriteFile(filepath.Join(dir, path.Base(f.Target)), []byte(strings.ReplaceAll(string(f.Content), Dir, dir)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		lists := filepath.Join(t.TempDir(), "lists")
		if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); err != nil {
			t.Fatal(err)
		}
		got = nil
		cmd := exec.Command("apt-get", "-oDir::Etc="+dir+"/etc/apt", "-oDir::State::Lists="+lists, "-oDir::Cache="+dir, "-oAPT::Sandbox::User=", "update")
		cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, path.Base(aptConf)), "http_proxy=")
		out, _ := cmd.CombinedOutput() // nobody has the indices
		mu.Lock()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: apt asks for %q, not %q:\n%s", name, got, want, out)
		}
		mu.Unlock()
		if strings.Contains(string(out), mirror) {
			t.Errorf("%s: apt is told of the mirror:\n%s", name, out)
		}
	}
}

// An image whose sources have no mirror needs nothing.
func TestWithoutMirror(t *testing.T) {
	c := &Config{Mirrors: debian.Mirrors{"debian": "http://m.example.org/debian"}}
	for _, sources := range []map[string]string{
		nil,
		{"sources.list": "deb http://x.example.org/ubuntu noble main\ndeb http://m.example.org/debian/ bookworm main\n"},
		{"x.list": "deb http://x.example.org/a'b/debian bookworm main\ndeb https://x.example.org/debian bookworm main\n"},
	} {
		if got := c.WithSources(sources); len(got.Files)+len(got.Env) > 0 {
			t.Errorf("%q: %+v", sources, got)
		}
	}
}

// Only what is asked for is read, and what a machine does not have is left out.
func TestLoadLess(t *testing.T) {
	root := machine(t, map[string]string{"~/.npmrc": "x", "etc/pip.conf": "site's", "etc/apt/apt.conf": "APT::Get::Assume-Yes \"true\";\n"})
	if c := loaded(t, root); len(c.Files)+len(c.Env)+len(c.Kinds) != 0 {
		t.Errorf("without a wish: %+v", c)
	}
	c := loaded(t, root, "pip", "ca", "apt")
	if !slices.Equal(c.Kinds, []string{"pip"}) || len(c.Files) != 1 || c.content("pip.conf") != "site's" {
		t.Errorf("%+v", c)
	}
	other := filepath.Join(root, "other.conf")
	t.Setenv("PIP_CONFIG_FILE", other) // which does not exist
	if c := loaded(t, root, "pip"); len(c.Files) != 0 {
		t.Errorf("a variable names the only file: %+v", c)
	}
}

func TestUnknownKind(t *testing.T) {
	_, err := Load([]string{"pip", "codna"}, nil)
	if err == nil || !strings.Contains(err.Error(), "did you mean conda?") {
		t.Error(err)
	}
}

// Passwords and tokens are known, and what is none is not hidden.
func TestSecrets(t *testing.T) {
	root := machine(t, map[string]string{
		"~/.config/pip/pip.conf": "[global]\nindex-url = https://ada:pass%40word@index.example/simple\n",
		"~/.npmrc":               "registry=https://npm.example/\n//npm.example/:_authToken=npm_0123\n//npm.example/:_password=\"aHVudGVyMmh1bnRlcjI=\"\n",
		"~/.condarc":             "channels: [\"https://conda.example/t/tk-123/main\", \"ssh://git@conda.example\"]\n",
	})
	c := loaded(t, root, "pip", "npm", "conda")
	var got []string
	for _, s := range c.Secrets {
		got = append(got, string(s))
	}
	slices.Sort(got)
	want := []string{"aHVudGVyMmh1bnRlcjI=", "hunter2hunter2", "npm_0123", "pass%40word", "pass@word", "tk-123"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
