package lock_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
)

const (
	testUser   = "corp-user"
	testSecret = "S3cret%2Fword" // as it stands in an address
	plain      = "S3cret/word"
)

// TestLogins: wherever a login is kept, locking and downloading find it, and nothing that is written or said holds it.
func TestLogins(t *testing.T) {
	const alpha = "[python]\npackages = [\"alpha\"]\n"
	for name, test := range map[string]struct {
		recipe string
		setup  func(t *testing.T, b *bench, x *locktest.Index, address string)
	}{
		"UV_DEFAULT_INDEX": {alpha, func(t *testing.T, _ *bench, _ *locktest.Index, address string) {
			t.Setenv("UV_DEFAULT_INDEX", address)
		}},
		"UV_INDEX with a name": {alpha, func(t *testing.T, _ *bench, _ *locktest.Index, address string) {
			t.Setenv("UV_INDEX", "corp="+address)
		}},
		"UV_INDEX_URL": {alpha, func(t *testing.T, _ *bench, _ *locktest.Index, address string) {
			t.Setenv("UV_INDEX_URL", address)
		}},
		"PIP_INDEX_URL": {alpha, func(t *testing.T, _ *bench, _ *locktest.Index, address string) {
			t.Setenv("PIP_INDEX_URL", address)
		}},
		"PIP_EXTRA_INDEX_URL": {alpha, func(t *testing.T, _ *bench, x *locktest.Index, address string) {
			t.Setenv("PIP_INDEX_URL", locktest.NewIndex(t).URL)
			t.Setenv("PIP_EXTRA_INDEX_URL", address)
		}},
		"variables of a named index": {alpha, func(t *testing.T, b *bench, x *locktest.Index, _ string) {
			locktest.Write(t, os.Getenv("HOME"), map[string]string{".config/uv/uv.toml": "extra-index-url = [\"" + x.URL + "\"]\n"})
			t.Setenv("UV_INDEX_CORP_2_USERNAME", testUser)
			t.Setenv("UV_INDEX_CORP_2_PASSWORD", plain)
			b.write(map[string]string{"uv.toml": "[[index]]\nname = \"corp-2\"\ndefault = true\nurl = \"" + x.URL + "\"\n"})
		}},
		"uv.toml beside the recipe": {alpha, func(t *testing.T, b *bench, _ *locktest.Index, address string) {
			b.write(map[string]string{"uv.toml": "index-url = \"" + address + "\"\n"})
		}},
		"the user's uv.toml": {alpha, func(t *testing.T, _ *bench, _ *locktest.Index, address string) {
			locktest.Write(t, os.Getenv("HOME"), map[string]string{".config/uv/uv.toml": "[pip]\nindex-url = \"" + address + "\"\n"})
		}},
		"pip.conf": {alpha, func(t *testing.T, _ *bench, _ *locktest.Index, address string) {
			locktest.Write(t, os.Getenv("HOME"), map[string]string{".config/pip/pip.conf": "[global]\nindex-url =\n    " + address + "\n"})
		}},
		"netrc": {alpha, func(t *testing.T, _ *bench, x *locktest.Index, _ string) {
			t.Setenv("UV_DEFAULT_INDEX", x.URL)
			locktest.Write(t, os.Getenv("HOME"), map[string]string{".netrc": "machine 127.0.0.1 login " + testUser + " password " + plain + "\n"})
		}},
		"netrc for a user": {alpha, func(t *testing.T, _ *bench, x *locktest.Index, _ string) {
			t.Setenv("UV_DEFAULT_INDEX", strings.Replace(x.URL, "://", "://"+testUser+"@", 1))
			locktest.Write(t, os.Getenv("HOME"), map[string]string{".netrc": "machine 127.0.0.1 login other password no\nmachine 127.0.0.1 login " + testUser + " password " + plain + "\n"})
		}},
		"a requirements file": {"[python]\nrequirements = [\"r.txt\"]\n", func(t *testing.T, b *bench, x *locktest.Index, address string) {
			locktest.Write(t, os.Getenv("HOME"), map[string]string{".config/uv/uv.toml": "extra-index-url = [\"" + x.URL + "\"]\n"})
			t.Setenv("CORP_LOGIN", testUser+":"+testSecret)
			b.write(map[string]string{"r.txt": "--index-url " + strings.Replace(x.URL, "://", "://${CORP_LOGIN}@", 1) + "\nalpha\n"})
		}},
		"a project": {"[python]\nproject = \".\"\n", func(t *testing.T, b *bench, _ *locktest.Index, address string) {
			b.write(map[string]string{"pyproject.toml": "[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [\"alpha\"]\n[[tool.uv.index]]\nname = \"corp\"\nurl = \"" + address + "\"\ndefault = true\n"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, x := newBench(t, locktest.Base{}, w("alpha", "1.0", "beta"), w("beta", "1.0"))
			os.Unsetenv("UV_DEFAULT_INDEX")
			x.Protect(testUser, plain)
			test.setup(t, b, x, x.WithLogin(testUser, testSecret))
			b.checkLogin(test.recipe)
		})
	}
	t.Run("an address in packages", func(t *testing.T) {
		b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"))
		x.Protect(testUser, plain)
		address := strings.Replace(x.FileURL(w("alpha", "1.0").File()), "://", "://"+testUser+":"+testSecret+"@", 1)
		b.checkLogin("[python]\npackages = [\"alpha @ " + address + "\"]\n")
	})
}

// checkLogin locks, downloads everything, and looks for secrets in what came of it.
func (b *bench) checkLogin(text string) {
	b.t.Helper()
	r, l := b.lock(text)
	wheels, err := wheelsOf(l, r)
	if err != nil {
		b.t.Fatal(err)
	}
	client := fetch.New(b.store, fetch.Options{Attempts: 1})
	authorize := lock.Authorizer(r)
	for _, w := range wheels {
		if w.Size == 0 {
			b.t.Errorf("%s has no size", w.File)
		}
		err := client.Blob(progress.With(b.t.Context(), &b.events), fetch.Request{URL: w.URL, Digest: w.Digest, Size: w.Size, Header: authorize(w.URL)})
		if err != nil {
			b.t.Error(err)
		}
		if w.DirectURL != nil {
			b.noSecrets("direct_url.json", w.DirectURL.URL)
		}
	}
	b.noSecrets("sconce.lock", b.read("sconce.lock"))
	b.noSecrets("pylock.toml", b.read("pylock.toml"))
	b.noSecrets("the events", b.events.Everything())
}

func (b *bench) noSecrets(where, text string) {
	b.t.Helper()
	for _, secret := range []string{testSecret, plain, base64.StdEncoding.EncodeToString([]byte(testUser + ":" + plain))} {
		if strings.Contains(text, secret) {
			b.t.Errorf("%s holds %q:\n%s", where, secret, text)
		}
	}
}

func TestWrongLogin(t *testing.T) {
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	x.Protect(testUser, "another")
	t.Setenv("UV_DEFAULT_INDEX", x.WithLogin(testUser, testSecret))
	err := b.fails("[python]\npackages = [\"alpha\"]\n", "401 Unauthorized")
	b.noSecrets("the error", err.Error())
	b.noSecrets("the events", b.events.Everything())

	// uv's cache, or another machine, knew the files; the download is what is refused.
	b.write(map[string]string{"pylock.toml": strings.ReplaceAll(x.Pylock(t, w("alpha", "1.0")), "size", "upload-size")})
	err = b.fails("[python]\nlock = \"pylock.toml\"\n", "401", "UV_INDEX_NAME_PASSWORD", "netrc")
	b.noSecrets("the error", err.Error())
}

// TestLoginsForOneServer: a login is shown to the server that it is for, over the same protocol, and there the index with
// the longest common path has its own.
func TestLoginsForOneServer(t *testing.T) {
	locktest.Isolate(t)
	t.Setenv("UV_INDEX", "https://one:1@packages.example.org/group/one/simple https://two:2@packages.example.org/group/two/simple")
	t.Setenv("UV_DEFAULT_INDEX", "https://token@Plain.example.org:443/simple")
	dir := locktest.Dir(t, locktest.Base{}, nil)
	logins := lock.LoginsOf(locktest.Load(t, dir, locktest.Head))
	for address, want := range map[string]string{
		"https://packages.example.org/group/two/files/a.whl":     "two:2",
		"https://packages.example.org/group/one/files/a.whl":     "one:1",
		"https://packages.example.org:443/elsewhere/a.whl":       "one:1",
		"https://plain.example.org/a.whl":                        "token:",
		"http://packages.example.org/group/two/files/a.whl":      "",
		"https://packages.example.org:8443/group/two/a.whl":      "",
		"https://packages.example.org.evil.example/group/two/a":  "",
		"https://me:mine@packages.example.org/group/two/files/a": "",
		filepath.Join(dir, "a.whl"):                              "",
		"://":                                                    "",
	} {
		got := ""
		if header := logins.Header(address); header != nil {
			data, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(header.Get("Authorization"), "Basic "))
			if err != nil {
				t.Error(err)
			}
			got = string(data)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}
