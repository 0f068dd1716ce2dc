package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

func client(t *testing.T) *fetch.Client {
	t.Helper()
	st := storetest.New(t)
	return fetch.New(st, fetch.Options{Backoff: time.Millisecond, MaxWait: 10 * time.Millisecond, Attempts: 3})
}

// put writes a file below the test's home.
func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func auth(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

func TestFindCredential(t *testing.T) {
	entry := func(key, user string) string {
		return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, key, auth(user, "secret"))
	}
	for _, tc := range []struct {
		name, file, text string
		host, user       string
		want             string
	}{
		{"docker", ".docker/config.json", entry("r.org", "joe"), "r.org", "", "joe"},
		{"docker with scheme", ".docker/config.json", entry("https://r.org/v2/", "joe"), "r.org", "", "joe"},
		{"docker hub", ".docker/config.json", entry("https://index.docker.io/v1/", "joe"), "docker.io", "", "joe"},
		{"docker hub by another name", ".docker/config.json", entry("docker.io", "joe"), "index.docker.io", "", "joe"},
		{"with port", ".docker/config.json", entry("r.org:5000", "joe"), "r.org:5000", "", "joe"},
		{"another port", ".docker/config.json", entry("r.org:5000", "joe"), "r.org:5001", "", ""},
		{"podman", ".config/containers/auth.json", entry("r.org", "ann"), "r.org", "", "ann"},
		{"podman per repository", ".config/containers/auth.json", entry("r.org/team", "ann"), "r.org", "", "ann"},
		{"podman other repository", ".config/containers/auth.json", entry("r.org/other", "ann"), "r.org", "", ""},
		{"netrc", ".netrc", "machine r.org login bob password secret", "r.org", "", "bob"},
		{"netrc knows no ports", ".netrc", "machine r.org login bob password secret", "r.org:5000", "", "bob"},
		{"enroot", ".config/enroot/.credentials", "machine nvcr.io login $oauthtoken password secret", "nvcr.io", "", "$oauthtoken"},
		{"enroot hub", ".config/enroot/.credentials", "machine auth.docker.io login joe password secret", "docker.io", "", "joe"},
		{"enroot variable", ".config/enroot/.credentials", "machine r.org login joe password $SCONCE_TEST_SECRET", "r.org", "", "joe"},
		{"enroot command", ".config/enroot/.credentials", `machine r.org login joe password "$(echo secret)"`, "r.org", "", ""},
		{"of a user", ".netrc", "machine r.org login bob password no\nmachine r.org login eve password secret", "r.org", "eve", "eve"},
		{"of an unknown user", ".docker/config.json", entry("r.org", "joe"), "r.org", "eve", ""},
		{"empty entry", ".docker/config.json", `{"auths":{"r.org":{}}}`, "r.org", "", ""},
		{"nothing", ".docker/config.json", `{}`, "r.org", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			home := registrytest.Isolate(t)
			t.Setenv("SCONCE_TEST_SECRET", "secret")
			put(t, filepath.Join(home, tc.file), tc.text)
			c, err := FindCredential(t.Context(), tc.host, "team/app", tc.user)
			if err != nil {
				t.Fatal(err)
			}
			if c.User != tc.want || (c.User != "" && c.Password != "secret") {
				t.Errorf("got %q %q, want user %q", c.User, c.Password, tc.want)
			}
		})
	}
}

