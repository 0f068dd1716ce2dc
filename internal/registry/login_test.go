package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// A login is tried, kept for docker and podman as well, found again, and forgotten; what else is in the file stays.
func TestLogin(t *testing.T) {
	home := registrytest.Isolate(t)
	host := registrytest.Start(t, true)
	at, err := ParseLogin("http://" + host + "/")
	if err != nil {
		t.Fatal(err)
	}
	good := Credential{User: registrytest.User, Password: registrytest.Password}

	_, asked, err := Login(t.Context(), at, Credential{User: "joe", Password: "wrong"}, client(t))
	if err == nil || !asked || !strings.Contains(err.Error(), "401") || !strings.Contains(fault.HintOf(err), "token") || strings.Contains(err.Error(), "wrong\"") {
		t.Fatalf("a wrong password: %v", err)
	}
	if found, _ := FindCredential(t.Context(), host, "x", ""); !found.empty() {
		t.Errorf("after it there is a login: %+v", found)
	}

	file, asked, err := Login(t.Context(), at, good, client(t))
	if err != nil || !asked || file != filepath.Join(home, ".config", "containers", "auth.json") {
		t.Fatalf("kept in %s, asked: %v, %v", file, asked, err)
	}
	if found, err := FindCredential(t.Context(), host, "team/x", ""); err != nil || found != good {
		t.Errorf("found is %+v, %v", found, err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", st, err)
	}
	registrytest.Skopeo(t, "inspect", "--tls-verify=false", "--authfile", file, "--raw", "docker://"+pushed(t, host, file))

	if files, err := Logout(at); err != nil || len(files) != 1 || files[0] != file {
		t.Errorf("forgotten in %v, %v", files, err)
	}
	if found, _ := FindCredential(t.Context(), host, "x", ""); !found.empty() {
		t.Errorf("there still is a login: %+v", found)
	}
	if files, err := Logout(at); err != nil || len(files) != 0 {
		t.Errorf("twice: %v, %v", files, err)
	}
}

// Only a login that the registry takes is kept: not when it refuses, is in trouble, has had enough or is none.
func TestLoginIsProved(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, user, password string)
		asked  bool
		code   int
		says   string
	}{
		"asked too often": {func(w http.ResponseWriter, _, _ string) { w.WriteHeader(http.StatusTooManyRequests) }, true, fault.CodeTryAgain, "429"},
		"in trouble":      {func(w http.ResponseWriter, _, _ string) { w.WriteHeader(http.StatusServiceUnavailable) }, true, fault.CodeTryAgain, "503"},
		"not there":       {func(w http.ResponseWriter, _, _ string) { w.WriteHeader(http.StatusNotFound) }, true, fault.CodeFailed, "no registry is there"},
		"forbidden":       {func(w http.ResponseWriter, _, _ string) { w.WriteHeader(http.StatusForbidden) }, true, fault.CodeFailed, "password is wrong"},
		"a page":          {func(w http.ResponseWriter, _, _ string) { w.Header().Set("Content-Type", "text/html; charset=utf-8") }, true, fault.CodeFailed, "page for browsers"},
		"lets all in":     {func(http.ResponseWriter, string, string) {}, false, 0, ""},
		"looks at what it has not asked for": {func(w http.ResponseWriter, user, password string) {
			if user+password != "" && password != "right" {
				w.WriteHeader(http.StatusUnauthorized)
			}
		}, true, fault.CodeFailed, "password is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				user, password, _ := r.BasicAuth()
				c.answer(w, user, password)
			}))
			defer s.Close()
			host := strings.TrimPrefix(s.URL, "http://")
			at, err := ParseLogin(host)
			if err != nil {
				t.Fatal(err)
			}
			_, asked, err := Login(t.Context(), at, Credential{User: "me", Password: "wrong"}, client(t))
			said := fmt.Sprint(err) + fault.HintOf(err)
			if asked != c.asked || fault.CodeOf(err) != c.code || !strings.Contains(said, c.says) {
				t.Errorf("asked %v, code %d: %s", asked, fault.CodeOf(err), said)
			}
			if found, _ := FindCredential(t.Context(), host, "x", ""); found.empty() != (c.code != 0) {
				t.Errorf("kept is %+v", found)
			}
		})
	}
}

