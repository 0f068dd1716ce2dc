package execop

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/tooltest"
)

// A step does not see what this machine offers to itself alone, unless it is given the machine's network.
func TestStepNetwork(t *testing.T) {
	if err := sandbox.CheckNetwork(); err != nil {
		tooltest.Missing(t, "a network: %v", err)
	}
	b := newBench(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	defer srv.Close()
	ask := sh("wget -q -O - " + srv.URL + " 2>/dev/null || echo none")
	if _, out := b.run(ask); out != "none\n" {
		t.Errorf("with a network of its own: %q", out)
	}
	if f := b.fail(sh("wget -q -O - " + srv.URL)); !strings.Contains(f.Hint(), "--network host") {
		t.Errorf("what finds nobody is told %q", f.Hint())
	}
	for name, set := range map[string]func(){
		"this machine's":   func() { b.HostNetwork, b.Pass = true, nil },
		"for a proxy here": func() { b.HostNetwork, b.Pass = false, []string{"https_proxy=" + srv.URL} },
	} {
		set()
		if _, out := b.run(ask); out != "here\n" {
			t.Errorf("with a network that is %s: %q", name, out)
		}
	}
}

// Where there can be no network of its own, a step that wants one has this machine's, and a build says so once.
func TestNoOwnNetwork(t *testing.T) {
	b := newBench(t)
	b.tryNetwork = func() error { return errors.New("no device here") }
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	defer srv.Close()
	ask := sh("wget -q -O - " + srv.URL + " 2>/dev/null || echo none")
	closed := ask
	closed.NoNetwork = true
	if _, out := b.run(closed); out != "none\n" {
		t.Errorf("without network: %q", out)
	}
	said := b.events.warnings()
	if len(said) != 0 {
		t.Errorf("of a step without network is said %q", said)
	}
	for range 2 {
		if _, out := b.run(ask); out != "here\n" {
			t.Errorf("with this machine's: %q", out)
		}
		said = append(said, b.events.warnings()...)
	}
	if len(said) != 1 || !strings.Contains(said[0], "what listens on its localhost included") || !strings.Contains(said[0], "no device here") {
		t.Errorf("said %q, want it once", said)
	}
}

// Programs find the ports below 1024 free, and may take them, whoever they run as.
func TestLowPorts(t *testing.T) {
	if err := sandbox.CheckNetwork(); err != nil {
		tooltest.Missing(t, "a network: %v", err)
	}
	b := newBench(t)
	for _, user := range []string{"", "build"} {
		c := sh("echo word >/tmp/word; httpd -f -p 80 -h /tmp & until wget -q -O - http://127.0.0.1/word 2>/dev/null; do sleep 0.05; done; kill $!")
		c.User = user
		if _, out := b.run(c); out != "word\n" {
			t.Errorf("USER %q: %q", user, out)
		}
	}
}

// A step that is to use a proxy on this machine's loopback can reach it.
func TestProxyHere(t *testing.T) {
	for kv, want := range map[string]bool{
		"http_proxy=http://127.0.0.1:3128": true, "HTTPS_PROXY=localhost:3128": true, "all_proxy=socks5h://user:x@[::1]:1080": true,
		"http_proxy=http://proxy.example.org:3128": false, "no_proxy=localhost,127.0.0.1": false, "PLACE=http://127.0.0.1:1": false,
		"http_proxy=": false, "http_proxy=http://127.0.0.1.example.org": false,
	} {
		if got := proxyHere([]string{"A=b", kv}); got != want {
			t.Errorf("%s: %t, want %t", kv, got, want)
		}
	}
}