func TestCredentialHelper(t *testing.T) {
	home := registrytest.Isolate(t)
	bin := t.TempDir()
	script := `#!/bin/sh
read host
[ "$1" = get ] || exit 2
case $host in
r.org) echo '{"ServerURL":"r.org","Username":"joe","Secret":"secret"}' ;;
token.org) echo '{"Username":"<token>","Secret":"refresh"}' ;;
broken.org) exit 1 ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac
`
	if err := tooltest.WriteProgram(filepath.Join(bin, "docker-credential-test"), []byte(script)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, config := range []string{`{"credsStore":"test"}`, `{"credHelpers":{"r.org":"test","token.org":"test","none.org":"test","broken.org":"test"}}`} {
		put(t, filepath.Join(home, ".docker/config.json"), config)
		for host, want := range map[string]Credential{"r.org": {User: "joe", Password: "secret"}, "token.org": {IdentityToken: "refresh"}, "none.org": {}} {
			if got, err := FindCredential(t.Context(), host, "x", ""); err != nil || got != want {
				t.Errorf("%s with %s: %v, %v", host, config, got, err)
			}
		}
		if _, err := FindCredential(t.Context(), "broken.org", "x", ""); err == nil {
			t.Error("a helper that fails is not an error")
		}
	}
	put(t, filepath.Join(home, ".docker/config.json"), `{"credsStore":"not-installed"}`)
	if got, err := FindCredential(t.Context(), "r.org", "x", ""); err != nil || got != (Credential{}) {
		t.Errorf("helper of another machine: %v, %v", got, err)
	}
	put(t, filepath.Join(home, ".docker/config.json"), `{"credsStore":"../../evil"}`)
	if _, err := FindCredential(t.Context(), "r.org", "x", ""); err == nil {
		t.Error("a helper outside of PATH was accepted")
	}
}

// tokenRegistry is a registry that wants tokens; each is good for so many requests.
type tokenRegistry struct {
	*httptest.Server
	good      int64
	uses      atomic.Int64
	issued    atomic.Int64
	scopes    []string
	anonymous bool
	oauth     bool
}

func newTokenRegistry(t *testing.T, good int64) *tokenRegistry {
	t.Helper()
	r := &tokenRegistry{good: good}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *tokenRegistry) host() string { return r.Listener.Addr().String() }

func (r *tokenRegistry) serve(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/token" {
		r.token(w, req)
		return
	}
	if want := fmt.Sprintf("Bearer t%d", r.issued.Load()); req.Header.Get("Authorization") != want || r.uses.Add(1) > r.good {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:app:pull"`, r.URL))
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"log in"}]}`)
		return
	}
	if req.URL.Path == "/v2/" {
		return
	}
	fmt.Fprint(w, `{"schemaVersion":2}`)
}

func (r *tokenRegistry) token(w http.ResponseWriter, req *http.Request) {
	_ = req.ParseForm()
	user, password, _ := req.BasicAuth()
	ok := r.anonymous || (user == "joe" && password == "secret") || (r.oauth && req.Method == http.MethodPost && req.Form.Get("refresh_token") == "refresh")
	if !ok || req.Form.Get("service") != "test" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.scopes = req.Form["scope"]
	r.uses.Store(0)
	fmt.Fprintf(w, `{"token":"t%d"}`, r.issued.Add(1))
}

func TestTokens(t *testing.T) {
	ask := func(t *testing.T, r *tokenRegistry) error {
		t.Helper()
		repo := New(Endpoint{Host: r.host(), Path: "app"}, Options{Fetch: client(t), Push: true, From: []string{"other"}})
		for range 5 {
			if _, _, err := repo.Manifest(t.Context(), "latest"); err != nil {
				return err
			}
		}
		return nil
	}
	t.Run("anonymous", func(t *testing.T) {
		registrytest.Isolate(t)
		r := newTokenRegistry(t, 100)
		r.anonymous = true
		if err := ask(t, r); err != nil {
			t.Fatal(err)
		}
		if r.issued.Load() != 1 {
			t.Errorf("%d tokens for five requests, want 1", r.issued.Load())
		}
		if want := []string{"repository:app:pull,push", "repository:other:pull", "repository:app:pull"}; !slices.Equal(r.scopes, want) {
			t.Errorf("scopes %q, want %q", r.scopes, want)
		}
	})
	t.Run("password and token that ends", func(t *testing.T) {
		home := registrytest.Isolate(t)
		r := newTokenRegistry(t, 2)
		put(t, filepath.Join(home, ".docker/config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.host(), auth("joe", "secret")))
		if err := ask(t, r); err != nil {
			t.Fatal(err)
		}
		if n := r.issued.Load(); n != 3 {
			t.Errorf("%d tokens for five requests of which two may use one, want 3", n)
		}
	})
	t.Run("identity token", func(t *testing.T) {
		home := registrytest.Isolate(t)
		r := newTokenRegistry(t, 100)
		r.oauth = true
		put(t, filepath.Join(home, ".docker/config.json"), fmt.Sprintf(`{"auths":{%q:{"identitytoken":"refresh"}}}`, r.host()))
		if err := ask(t, r); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("wrong password", func(t *testing.T) {
		home := registrytest.Isolate(t)
		r := newTokenRegistry(t, 100)
		put(t, filepath.Join(home, ".docker/config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.host(), auth("joe", "wrong-secret")))
		err := ask(t, r)
		if err == nil || !strings.Contains(fault.HintOf(err), "sconce login") || strings.Contains(err.Error()+fault.HintOf(err), "wrong-secret") {
			t.Errorf("error %v with hint %q", err, fault.HintOf(err))
		}
	})
}

func TestCredentialsStayAtTheRegistry(t *testing.T) {
	home := registrytest.Isolate(t)
	var leaked atomic.Bool
	data := []byte("blob")
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			leaked.Store(true)
		}
		_, _ = w.Write(data)
	}))
	defer storage.Close()
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != "joe" || p != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, storage.URL+"/?signature=abc", http.StatusTemporaryRedirect)
	}))
	defer host.Close()
	put(t, filepath.Join(home, ".netrc"), "machine 127.0.0.1 login joe password secret")
	c := client(t)
	repo := New(Endpoint{Host: host.Listener.Addr().String(), Path: "app"}, Options{Fetch: c})
	if err := repo.Blob(t.Context(), store.DigestOf(data), int64(len(data)), "x"); err != nil {
		t.Fatal(err)
	}
	if leaked.Load() {
		t.Error("the password went to the server that the registry redirected to")
	}
}

func TestPasswordIsNotSentInTheClear(t *testing.T) {
	a := newAuthorizer(Endpoint{Host: "r.org", Path: "x"}, nil, &server{}, Options{})
	c := challenge{"bearer", map[string]string{"realm": "http://tokens.org/"}}
	_, err := a.token(t.Context(), "https", c, nil, Credential{User: "joe", Password: "secret"})
	if err == nil || !strings.Contains(err.Error(), "without encryption") {
		t.Errorf("error %v", err)
	}
}

func TestErrorsQuoteTheRegistry(t *testing.T) {
	registrytest.Isolate(t)
	host := registrytest.Start(t, false)
	repo := New(Endpoint{Host: host, Path: "no/such"}, Options{Fetch: client(t)})
	_, _, err := repo.Manifest(t.Context(), "v1")
	if err == nil || !strings.Contains(err.Error(), "MANIFEST_UNKNOWN") {
		t.Errorf("error %v does not say what the registry says", err)
	}
}

// What a registry refuses comes with what can be done about it.
func TestRefusalsHaveHints(t *testing.T) {
	repo := New(Endpoint{Host: "registry.example", Path: "app"}, Options{Fetch: client(t)})
	for code, want := range map[int]string{
		http.StatusUnauthorized:          "sconce login registry.example",
		http.StatusForbidden:             "sconce login registry.example",
		http.StatusNotFound:              "check the name",
		http.StatusRequestEntityTooLarge: "raise that limit",
		http.StatusTooManyRequests:       "wait a while",
		http.StatusBadGateway:            "try again later",
		http.StatusBadRequest:            "",
	} {
		err := repo.explain(fmt.Errorf("push: %w", &fetch.StatusError{Code: code}))
		if hint := fault.HintOf(err); !strings.Contains(hint, want) || (want == "") != (hint == "") {
			t.Errorf("%d: hint %q, want %q", code, hint, want)
		}
	}
}

func TestManifestIsChecked(t *testing.T) {
	registrytest.Isolate(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer srv.Close()
	repo := New(Endpoint{Host: srv.Listener.Addr().String(), Path: "app"}, Options{Fetch: client(t)})
	if _, _, err := repo.Manifest(t.Context(), string(store.DigestOf([]byte("other")))); err == nil || !strings.Contains(err.Error(), "wrong hash") {
		t.Errorf("error %v, want a wrong hash", err)
	}
}

func TestHTTPSOnThisMachine(t *testing.T) {
	registrytest.Isolate(t)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"schemaVersion":2}`) }))
	defer srv.Close()
	at := Endpoint{Host: srv.Listener.Addr().String(), Path: "app"}
	if _, _, err := New(at, Options{Fetch: client(t)}).Manifest(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate nobody signed: error %v", err)
	}
	at.Insecure = true
	if _, _, err := New(at, Options{Fetch: client(t)}).Manifest(t.Context(), "x"); err != nil {
		t.Errorf("insecure = true: %v", err)
	}
}

