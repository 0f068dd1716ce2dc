package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// tokenRegistry is the program that [TestPipelineSecretsOfTokens] puts in front of a registry: token-registry LISTEN REGISTRY DIRECTORY. Whoever
// has the password or the refresh token in DIRECTORY gets bearer tokens at /token, each of which is a line more in DIRECTORY/needles. When
// DIRECTORY/refuse is there, nobody does. What is asked for is printed, as registries keep it.
func tokenRegistry() {
	listen, registry, dir := os.Args[1], os.Args[2], os.Args[3]
	s := &tokenServer{dir: dir, issued: map[string]bool{}}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	err := http.ListenAndServe(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL)
		switch {
		case r.URL.Path == "/token":
			s.issue(w, r)
		case !s.knows(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")):
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
		default:
			r.Header.Del("Authorization")
			forward.ServeHTTP(w, r)
		}
	}))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

type tokenServer struct {
	dir    string
	mu     sync.Mutex
	issued map[string]bool
}

func (s *tokenServer) file(name string) string {
	text, _ := os.ReadFile(filepath.Join(s.dir, name)) // one that is not there says nothing
	return strings.TrimSpace(string(text))
}

func (s *tokenServer) knows(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.issued[token] && s.file("refuse") == ""
}

// issue gives a token to whoever is known, and tells in DIRECTORY/how by what: a password or a refresh token.
func (s *tokenServer) issue(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	how := ""
	switch {
	case s.file("refuse") != "":
	case user == "joe" && password == s.file("password"):
		how = "password"
	case r.PostFormValue("grant_type") == "refresh_token" && r.PostFormValue("refresh_token") == s.file("refresh"):
		how = "refresh token"
	}
	if how == "" {
		http.Error(w, `{"errors": [{"code": "DENIED", "message": "not today"}]}`, http.StatusForbidden)
		return
	}
	token := rand.Text()
	s.mu.Lock()
	s.issued[token] = true
	appendLine(filepath.Join(s.dir, "needles"), token)
	appendLine(filepath.Join(s.dir, "how"), how)
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]string{"token": token}) // who does not wait has no need of it
}

func appendLine(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, line)
		f.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tokensRecipe waits in its step and in its test, so that somebody can look.
const tokensRecipe = `name = "tiny"
version = "1"
base.image = "dir:../../rootfs"
target.cluster = "two"

[[step]]
run = "set; nc 192.0.2.1 7000 < /dev/null; echo made > /made"

[[test]]
name = "rate"
run = "set; echo up > /shared/up; until [ -e /shared/go-on ]; do sleep 0.1; done; echo rate = 5 GB/s"
expect = { rate = ">= 90%" }
`

// A registry wants tokens that it issues for a refresh token, as logins of clouds are, or for a password, as sconce login keeps it. No token of
// either kind and no login is in a log, a job's script or environment, a command line, what Slurm or registries keep, or the store: while a
// job builds, while one tests, when it is over, and when the tokens are good no longer.
func TestPipelineSecretsOfTokens(t *testing.T) {
	c := pipelineCluster(t)
	password, refresh := rand.Text(), rand.Text()
	login := base64.StdEncoding.EncodeToString([]byte("joe:" + password))
	pipe := strings.Replace(pipelineTOML, `"127.0.0.1:5000/users"`, `"localhost:5000/users"`, 1)
	for name, text := range map[string]string{
		"private/password": password, "private/refresh": refresh, "private/needles": password + "\n" + login + "\n" + refresh + "\n",
		"private/config.json": `{"auths": {"127.0.0.1:5000": {"identitytoken": "` + refresh + `"}}}`,
		"reg.yml":             "version: 0.1\nlog: {level: debug}\nstorage: {filesystem: {rootdirectory: /tmp/registry}}\nhttp: {addr: '127.0.0.1:5001', secret: test}\n",
		"search.py":           searchPy, "gate.py": gatePy, "pipe/pipeline.toml": pipe, "pipe/app/sconce.toml": tokensRecipe,
		"pipe/app/clusters/two.toml": strings.NewReplacer("good.rate", "rate.rate", "[paths]\n", "[paths]\nscratch = \"/shared\"\n").Replace(testProfile),
	} {
		writeText(t, filepath.Join(c.SharedDir, name), text)
	}
	if err := os.Symlink("sconce", filepath.Join(c.SharedDir, "bin/token-registry")); err != nil {
		t.Fatal(err)
	}
	out, err := c.Try(c.Admin(), `exec 2>&1
		unset CI GITHUB_ACTIONS GITLAB_CI
		GOGC=800 docker-registry serve reg.yml > /tmp/registry.log 2>&1 & registry=$!
		token-registry 127.0.0.1:5000 127.0.0.1:5001 /shared/private > /tmp/front.log 2>&1 & front=$!
		python3 gate.py > /tmp/gate.log 2>&1 & gate=$!
		trap 'kill $registry $front $gate' EXIT
		until [ -e gate-up ] && bash -c ': < /dev/tcp/127.0.0.1/5000 && : < /dev/tcp/127.0.0.1/5001' 2> /dev/null; do sleep 0.05; done
		export SCONCE_STORE=/shared/store DOCKER_CONFIG=/shared/private REGISTRY_AUTH_FILE=/shared/private/auth.json
		for p in nc sleep test; do ln -sf sh rootfs/bin/$p; done
		seen() {
			for p in /proc/[0-9]*; do grep -aHosFf private/needles $p/environ $p/cmdline; done
			for job in $(squeue -h -o %A); do scontrol write batch_script $job - | grep -Ff private/needles; scontrol show job -dd $job | grep -Ff private/needles; done
			python3 search.py private/needles /shared /tmp /var ~
		}
		while_it() { until [ -e $1 ] || ! kill -0 $client 2> /dev/null; do sleep 0.05; done; echo "== $2"; squeue -h -o %T; seen; touch $3; }
		sconce login localhost:5000 -u joe --password-stdin < private/password
		sconce lock pipe/app || exit
		cd pipe; sconce -v pipeline run --test --promote --on two > /tmp/client.out 2>&1 & client=$!; cd ..
		while_it came building open
		while_it up testing go-on
		wait $client; echo code $?
		echo "== signed"; cat /tmp/client.out
		echo "== over"; seen; sort -u private/how
		echo now > private/refuse; sconce -v push tiny:1 localhost:5000/more:1 > /tmp/refused.out 2>&1; cd pipe; sconce -v pipeline plan > /tmp/planned.out 2>&1; cd ..
		echo "== refused"; seen; cat /tmp/refused.out /tmp/planned.out | grep -c 'not today'
		tail -n 1 private/needles > /tmp/planted; echo "== planted"; seen | grep -v '^searched' | sed 's/secret [0-9]* //'
		echo "== end"`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	parts := partsOf("\n"+out, "building", "testing", "signed", "over", "refused", "planted", "end")
	for part, want := range map[string]string{
		"building": "RUNNING\nsearched True", "testing": "RUNNING\nsearched True\ncode 0", "over": "searched True\npassword\nrefresh token", "refused": "searched True\n2",
		"planted": "is in /tmp/planted", // who looks, finds
	} {
		if parts[part] != want {
			t.Errorf("%s: there is\n%s\nwant\n%s", part, parts[part], want)
		}
	}
	wantIn(t, parts["signed"], "rate PASSED", "localhost:5000/users/tiny:1 written")
	if t.Failed() {
		t.Log(out)
	}
}
