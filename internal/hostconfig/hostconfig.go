// Package hostconfig reads what this machine's user and administrators have told programs about the network: indexes, mirrors,
// proxies, certificates. Steps of a build may be given it. It is never part of an image: it is seen under [Dir] while a command
// runs, and variables say where.
package hostconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// Dir is where commands find the files.
const Dir = "/run/sconce-host"

// Kinds are what can be asked for.
var Kinds = []string{"pip", CA, "npm", apt, "conda"}

// CA is the kind of the certificates that this machine trusts.
const CA = "ca"

const apt = "apt"

// maxFile bounds a file in bytes. Bundles of certificates have some 250 kB.
const maxFile = 4 << 20

// Config is what was found.
type Config struct {
	Kinds   []string // that were asked for and are there
	Files   []File
	Env     []string // KEY=VALUE
	Secrets [][]byte // passwords and tokens in Files and Env, which no log may show

	Mirrors debian.Mirrors // that apt goes to instead of where an image's own sources are: see [Config.WithSources]
}

// File is a file that commands see.
type File struct {
	Target  string // absolute
	Content []byte
	Program bool // it can be executed
}

// Has reports whether c has something of a kind. A nil c has nothing.
func (c *Config) Has(kind string) bool { return c != nil && slices.Contains(c.Kinds, kind) }

// Check returns an error for a kind that does not exist.
func Check(kinds []string) error {
	for _, kind := range kinds {
		if slices.Contains(Kinds, kind) {
			continue
		}
		text := fmt.Sprintf("host-config: there is no %q: it is some of %s", kind, strings.Join(Kinds, ", "))
		if near := spelling.Nearest(kind, Kinds); near != "" {
			text += fmt.Sprintf("; did you mean %s?", near)
		}
		return errors.New(text)
	}
	return nil
}

// A program reads one file, the first of those that exist, whose place a variable tells it.
type program struct {
	kind   string
	name   string   // of the file in [Dir]
	tells  string   // the variable that tells the program its place, here and there
	home   []string // below the home
	system []string // absolute
}

var programs = []program{
	{"pip", "pip.conf", "PIP_CONFIG_FILE", []string{".config/pip/pip.conf", ".pip/pip.conf"}, []string{"/etc/xdg/pip/pip.conf", "/etc/pip.conf"}},
	{"pip", "uv.toml", "UV_CONFIG_FILE", []string{".config/uv/uv.toml"}, []string{"/etc/xdg/uv/uv.toml", "/etc/uv/uv.toml"}},
	{"npm", "npmrc", "NPM_CONFIG_USERCONFIG", []string{".npmrc"}, []string{"/etc/npmrc"}},
	{"conda", "condarc", "CONDARC", []string{".condarc", ".conda/.condarc", ".config/conda/.condarc"}, []string{"/etc/conda/.condarc"}},
}

// indexes are variables that say where packages come from, instead of a file.
var indexes = []string{
	"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_FIND_LINKS", "PIP_PROXY",
	"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INSECURE_HOST",
}

// bundles are where distributions have the certificates they trust: Debian, Fedora and RHEL, SUSE, Alpine.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
}

// trust are the variables by which programs are told of certificates: OpenSSL, uv and Go, pip, Requests, curl, Git, Node, Cargo.
var trust = []string{
	"SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO",
}

// Load reads what this machine has of kinds. What it does not have is left out: see [Config.Has]. mirrors are those that a site or a user
// has named for distributions' packages; they go before those of this machine.
func Load(kinds []string, mirrors map[string]string) (*Config, error) {
	return load("/", kinds, mirrors)
}

// load takes the machine's own files from below root.
func load(root string, kinds []string, mirrors map[string]string) (*Config, error) {
	if err := Check(kinds); err != nil {
		return nil, err
	}
	c := &Config{}
	for _, p := range programs {
		if !slices.Contains(kinds, p.kind) {
			continue
		}
		if err := c.addFirst(p.kind, p.name, p.places(root), p.tells); err != nil {
			return nil, err
		}
	}
	if slices.Contains(kinds, "pip") {
		c.addVariables("pip", indexes)
	}
	if slices.Contains(kinds, CA) {
		if err := c.addFirst(CA, "ca.crt", places(root, "SSL_CERT_FILE", nil, bundles), trust...); err != nil {
			return nil, err
		}
	}
	if slices.Contains(kinds, apt) {
		c.addMirrors(root, mirrors)
	}
	if err := c.addApt(root, slices.Contains(kinds, apt)); err != nil {
		return nil, err
	}
	c.findSecrets()
	return c, nil
}

