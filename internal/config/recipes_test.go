package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWhatRecipesMayDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	for text, want := range map[string]string{
		"[network]\nlogins = [\"a.example.org\", \"b:8080\"]\n[cache]\nread = [\"q.example.org/x\"]\npush = [\"r.example.org\", \"r.example.org:5000/team/cache\"]\n": "",
		"[network]\nlogins = [\"https://a.example.org\"]\n": "HOST or HOST:PORT",
		"[network]\nlogins = [\"*\"]\n":                     "HOST or HOST:PORT",
		"[cache]\npush = [\"r.example.org/\"]\n":            "HOST or HOST/PATH",
		"[cache]\npush = true\n":                            "line 2",
		"[cache]\nread = [\"https://x\"]\n":                 "cache.read: ",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var c Config
		err := c.add(path)
		switch {
		case want == "" && (err != nil || !slices.Equal(c.LoginHosts, []string{"a.example.org", "b:8080"}) || len(c.CacheRead) != 1 || len(c.CachePush) != 2):
			t.Errorf("%q: %v, %q, %q, %q", text, err, c.LoginHosts, c.CacheRead, c.CachePush)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// What lies beside a recipe, which may be a stranger's, is no configuration, whatever it is called.
func TestNothingBesideARecipeCounts(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	const text = "[cache]\nread = [\"evil.example.org\"]\n"
	for _, name := range []string{"config.toml", "sconce/config.toml", ".config/sconce/config.toml", ".sconce/config.toml"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(".env", []byte("SCONCE_CONFIG=config.toml\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_CONFIG", "")
	if err := os.Unsetenv("SCONCE_CONFIG"); err != nil {
		t.Fatal(err)
	}
	for _, env := range [][2]string{{t.TempDir(), ""}, {t.TempDir(), "."}, {".", ""}} {
		t.Setenv("HOME", env[0])
		t.Setenv("XDG_CONFIG_HOME", env[1])
		if c, err := Load(); err != nil || c.CacheRead != nil {
			t.Errorf("HOME=%s XDG_CONFIG_HOME=%s: %q of %q, %v", env[0], env[1], c.CacheRead, c.Read, err)
		}
	}
}
