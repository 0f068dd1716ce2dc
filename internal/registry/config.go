package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
)

// Config is what containers-registries.conf(5), version 2, says about registries: other locations, mirrors, insecure and
// blocked ones.
type Config struct {
	rules []rule
}

type rule struct {
	Prefix             string   `toml:"prefix"`
	Location           string   `toml:"location"`
	Insecure           bool     `toml:"insecure"`
	Blocked            bool     `toml:"blocked"`
	MirrorByDigestOnly bool     `toml:"mirror-by-digest-only"`
	Mirrors            []mirror `toml:"mirror"`
	file               string
}

type mirror struct {
	Location       string `toml:"location"`
	Insecure       bool   `toml:"insecure"`
	PullFromMirror string `toml:"pull-from-mirror"` // all, digest-only, tag-only; "" means all
}

// maxConfig bounds one file, in bytes.
const maxConfig = 4 << 20

// ReadConfig reads the user's file, else the system's, and the files in registries.conf.d of both, which replace rules of
// the same prefix.
func ReadConfig() (*Config, error) {
	c := &Config{}
	for _, name := range configFiles() {
		data, err := readLimited(name, maxConfig)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err == nil {
			err = c.add(data, name)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return c, nil
}

const systemConfig = "/etc/containers"

func configFiles() []string {
	if name := os.Getenv("CONTAINERS_REGISTRIES_CONF"); name != "" {
		return []string{name}
	}
	main := filepath.Join(systemConfig, "registries.conf")
	dirs := []string{filepath.Join(systemConfig, "registries.conf.d")}
	if home := configHome(); home != "" {
		own := filepath.Join(home, "containers", "registries.conf")
		if _, err := os.Stat(own); err == nil {
			main = own
		}
		dirs = append(dirs, own+".d")
	}
	out := []string{main}
	for _, d := range dirs {
		found, _ := filepath.Glob(filepath.Join(d, "*.conf")) // the pattern is good; Glob sorts
		out = append(out, found...)
	}
	return out
}

// add puts the rules of a file over those that are there. Keys that do not matter here, like short names, are not looked
// at: other programs own the file.
func (c *Config) add(data []byte, name string) error {
	var doc struct {
		Registry []rule `toml:"registry"`
	}
	if err := toml.Unmarshal(data, &doc); err != nil {
		return err
	}
	for _, r := range doc.Registry {
		if err := r.normalise(); err != nil {
			return err
		}
		r.file = name
		c.rules = slices.DeleteFunc(c.rules, func(old rule) bool { return old.Prefix == r.Prefix })
		c.rules = append(c.rules, r)
	}
	return nil
}

func (r *rule) normalise() error {
	r.Prefix, r.Location = strings.TrimRight(r.Prefix, "/"), strings.TrimRight(r.Location, "/")
	if r.Prefix == "" {
		r.Prefix = r.Location
	}
	if r.Prefix == "" {
		return errors.New("a [[registry]] has neither prefix nor location")
	}
	if r.Location == "" && !strings.HasPrefix(r.Prefix, "*.") {
		r.Location = r.Prefix
	}
	for i := range r.Mirrors {
		m := &r.Mirrors[i]
		m.Location = strings.TrimRight(m.Location, "/")
		if m.Location == "" {
			return fmt.Errorf("a mirror of %s has no location", r.Prefix)
		}
	}
	return nil
}

// Endpoints returns where a repository may be pulled from, in the order to try. byDigest says that a digest is asked for,
// which some mirrors are only trusted with.
func (c *Config) Endpoints(host, repository string, byDigest bool) ([]Endpoint, error) {
	name := CanonicalHost(host) + "/" + repository
	r, matched := c.match(name)
	if r == nil {
		return []Endpoint{{Host: CanonicalHost(host), Path: repository}}, nil
	}
	if r.Blocked {
		return nil, fault.Hint(fmt.Errorf("registry %s is blocked", r.Prefix), "by "+r.file)
	}
	rest := strings.TrimPrefix(name, matched)
	var out []Endpoint
	for _, m := range r.Mirrors {
		if r.allows(m, byDigest) {
			out = append(out, endpoint(m.Location+rest, m.Insecure))
		}
	}
	location := r.Location
	if location == "" {
		location = matched
	}
	return append(out, endpoint(location+rest, r.Insecure)), nil
}

// PushEndpoint returns where a repository is written to: mirrors are never.
func (c *Config) PushEndpoint(host, repository string) (Endpoint, error) {
	all, err := c.Endpoints(host, repository, false)
	if err != nil {
		return Endpoint{}, err
	}
	return all[len(all)-1], nil
}

func (r *rule) allows(m mirror, byDigest bool) bool {
	if r.MirrorByDigestOnly {
		return byDigest
	}
	switch m.PullFromMirror {
	case "digest-only":
		return byDigest
	case "tag-only":
		return !byDigest
	}
	return true
}

func endpoint(location string, insecure bool) Endpoint {
	host, repository, _ := strings.Cut(location, "/")
	return Endpoint{Host: CanonicalHost(host), Path: repository, Insecure: insecure}
}

// match finds the rule with the longest prefix of name, HOST/REPOSITORY, and the part of name that its prefix stands for.
func (c *Config) match(name string) (best *rule, matched string) {
	for i := range c.rules {
		r := &c.rules[i]
		if m, ok := r.matches(name); ok && (best == nil || len(r.Prefix) > len(best.Prefix)) {
			best, matched = r, m
		}
	}
	return best, matched
}

func (r *rule) matches(name string) (string, bool) {
	if wildcard, ok := strings.CutPrefix(r.Prefix, "*"); ok {
		host, _, _ := strings.Cut(name, "/")
		return host, strings.HasPrefix(wildcard, ".") && strings.HasSuffix(host, wildcard)
	}
	return r.Prefix, name == r.Prefix || strings.HasPrefix(name, r.Prefix+"/")
}