// pushed makes an image in the registry with the logins of a file, as another program reads them, and returns its name.
func pushed(t *testing.T, host, authFile string) string {
	t.Helper()
	name := host + "/team/empty:1"
	dir := t.TempDir()
	put(t, filepath.Join(dir, "d", "version"), "Directory Transport Version: 1.1\n")
	config := `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}`
	d := string(store.DigestOf([]byte(config)))
	put(t, filepath.Join(dir, "d", strings.TrimPrefix(d, "sha256:")), config)
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []any{},
		"config": map[string]any{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": d, "size": len(config)},
	})
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "d", "manifest.json"), string(manifest))
	registrytest.Skopeo(t, "copy", "--dest-tls-verify=false", "--authfile", authFile, "dir:"+filepath.Join(dir, "d"), "docker://"+name)
	return name
}

// The file that has a login for this registry already gets the new one, and nothing else of it changes.
func TestLoginKeepsWhatIsThere(t *testing.T) {
	home := registrytest.Isolate(t)
	host := registrytest.Start(t, true)
	docker, real := filepath.Join(home, ".docker", "config.json"), filepath.Join(home, "dotfiles.json")
	put(t, real, `{"psFormat": "x", "auths": {"https://`+host+`/v1/": {"auth": "`+auth("old", "x")+`"}, "other.example": {"auth": "`+auth("me", "y")+`", "email": "me@example.org"}}}`)
	if err := os.MkdirAll(filepath.Dir(docker), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, docker); err != nil {
		t.Fatal(err)
	}
	at, _ := ParseLogin(host)
	file, _, err := Login(t.Context(), at, Credential{User: registrytest.User, Password: registrytest.Password}, client(t))
	if err != nil || file != docker {
		t.Fatalf("kept in %s: %v", file, err)
	}
	data, err := os.ReadFile(real)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		PsFormat string
		Auths    map[string]struct{ Auth, Email string }
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.PsFormat != "x" || len(doc.Auths) != 2 || doc.Auths["other.example"].Email == "" || doc.Auths[host].Auth != auth(registrytest.User, registrytest.Password) {
		t.Errorf("the file is now %s", data)
	}
	if st, err := os.Lstat(docker); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", st, err)
	}
}

// A credential helper owns its logins, and a login that another file hides is told.
func TestLoginBesideHelpers(t *testing.T) {
	home := registrytest.Isolate(t)
	host := registrytest.Start(t, true)
	docker := filepath.Join(home, ".docker", "config.json")
	put(t, docker, `{"credHelpers": {"`+host+`": "vault"}}`)
	at, _ := ParseLogin(host)
	c := Credential{User: registrytest.User, Password: registrytest.Password}
	if _, _, err := Login(t.Context(), at, c, client(t)); err == nil || !strings.Contains(err.Error(), "docker-credential-vault") {
		t.Errorf("with a helper: %v", err)
	}
	put(t, docker, `{"credsStore": "vault"}`)
	bin := t.TempDir()
	put(t, filepath.Join(bin, "docker-credential-vault"), "#!/bin/sh\ncat >/dev/null\necho '{\"Username\": \"old\", \"Secret\": \"x\"}'\n")
	if err := os.Chmod(filepath.Join(bin, "docker-credential-vault"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if _, _, err := Login(t.Context(), at, c, client(t)); err == nil || !strings.Contains(err.Error(), `user "old"`) {
		t.Errorf("behind a store of logins: %v", err)
	}
}

func TestParseLogin(t *testing.T) {
	for name, want := range map[string]string{
		"registry.example.org": "registry.example.org", "https://registry.example.org:5000/": "registry.example.org:5000",
		"ghcr.io/team": "ghcr.io/team", "docker.io": hubKey, "index.docker.io": hubKey,
	} {
		if at, err := ParseLogin(name); err != nil || at.key() != want {
			t.Errorf("%s is %q (%v), want %q", name, at.key(), err, want)
		}
	}
	for _, name := range []string{"", "https://", "joe@registry", "a b"} {
		if at, err := ParseLogin(name); err == nil {
			t.Errorf("%q is %+v", name, at)
		}
	}
}