const config = `
unqualified-search-registries = ["docker.io"]
short-name-mode = "permissive"
[[registry]]
prefix = "nvcr.io"
location = "proxy.site:5000/nvcr"
[[registry]]
location = "docker.io"
[[registry.mirror]]
location = "mirror.site/hub"
insecure = true
[[registry.mirror]]
location = "digests.site"
pull-from-mirror = "digest-only"
[[registry]]
prefix = "docker.io/private"
location = "docker.io/private"
[[registry]]
location = "evil.org"
blocked = true
[[registry]]
prefix = "*.lab.org"
insecure = true
`

func TestEndpoints(t *testing.T) {
	c := &Config{}
	if err := c.add([]byte(config), ""); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		host, repository string
		byDigest         bool
		want             []Endpoint
	}{
		{"quay.io", "a/b", false, []Endpoint{{"quay.io", "a/b", false}}},
		{"nvcr.io", "nvidia/cuda", false, []Endpoint{{"proxy.site:5000", "nvcr/nvidia/cuda", false}}},
		{"index.docker.io", "library/debian", false, []Endpoint{{"mirror.site", "hub/library/debian", true}, {"docker.io", "library/debian", false}}},
		{"docker.io", "library/debian", true, []Endpoint{{"mirror.site", "hub/library/debian", true}, {"digests.site", "library/debian", false}, {"docker.io", "library/debian", false}}},
		{"docker.io", "private/x", false, []Endpoint{{"docker.io", "private/x", false}}},
		{"docker.io", "privately/x", false, []Endpoint{{"mirror.site", "hub/privately/x", true}, {"docker.io", "privately/x", false}}},
		{"r.lab.org", "x", false, []Endpoint{{"r.lab.org", "x", true}}},
	} {
		got, err := c.Endpoints(tc.host, tc.repository, tc.byDigest)
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s/%s: %v, %v, want %v", tc.host, tc.repository, got, err, tc.want)
		}
	}
	if _, err := c.Endpoints("evil.org", "x", false); err == nil {
		t.Error("a blocked registry was given out")
	}
	if at, err := c.PushEndpoint("docker.io", "library/x"); err != nil || at.Host != "docker.io" {
		t.Errorf("push goes to %v, %v", at, err)
	}
}

