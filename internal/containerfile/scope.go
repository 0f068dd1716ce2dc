package containerfile

import (
	"path"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// scope holds variables in the order in which they were first set.
type scope struct {
	names  []string
	values map[string]string
	open   bool // there may be more: a mistake, or an image that was not asked for, hides them

	taken map[string]bool // names whose values words took since [scope.watch]; nil: nobody watches
}

func newScope(env []string) *scope {
	s := &scope{values: map[string]string{}}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		s.set(name, value)
	}
	return s
}

func (s *scope) clone() *scope {
	c := newScope(s.environ())
	c.open = s.open
	return c
}

// watch begins to note what words take.
func (s *scope) watch() { s.taken = make(map[string]bool) }

func (s *scope) set(name, value string) {
	if _, has := s.values[name]; !has {
		s.names = append(s.names, name)
	}
	s.values[name] = value
}

// Get and Keys are for BuildKit's lexer.
func (s *scope) Get(name string) (string, bool) {
	value, ok := s.values[name]
	return value, ok
}

func (s *scope) Keys() []string { return s.names }

// environ returns the variables as KEY=VALUE.
func (s *scope) environ() []string {
	env := make([]string, len(s.names))
	for i, name := range s.names {
		env[i] = name + "=" + s.values[name]
	}
	return env
}

// maxExpansion bounds what variables may add to one word, in bytes. Linux passes no longer string to a program than a
// fraction of it, and variables that double each other stay harmless.
const maxExpansion = 1 << 20

// meter counts what an expansion takes from a scope.
type meter struct {
	*scope
	taken int
}

// Get returns nothing more once too much was taken.
func (m *meter) Get(name string) (string, bool) {
	value, ok := m.scope.Get(name)
	if m.scope.taken != nil {
		m.scope.taken[name] = true
	}
	if m.taken += len(value); m.taken > maxExpansion {
		return "", ok
	}
	return value, ok
}

// expand replaces the variables of a word and takes its quotes away, and returns the names that have no value.
func (s *scope) expand(lex *shell.Lex, word string) (string, []string, error) {
	m := &meter{scope: s}
	result, unset, err := lex.ProcessWord(word, m)
	if err == nil && m.taken > maxExpansion {
		err = wrongf("", "%.40q… becomes longer than %d bytes", word, maxExpansion)
	}
	missing := make([]string, 0, len(unset))
	for name := range unset {
		missing = append(missing, name)
	}
	slices.Sort(missing)
	return result, missing, err
}

// proxies are the build arguments that need no ARG.
var proxies = []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"}

func isProxy(name string) bool { return slices.Contains(proxies, strings.ToLower(name)) }

// proxyEnv returns the proxies among build arguments, spelled in both ways that programs look for.
func proxyEnv(args map[string]string) []string {
	var env []string
	for _, name := range proxies {
		for _, given := range []string{name, strings.ToUpper(name)} {
			if value, ok := args[given]; ok {
				env = append(env, name+"="+value, strings.ToUpper(name)+"="+value)
				break
			}
		}
	}
	return env
}

// predefined are the variables that exist before the first ARG, of which an ARG without a value in a stage takes its own.
func predefined(o Options) *scope {
	target := o.Target
	if target == "" {
		target = "default"
	}
	s := newScope(nil)
	for _, p := range []struct {
		prefix   string
		platform v1.Platform
	}{{"BUILD", o.BuildPlatform}, {"TARGET", o.Platform}} {
		s.set(p.prefix+"PLATFORM", platformString(p.platform))
		s.set(p.prefix+"OS", p.platform.OS)
		s.set(p.prefix+"OSVERSION", p.platform.OSVersion)
		s.set(p.prefix+"ARCH", p.platform.Architecture)
		s.set(p.prefix+"VARIANT", p.platform.Variant)
	}
	s.set("TARGETSTAGE", target)
	for _, name := range s.names {
		if value, ok := o.BuildArgs[name]; ok {
			s.set(name, value)
		}
	}
	return s
}

// thisMachine is the platform that the program was made for.
func thisMachine() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

func platformString(p v1.Platform) string { return path.Join(p.OS, p.Architecture, p.Variant) }

// parsePlatform reads OS/ARCHITECTURE[/VARIANT], or one of the first two, with the other names that architectures have.
func parsePlatform(s string, target v1.Platform) (v1.Platform, error) {
	parts := strings.Split(strings.ToLower(s), "/")
	if len(parts) == 1 && parts[0] == "linux" {
		return target, nil
	}
	if len(parts) == 1 {
		parts = []string{"linux", parts[0]}
	}
	if len(parts) > 3 || slices.Contains(parts, "") {
		return v1.Platform{}, wrongf("for example linux/arm64", "%q is no platform", s)
	}
	if parts[0] != "linux" {
		return v1.Platform{}, wrongf("", "images for %s cannot be built, only for linux", parts[0])
	}
	p := v1.Platform{OS: parts[0], Architecture: parts[1]}
	switch p.Architecture {
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	}
	if len(parts) == 3 && p.Architecture+"/"+parts[2] != "arm64/v8" && p.Architecture+"/"+parts[2] != "amd64/v1" {
		p.Variant = parts[2]
	}
	return p, nil
}
