package execop

import (
	"net/netip"
	"net/url"
	"strings"

	"sconce.dev/sconce/internal/sandbox"
)

// ownNetwork reports whether the command gets a network of its own. It has this machine's where that was asked for or a network of its
// own cannot be had, and where it is to use a proxy that only this machine reaches.
func (s *running) ownNetwork() bool {
	return !s.c.NoNetwork && !s.HostNetwork && !proxyHere(s.Pass) && sandbox.CheckNetwork() == nil
}

// proxyHere reports whether a variable, KEY=VALUE, names a proxy on this machine's loopback.
func proxyHere(env []string) bool {
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasSuffix(strings.ToLower(name), "_proxy") || strings.EqualFold(name, "no_proxy") {
			continue
		}
		if !strings.Contains(value, "://") {
			value = "http://" + value
		}
		u, err := url.Parse(value)
		if err != nil {
			continue
		}
		address, err := netip.ParseAddr(u.Hostname())
		if err == nil && address.Unmap().IsLoopback() || isLocalhost(u.Hostname()) {
			return true
		}
	}
	return false
}

// isLocalhost reports whether a name is the loopback's (RFC 6761, section 6.3).
func isLocalhost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}
