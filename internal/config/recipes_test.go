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
