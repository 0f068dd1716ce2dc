package hostconfig

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
	c, err := load(root, kinds)
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
	_, err := Load([]string{"pip", "codna"})
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
