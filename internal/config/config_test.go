package config

import (
	"errors"
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
		c.StoreSize.Of(1000) != 250 || c.Patience != "20m" || c.Progress != "plain" || !slices.Equal(*c.HostConfig, []string{"ca", "pip"}) || c.Images != "/srv/images" || c.Mirrors["debian"] != "http://m.example.org/debian" || len(c.Read) != 1 {
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

// both reads two files, the site's and above it the user's.
func both(t *testing.T, site, user string) (c Config, err error) {
	t.Helper()
	dir := t.TempDir()
	for _, f := range [][2]string{{"site.toml", site}, {"user.toml", user}} {
		path := filepath.Join(dir, f[0])
		if err := os.WriteFile(path, []byte(f[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if err = errors.Join(err, c.add(path)); err != nil {
			return c, err
		}
	}
	return c, nil
}

// What a site lets recipes read, a user adds to. A relative path would mean another place in each directory.
func TestAllowPaths(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	c, err := both(t, `allow-paths = ["/capstor/images"]`, `allow-paths = ["~/wheels/"]`)
	if want := []string{"/capstor/images", "/home/ada/wheels"}; err != nil || !slices.Equal(c.AllowPaths, want) {
		t.Errorf("%q, %v, want %q", c.AllowPaths, err, want)
	}
	if len(c.Settings) != 2 {
		t.Errorf("%+v: what counts is not listed", c.Settings)
	}
	if _, err := load(t, `allow-paths = ["wheels"]`); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative path: %v", err)
	}
}

// A user's file goes before the site's in how files are written; a level goes with the compression that it was named for.
func TestFiles(t *testing.T) {
	for _, c := range []struct {
		site, user string
		want       Files
	}{
		{"compression = \"gzip\"\nlevel = 9", "", Files{"gzip", 9, ""}},
		{"compression = \"zstd\"\nlevel = 19", "compression = \"gzip\"", Files{"gzip", 0, ""}},
		{"compression = \"gzip\"\nlevel = 9\nblock-size = \"1MiB\"", "block-size = \"64KiB\"", Files{"gzip", 9, "64KiB"}},
	} {
		got, err := both(t, "[files]\n"+c.site+"\n", "[files]\n"+c.user+"\n")
		if err != nil || got.Files != c.want {
			t.Errorf("%q, %q: %+v, %v", c.site, c.user, got.Files, err)
		}
	}
	for text, want := range map[string]string{
		`compression = "xz"`:                 "zstd, gzip, lz4, none",
		"compression = \"gzip\"\nlevel = 10": "the highest of gzip is 9",
		"compression = \"none\"\nlevel = 1":  "the highest of none is 0",
		"compression = \"lz4\"\nlevel = 0":   "begin with 1",
		"level = 3":                          "name the compression",
		`block-size = "3KiB"`:                "power of two",
		`levl = 3`:                           `unknown key "files.levl"`,
	} {
		if _, err := load(t, "[files]\n"+text+"\n"); err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What a site requires a user's file does not take back; what it allows a user's file says otherwise.
func TestCheck(t *testing.T) {
	c, err := both(t, "[check]\nallow = { a = \"theirs\", b = \"theirs\" }\nrequire = [\"c\"]\n", "[check]\nallow = { a = \"mine\", c = \"mine\" }\nrequire = []\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Check.Allow["a"] != "mine" || c.Check.Allow["b"] != "theirs" || c.Check.Require["c"] != c.Read[0] || len(c.Check.Require) != 1 {
		t.Errorf("%+v", c.Check)
	}
	if _, err := load(t, "[check]\nallow = { a = \" \" }\n"); err == nil || !strings.Contains(err.Error(), "a: the reason is missing") {
		t.Error(err)
	}
}

// Each setting is listed once, with the file that has the last word.
func TestSettings(t *testing.T) {
	c, err := both(t, "store = \"/site\"\npatience = \"1m\"\n[check]\nrequire = [\"x\"]\n[files]\ncompression = \"zstd\"\nlevel = 9\n",
		"store = \"/user\"\nshared-stores = [\"/a\"]\n[check]\nrequire = [\"y\"]\n[files]\ncompression = \"gzip\"\n")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range c.Settings {
		got = append(got, s.Key+"="+s.Value+" "+filepath.Base(s.From))
	}
	want := []string{
		`check.require=["x"] site.toml`, `patience="1m" site.toml`, `check.require=["y"] user.toml`,
		`files.compression="gzip" user.toml`, `shared-stores=["/a"] user.toml`, `store="/user" user.toml`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A release of uv comes with its hashes, and knows which file asks for it; a user's takes the place of the site's as a whole.
func TestUV(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	c, err := load(t, "[uv]\nversion = \"0.14.1\"\nsha256 = { amd64 = \""+hash+"\" }\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.UV == nil || c.UV.Version != "0.14.1" || c.UV.SHA256["amd64"] != hash || c.UV.File != c.Read[0] {
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

// What a user is told to write goes into a file that they can write, and that is read.
func TestOwn(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("SCONCE_CONFIG", "")
	if got := Own(); got != Site {
		t.Errorf("none is read: %s", got)
	}
	t.Setenv("SCONCE_CONFIG", "/project/x.toml")
	if got := Own(); got != "/project/x.toml" {
		t.Errorf("the only one: %s", got)
	}
	os.Unsetenv("SCONCE_CONFIG")
	if got := Own(); got != "/home/ada/.config/sconce/config.toml" {
		t.Errorf("%s", got)
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
	if c, err := Load(); err != nil || len(c.Read) > 0 {
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
