package execop

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
)

// ownNetwork reports whether the command gets a network of its own. It has this machine's where that was asked for or a network of its
// own cannot be had, and where it is to use a proxy that only this machine reaches.
func (s *running) ownNetwork() bool { return s.wantsNetwork() && s.checkNetwork() == nil }

// wantsNetwork reports whether the command should have a network of its own.
func (s *running) wantsNetwork() bool { return !s.c.NoNetwork && !s.HostNetwork && !proxyHere(s.Pass) }

// checkNetwork says why commands can have no network of their own here.
func (r *Runner) checkNetwork() error {
	if r.tryNetwork != nil {
		return r.tryNetwork()
	}
	return sandbox.CheckNetwork()
}

// warnOfNetwork says, once in a build, that commands see what this machine offers to itself alone, without anybody having asked for that.
func (s *running) warnOfNetwork() {
	if !s.wantsNetwork() {
		return
	}
	if err := s.checkNetwork(); err != nil {
		s.warned.Do(func() {
			progress.Warn(s.ctx, fmt.Sprintf("steps have this machine's network, what listens on its localhost included: they can have none of their own here: %v", err),
				"`--network host` is content with that, `network = false` in a step and `--network none` give none at all")
		})
	}
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