func (p program) places(root string) []string { return places(root, p.tells, p.home, p.system) }

// places lists where a file may be. The one that the variable named names is the only one.
func places(root, named string, home, system []string) []string {
	if file := os.Getenv(named); file != "" {
		return []string{file}
	}
	var all []string
	if dir, err := os.UserHomeDir(); err == nil {
		for _, name := range home {
			all = append(all, filepath.Join(dir, name))
		}
	}
	for _, name := range system {
		all = append(all, filepath.Join(root, name))
	}
	return all
}

// addFirst adds the first file that exists, and variables that name it.
func (c *Config) addFirst(kind, name string, from []string, variables ...string) error {
	for _, file := range from {
		content, err := read(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("host-config %s: %w", kind, err)
		}
		if kind == "npm" || kind == "conda" {
			content = expand(content)
		}
		c.addFile(kind, name, content, variables...)
		return nil
	}
	return nil
}

var variable = lazyregexp.New(`\$\{(\w+)\}`)

// expand replaces ${NAME} by what this environment has, as npm and conda do: a step's environment is another one.
func expand(content []byte) []byte {
	return variable.Regexp().ReplaceAllFunc(content, func(m []byte) []byte {
		if value, ok := os.LookupEnv(string(m[2 : len(m)-1])); ok {
			return []byte(value)
		}
		return m
	})
}

func (c *Config) addFile(kind, name string, content []byte, variables ...string) {
	target := path.Join(Dir, name)
	c.Files = append(c.Files, File{Target: target, Content: content})
	for _, v := range variables {
		c.Env = append(c.Env, v+"="+target)
	}
	c.add(kind)
}

func (c *Config) add(kind string) {
	if !c.Has(kind) {
		c.Kinds = append(c.Kinds, kind)
	}
}

func (c *Config) addVariables(kind string, names []string) {
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			c.Env = append(c.Env, name+"="+value)
			c.add(kind)
		}
	}
}

// aptProxy is what steps get of apt's configuration, apt.conf(5). The rest of it speaks of this machine: hooks, programs.
var aptProxy = lazyregexp.New(`(?im)^[ \t]*Acquire::(?:https?|ftp)::Proxy(?:::[\w.-]+)?[ \t]+"[^"\n]*"[ \t]*;`)

// addApt adds the proxies of apt, when wanted, and tells apt of the certificates, which it takes from no variable.
func (c *Config) addApt(root string, wanted bool) error {
	var lines []string
	if wanted {
		files, err := filepath.Glob(filepath.Join(root, "etc/apt/apt.conf.d/*"))
		if err != nil {
			return err
		}
		for _, file := range append(files, places(root, "APT_CONFIG", nil, []string{"/etc/apt/apt.conf"})...) {
			content, err := read(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("host-config apt: %w", err)
			}
			for _, line := range aptProxy.Regexp().FindAll(content, -1) {
				lines = append(lines, strings.TrimSpace(string(line)))
			}
		}
		if len(lines) > 0 {
			c.add(apt)
		}
	}
	if c.Has(CA) {
		lines = append(lines, fmt.Sprintf("Acquire::https::CaInfo %q;", path.Join(Dir, "ca.crt")))
	}
	c.addAptLines(lines...)
	return nil
}

// aptConf is apt's own file. It is read before all others of apt's.
var aptConf = path.Join(Dir, "apt.conf")

// addAptLines adds lines to it.
func (c *Config) addAptLines(lines ...string) {
	if len(lines) == 0 {
		return
	}
	text := []byte(strings.Join(lines, "\n") + "\n")
	if i := slices.IndexFunc(c.Files, func(f File) bool { return f.Target == aptConf }); i >= 0 {
		c.Files[i].Content = slices.Concat(c.Files[i].Content, text)
		return
	}
	c.Files = append(c.Files, File{Target: aptConf, Content: text})
	c.Env = append(c.Env, "APT_CONFIG="+aptConf)
}

// read reads a file. A directory, as some of apt's are, does not exist as a file.
func read(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: %w", name, fs.ErrNotExist)
	}
	return ctxio.ReadFile(name, maxFile)
}
