package condalock

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
)

// Way is how the servers of channels are reached by this user: through the proxies and with the trust that conda's configuration, or
// rattler's, has for them.
func (c *Config) Way() (fetch.Way, error) {
	unchecked, _ := c.rattler["tls-no-verify"].(bool)
	w := fetch.Way{Unchecked: unchecked || c.verify == "false"}
	if c.hasProxies() {
		w.Proxy = func(r *http.Request) (*url.URL, error) { return c.proxy(r.URL) }
	}
	var err error
	if file := c.bundle(); file != "" {
		if w.Roots, err = readCertificates(file); err != nil {
			err = fault.Hint(fmt.Errorf("ssl_verify of conda's configuration: %w", err), "it is the path of a file with certificates, true or false")
		}
	}
	return w, err
}

// bundle is the file, or the directory, of the certificates that are believed instead of this machine's; "" without one.
func (c *Config) bundle() string {
	if c.verify == "false" {
		return ""
	}
	return c.verify
}

func readCertificates(place string) (*x509.CertPool, error) {
	files := []string{place}
	if isDirectory(place) { // of files that are named by hashes, or not
		files, _ = filepath.Glob(filepath.Join(place, "*"))
	}
	pool, found := x509.NewCertPool(), false
	for _, file := range files {
		text, err := ctxio.ReadFile(file, maxFile)
		if err != nil && file == place {
			return nil, err
		}
		found = pool.AppendCertsFromPEM(text) || found
	}
	if !found {
		return nil, fmt.Errorf("no certificate is in %s", place)
	}
	return pool, nil
}

// proxy is the proxy before a server, nil without one.
func (c *Config) proxy(u *url.URL) (*url.URL, error) {
	text := c.proxyOf(u)
	if text == "" {
		return nil, nil
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	proxy, err := url.Parse(text)
	if err != nil || proxy.Host == "" { // the error would show a password
		return nil, errors.New("the proxy for it in conda's or rattler's configuration is not an address")
	}
	return proxy, nil
}

// proxyOf is the proxy before a server as it is written, "" without one. It is found as conda finds it (Requests, "Proxies"): one for
// the scheme and host goes before variables, these before one for the scheme, one for all schemes comes last; then comes rattler's.
func (c *Config) proxyOf(u *url.URL) string {
	host := strings.ToLower(u.Hostname())
	if exempt(strings.Split(c.either("NO_PROXY"), ","), host) {
		return ""
	}
	if text, ok := c.proxies[u.Scheme+"://"+host]; ok {
		return text
	}
	if text := c.either(strings.ToUpper(u.Scheme) + "_PROXY"); text != "" {
		return text
	}
	for _, key := range []string{u.Scheme, "all://" + host, "all"} {
		if text, ok := c.proxies[key]; ok {
			return text
		}
	}
	table := c.rattlerProxies()
	if exempt(toList(table["non-proxy-hosts"]), host) {
		return ""
	}
	text, _ := table[u.Scheme].(string)
	return text
}

// hasProxies reports whether conda or rattler is told of proxies, besides by variables.
func (c *Config) hasProxies() bool { return len(c.proxies) > 0 || len(c.rattlerProxies()) > 0 }

func (c *Config) rattlerProxies() map[string]any {
	table, _ := c.rattler["proxy-config"].(map[string]any)
	return table
}

// either returns the value of a variable that is written in capitals or not.
func (c *Config) either(name string) string {
	return cmp.Or(c.variable(name), c.variable(strings.ToLower(name)))
}

// exempt reports whether a host is in a list as NO_PROXY has it: names, which stand for all below them, addresses, networks, or a star.
func exempt(list []string, host string) bool {
	address, _ := netip.ParseAddr(host)
	return slices.ContainsFunc(list, func(item string) bool {
		item = strings.ToLower(strings.TrimLeft(strings.TrimSpace(item), "."))
		if network, err := netip.ParsePrefix(item); err == nil {
			return network.Contains(address)
		}
		return item == "*" || item != "" && (item == host || strings.HasSuffix(host, "."+item))
	})
}

// environment are variables for the solver, which is to reach channels as [Config.Way] says. Its client has one proxy for each scheme:
// the one that all have, else that of the channels. Channels that are reached without are told as exceptions.
func (c *Config) environment(channels []string) ([]string, error) {
	if !c.hasProxies() {
		return c.variables(nil, nil), nil
	}
	servers := c.servers(channels)
	proxies := map[string]string{}
	for _, u := range slices.Concat([]*url.URL{{Scheme: "http"}, {Scheme: "https"}}, servers) {
		proxies[u.Scheme] = cmp.Or(proxies[u.Scheme], c.proxyOf(u))
	}
	var direct []string
	for _, u := range servers {
		own, all := c.proxyOf(u), proxies[u.Scheme]
		switch own {
		case all:
		case "":
			direct = append(direct, u.Hostname())
		default:
			err := fmt.Errorf("%s is behind the proxy %s, other channels are behind %s, and the solver of conda packages goes through one only", u.Hostname(),
				fetch.WithoutLogins(own), fetch.WithoutLogins(all))
			return nil, fault.Hint(err, `give them the same one under proxy_servers in .condarc, or "" to those that need none`)
		}
	}
	return c.variables(proxies, direct), nil
}

// servers are where the indexes of channels are asked for.
func (c *Config) servers(channels []string) (all []*url.URL) {
	for _, channel := range channels {
		for _, place := range c.Places(channel + "/") {
			if u, err := url.Parse(place); err == nil && strings.HasPrefix(u.Scheme, "http") {
				all = append(all, u)
			}
		}
	}
	return all
}

func (c *Config) variables(proxies map[string]string, direct []string) (all []string) {
	add := func(name, value string) { all = append(all, name+"="+value, strings.ToLower(name)+"="+value) }
	for _, scheme := range slices.Sorted(maps.Keys(proxies)) {
		if proxies[scheme] != "" {
			add(strings.ToUpper(scheme)+"_PROXY", proxies[scheme])
		}
	}
	if len(direct) > 0 {
		add("NO_PROXY", strings.TrimLeft(c.either("NO_PROXY")+","+strings.Join(direct, ","), ","))
	}
	switch place := c.bundle(); {
	case place == "":
	case isDirectory(place):
		all = append(all, "SSL_CERT_DIR="+place)
	default:
		all = append(all, "SSL_CERT_FILE="+place)
	}
	return all
}
