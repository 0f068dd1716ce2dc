package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
)

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_CONFIG", path)
	return Load()
}

func TestLoad(t *testing.T) {
	t.Setenv("USER", "ada")
	t.Setenv("HOME", "/home/ada")
	c, err := load(t, `
store = "/scratch/${USER}/sconce"
shared-stores = ["/apps/sconce", "~/old"]
store-size = "25%"
patience = "20m"
progress = "plain"
host-config = ["ca", "pip"]
images = "/srv/images"
[mirrors]
debian = "http://m.example.org/debian"
`)
	if err != nil {
		t.Fatal(err)
	}
	if c.Store != "/scratch/ada/sconce" || !slices.Equal(*c.SharedStores, []string{"/apps/sconce", "/home/ada/old"}) ||
		c.StoreSize.Of(1000) != 250 || c.Patience != "20m" || c.Progress != "plain" || !slices.Equal(*c.HostConfig, []string{"ca", "pip"}) || c.Images != "/srv/images" || c.Mirrors["debian"] != "http://m.example.org/debian" || len(c.Files) != 1 {
		t.Errorf("%+v", c)
	}
}

// A mirror is one of a known archive, and its address no secret.
func TestMirrors(t *testing.T) {
	for _, bad := range []string{`debain = "http://m.example.org"`, `debian = "m.example.org"`, `debian = "http://u:p@m.example.org"`, `debian = "http://m.example.org/ x"`} {
		if _, err := load(t, "[mirrors]\n"+bad+"\n"); err == nil || fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(err.Error(), "mirrors") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// A release of uv comes with its hashes, and knows which file asks for it; a user's takes the place of the site's as a whole.
func TestUV(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	c, err := load(t, "[uv]\nversion = \"0.14.1\"\nsha256 = { amd64 = \""+hash+"\" }\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.UV == nil || c.UV.Version != "0.14.1" || c.UV.SHA256["amd64"] != hash || c.UV.File != c.Files[0] {
		t.Errorf("%+v", c.UV)
	}
	user := filepath.Join(t.TempDir(), "user.toml")
	if err := os.WriteFile(user, []byte("[uv]\nversion = \"1\"\nsha256 = { arm64 = \""+hash+"\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.add(user); err != nil || c.UV.Version != "1" || len(c.UV.SHA256) != 1 || c.UV.File != user {
		t.Errorf("%+v, %v", c.UV, err)
	}
	for text, want := range map[string]string{
		`version = "0.14.1"`:                                         "sha256 is missing",
		`sha256 = { amd64 = "` + hash + `" }`:                        "version",
		"version = \"../x\"\nsha256 = { amd64 = \"" + hash + "\" }":  `version = "../x"`,
		"version = \"1\"\nsha256 = { x86_64 = \"" + hash + "\" }":    `"x86_64"`,
		"version = \"1\"\nsha256 = { amd64 = \"" + hash[2:] + "\" }": "64 hexadecimal digits",
	} {
		if _, err := load(t, "[uv]\n"+text+"\n"); err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The user's file goes before the site's, key by key; what neither says stays open.
func TestUserBeforeSite(t *testing.T) {
	dir := t.TempDir()
	site, user := filepath.Join(dir, "site.toml"), filepath.Join(dir, "user.toml")
	for path, text := range map[string]string{
		site: "store = \"/site\"\nstore-size = \"1GB\"\nshared-stores = [\"/a\"]\n", user: "store = \"/user\"\nshared-stores = []\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var c Config
	for _, path := range []string{site, user} {
		if err := c.add(path); err != nil {
			t.Fatal(err)
		}
	}
	if c.Store != "/user" || c.StoreSize.Of(5) != 1_000_000_000 || c.SharedStores == nil || len(*c.SharedStores) != 0 || c.Patience != "" {
		t.Errorf("%+v", c)
	}
}

func TestMistakes(t *testing.T) {
	os.Unsetenv("NOT_SET_AT_ALL")
	for text, want := range map[string]string{
		"stor = \"/x\"":                                    `line 1: unknown key "stor"`,
		"\nstore = 3":                                      "line 2:",
		"store = \"x\"":                                    "absolute path",
		"store = \"$NOT_SET_AT_ALL/x\"":                    "NOT_SET_AT_ALL is not set",
		"store-size = \"120%\"":                            "at most 100%",
		"store-size = \"0\"":                               "none",
		"store-size = \"many\"":                            "store-size",
		"patience = \"soon\"":                              "patience",
		"shared-stores = [\"/a\", \"\"]":                   "absolute path",
		"store = \"" + strings.Repeat("x", maxFile) + "\"": "larger than",
	} {
		_, err := load(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
	t.Setenv("SCONCE_CONFIG", "/no/such/file")
	if _, err := Load(); err == nil {
		t.Error("a file that was named may be missing")
	}
	t.Setenv("SCONCE_CONFIG", "")
	if c, err := Load(); err != nil || len(c.Files) > 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte("store-size = \"30%\"\nstore = \"$HOME/x\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var c Config
		if err := c.add(path); err == nil && c.Store != "" && !filepath.IsAbs(c.Store) {
			t.Errorf("store %q", c.Store)
		}
	})
}
