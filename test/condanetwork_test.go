package test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/tooltest"
)

// A channel that is reached through a proxy alone, with a certificate of the site's own authority, both of which conda's configuration names
// and nothing else: the solver, the downloads and the question whether it answers go by that.
func TestCondaNetwork(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	const host = "conda.example.org"
	channel := condatest.NewChannel(t, condatest.Package{Name: "a", Version: "1.0", Noarch: "generic", Files: map[string]condatest.File{"share/a": {Data: "made\n"}}}).Serve(t)
	certificate, authority := siteAuthority(t, host)
	site := httpServer(t, channel, startedWith(certificate))
	tunnel := &tunnel{only: host + ":443", to: site.Listener.Addr().String()}
	proxy := httpServer(t, tunnel, httptest.NewServer)
	ix := newIndex(t)
	ix.dir = solverIndex(t, ix.dir, nil)
	through := "proxy_servers:\n  https://" + host + ": " + proxy.URL + "\nchannels: [https://" + host + "/channel]\n"
	configured := func(t *testing.T, condarc string) *place {
		t.Helper()
		p := newPlace(t, nil)
		ix.use(p)
		p.env = append(p.env, "CONDARC="+p.path("rc.yml"), "UV_PYTHON_DOWNLOADS=never")
		p.write("rc.yml", strings.ReplaceAll(condarc, "HERE", p.dir))
		p.write("site.pem", authority)
		p.write("certificates/site.pem", authority)
		p.write("root.tar", string(condatest.Root(t)))
		p.write("env/sconce.toml", "name = \"env\"\nversion = \"1\"\n[base]\nimage = \"tar:../root.tar\"\n[conda]\npackages = [\"a\"]\n")
		return p
	}
	for name, verify := range map[string]string{"a file": "HERE/site.pem", "a directory": "HERE/certificates", "no check": "false"} {
		t.Run(name, func(t *testing.T) {
			p := configured(t, through+"ssl_verify: "+verify+"\n")
			p.must("build", "env")
			if r := p.must("run", "env:1", "--", "cat", "/opt/conda/share/a"); r.stdout != "made\n" {
				t.Error(r)
			}
			if r := p.sconce("info", "--network"); !strings.Contains(r.stdout, "https://"+host+"/channel answers") {
				t.Error(r)
			}
		})
	}
	t.Run("nobody vouches for it", func(t *testing.T) {
		p := configured(t, through)
		if r := p.sconce("info", "--network"); strings.Contains(r.stdout, "/channel answers") || !strings.Contains(r.stdout+r.stderr, "certificate") {
			t.Error(r)
		}
	})
	t.Run("no such file", func(t *testing.T) {
		p := configured(t, through+"ssl_verify: HERE/other.pem\n")
		if r := p.sconce("build", "env"); r.code == 0 || !strings.Contains(r.stderr, "ssl_verify of conda's configuration") || !strings.Contains(r.stderr, p.path("other.pem")) {
			t.Error(r)
		}
	})
	if other := tunnel.others(); len(other) > 0 {
		t.Errorf("the proxy was asked for %q", other)
	}
}

// tunnel is a proxy (RFC 9110, section 9.3.6) that leads to one server, under the name that it has there.
type tunnel struct {
	only, to string

	mu    sync.Mutex
	asked []string // for others
}

func (p *tunnel) others() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (p *tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Host != p.only {
		p.mu.Lock()
		p.asked = append(p.asked, r.Method+" "+r.Host)
		p.mu.Unlock()
		w.WriteHeader(http.StatusForbidden)
		return
	}
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer server.Close()
	client, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, buffered)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, server)
}
