package condalock

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
)

// Which proxy is before a server: for its scheme and name, then by variables, then for its scheme, then for all; and rattler's last.
func TestProxies(t *testing.T) {
	const rattler = "[proxy-config]\nhttps = \"http://rattler\"\nnon-proxy-hosts = [\".lab.example.org\"]\n"
	for _, test := range []struct {
		name, condarc, address, want string
		env                          []string
	}{
		{"none", "{}", "https://x.example.com/c", "http://rattler", nil},
		{"none, and rattler's exception", "{}", "https://x.lab.example.org/c", "", nil},
		{"a scheme", "{https: 'http://p'}", "https://x.example.com/c", "http://p", nil},
		{"another scheme", "{https: 'http://p'}", "http://x.example.com/c", "", nil},
		{"without a scheme of its own", "{https: 'p:3128'}", "https://x.example.com/c", "http://p:3128", nil},
		{"a host before its scheme", "{https: 'http://p', 'https://x.example.com': 'http://me:secret@q'}", "https://X.example.com:8443/c", "http://me:secret@q", nil},
		{"another host", "{https: 'http://p', 'https://x.example.com': 'http://q'}", "https://y.example.com/c", "http://p", nil},
		{"a host that needs none", "{https: 'http://p', 'https://x.example.com': ''}", "https://x.example.com/c", "", nil},
		{"all", "{all: 'http://p'}", "https://x.example.com/c", "http://p", nil},
		{"all of a host", "{all: 'http://p', 'all://x.example.com': 'http://q'}", "http://x.example.com/c", "http://q", nil},
		{"a variable before a scheme", "{https: 'http://p'}", "https://x.example.com/c", "http://v", []string{"HTTPS_PROXY", "http://v"}},
		{"and in small letters", "{https: 'http://p'}", "https://x.example.com/c", "http://v", []string{"https_proxy", "http://v"}},
		{"a host before a variable", "{'https://x.example.com': 'http://q'}", "https://x.example.com/c", "http://q", []string{"HTTPS_PROXY", "http://v"}},
		{"NO_PROXY", "{https: 'http://p'}", "https://x.example.com/c", "", []string{"NO_PROXY", "other, .example.com"}},
		{"NO_PROXY with another ending", "{https: 'http://p'}", "https://xexample.com/c", "http://p", []string{"no_proxy", "example.com"}},
		{"NO_PROXY with a network", "{http: 'http://p'}", "http://10.1.2.3/c", "", []string{"NO_PROXY", "10.0.0.0/8"}},
		{"NO_PROXY with a star", "{http: 'http://p'}", "http://x/c", "", []string{"NO_PROXY", "*"}},
	} {
		c := config(t, map[string]string{".condarc": "proxy_servers: " + test.condarc, ".config/rattler/config.toml": rattler}, test.env...)
		u, err := url.Parse(test.address)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if proxy, err := c.proxy(u); err != nil {
			t.Errorf("%s: %v", test.name, err)
		} else if proxy != nil {
			got = proxy.String()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	c := config(t, map[string]string{".condarc": "proxy_servers: {http: 'http://me:hunter22@%%'}"})
	if _, err := c.proxy(&url.URL{Scheme: "http", Host: "x"}); err == nil || strings.Contains(err.Error(), "hunter22") {
		t.Errorf("no address: %v", err)
	}
	if way, err := config(t, nil).Way(); err != nil || way.Proxy != nil || way.Roots != nil || way.Unchecked {
		t.Errorf("nothing is configured: %+v, %v", way, err)
	}
}

// The solver is told of one proxy, and of the channels that are reached without.
func TestProxiesOfSolver(t *testing.T) {
	channels := []string{"https://conda.anaconda.org/conda-forge", "https://lab.example.org/c", "file:///data/c"}
	for _, test := range []struct {
		name, condarc string
		want          []string
	}{
		{"a host alone", "proxy_servers: {'https://conda.anaconda.org': 'http://p'}", []string{"HTTPS_PROXY=http://p", "https_proxy=http://p", "NO_PROXY=old,lab.example.org", "no_proxy=old,lab.example.org"}},
		{"the other alone", "proxy_servers: {'https://lab.example.org': 'http://p'}", []string{"HTTPS_PROXY=http://p", "https_proxy=http://p", "NO_PROXY=old,conda.anaconda.org", "no_proxy=old,conda.anaconda.org"}},
		{"all but one", "proxy_servers: {https: 'http://p', 'https://lab.example.org': ''}", []string{"HTTPS_PROXY=http://p", "https_proxy=http://p", "NO_PROXY=old,lab.example.org", "no_proxy=old,lab.example.org"}},
		{"all", "proxy_servers: {all: 'http://p'}", []string{"HTTP_PROXY=http://p", "http_proxy=http://p", "HTTPS_PROXY=http://p", "https_proxy=http://p"}},
		{"a mirror's", "mirrored_channels: {conda-forge: ['http://m.example.org/f']}\nproxy_servers: {http: 'http://p'}", []string{"HTTP_PROXY=http://p", "http_proxy=http://p"}},
		{"certificates", "ssl_verify: /site.pem", []string{"SSL_CERT_FILE=/site.pem"}},
		{"certificates in a directory", "ssl_verify: /tmp", []string{"SSL_CERT_DIR=/tmp"}},
		{"no certificates", "ssl_verify: false", nil},
	} {
		got, err := config(t, map[string]string{".condarc": test.condarc}, "NO_PROXY", "old").environment(channels)
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, -want +got:\n%s", test.name, err, diff)
		}
	}
	_, err := config(t, map[string]string{".condarc": "proxy_servers: {https: 'http://p', 'https://lab.example.org': 'http://me:hunter22@q'}"}).environment(channels)
	if err == nil || !strings.Contains(err.Error(), "lab.example.org is behind the proxy http://q, other channels are behind http://p") || fault.HintOf(err) == "" {
		t.Errorf("two proxies: %v", err)
	}
}