func TestConfigFiles(t *testing.T) {
	home := registrytest.Isolate(t)
	t.Setenv("CONTAINERS_REGISTRIES_CONF", "")
	put(t, filepath.Join(home, ".config/containers/registries.conf"), "[[registry]]\nlocation = \"a.org\"\ninsecure = true\n")
	put(t, filepath.Join(home, ".config/containers/registries.conf.d/10.conf"), "[[registry]]\nlocation = \"a.org\"\ninsecure = false\n")
	c, err := ReadConfig()
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := c.Endpoints("a.org", "x", false); got[0].Insecure {
		t.Error("the later file did not replace the rule")
	}
	put(t, filepath.Join(home, ".config/containers/registries.conf.d/20.conf"), "[[registry]\n")
	if _, err := ReadConfig(); err == nil || !strings.Contains(err.Error(), "20.conf") {
		t.Errorf("error %v does not name the file", err)
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{"localhost": true, "localhost:5000": true, "127.0.0.1:5000": true, "127.1.2.3": true, "[::1]:5000": true, "a.localhost": true, "r.org": false, "10.0.0.1:5000": false, "localhost.org": false} {
		if got := (Endpoint{Host: host}).loopback(); got != want {
			t.Errorf("%s: %t", host, got)
		}
	}
}

func TestParseChallenges(t *testing.T) {
	got := parseChallenges([]string{`Bearer realm="https://a.org/token",service="a, \"b\"",scope="x:y:pull,push", Basic realm=plain`, "Negotiate"})
	data, _ := json.Marshal([]any{got[0].params, got[1].params})
	want := `[{"realm":"https://a.org/token","scope":"x:y:pull,push","service":"a, \"b\""},{"realm":"plain"}]`
	if len(got) != 3 || string(data) != want || got[0].scheme != "bearer" || got[2].scheme != "negotiate" {
		t.Errorf("got %v, want %s", got, want)
	}
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://a.org/token",service="a",scope="x"`)
	f.Add(`Basic`)
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range parseChallenges([]string{s}) {
			if c.scheme == "" || len(c.params) > maxParams {
				t.Errorf("%q gives %v", s, c)
			}
		}
	})
}

func FuzzRegistriesConf(f *testing.F) {
	f.Add([]byte(config), "docker.io", "library/debian")
	f.Add([]byte("[[registry]]\nprefix='*.a'\n"), "b.a", "c")
	f.Fuzz(func(t *testing.T, data []byte, host, repository string) {
		c := &Config{}
		if c.add(data, "") != nil {
			return
		}
		if all, err := c.Endpoints(host, repository, true); err == nil && len(all) == 0 {
			t.Error("no endpoint and no error")
		}
	})
}

func FuzzAuthFile(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"am9lOng="}},"credHelpers":{"a.org":"x"}}`), "docker.io", "a/b")
	f.Fuzz(func(t *testing.T, data []byte, host, repository string) {
		var file authFile
		if json.Unmarshal(data, &file) == nil {
			file.CredHelpers, file.CredsStore = nil, "" // no programs are run
			_, _ = file.find(context.Background(), host, repository)
		}
	})
}
