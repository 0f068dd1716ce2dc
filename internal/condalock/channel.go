package condalock

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
)

// usualAlias is where a channel is that is named by a single word, unless the configuration says otherwise.
const usualAlias = "https://conda.anaconda.org"

// usualDefaults are the channels that the word "defaults" stands for on Linux (conda's documentation, "default_channels").
var usualDefaults = []string{"https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r"}

// everybodys are channels whose names mean the same to everybody. Whoever configures another place for one has a mirror of it.
var everybodys = []string{"conda-forge", "bioconda", "nvidia", "pytorch", "rapidsai"}

// Channel is where packages come from.
type Channel struct {
	Name string // as the user wrote it, without login
	URL  string // for everybody: without login, and not a mirror's; no slash at the end
}

var (
	schemed = lazyregexp.New(`^[A-Za-z][A-Za-z0-9+.-]*://`)
	// channelName is what conda takes for a name (CEP 26), with what may be below it: conda-forge/label/rc.
	channelName = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)
)

// schemes are those that the solver speaks.
var schemes = []string{"http", "https", "file", "oci", "s3", "gcs"}

// Channels resolves the names of channels, addresses and paths, in order; each channel once. Paths are relative to dir. Logins in
// addresses are noted in c, for the solver and for downloads.
func (c *Config) Channels(names []string, dir string) ([]Channel, error) {
	var all []Channel
	for _, name := range names {
		found, err := c.channel(strings.TrimSpace(name), dir, 0)
		if err != nil {
			return nil, fmt.Errorf("channel %s: %w", withoutLogins(name), err)
		}
		for _, one := range found {
			if !slices.ContainsFunc(all, func(a Channel) bool { return a.URL == one.URL }) {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

// maxChannels bounds how deep channels stand for other channels.
const maxChannels = 8

func (c *Config) channel(name, dir string, depth int) ([]Channel, error) {
	if depth > maxChannels {
		return nil, errors.New("it stands for itself")
	}
	expanded, err := c.expand(name)
	if err == nil && expanded != name && depth == 0 {
		err = c.mayShow(name, expanded, dir)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case expanded == "":
		return nil, errors.New("it has no name")
	case schemed.MatchString(expanded):
		address, err := c.address(expanded)
		return []Channel{{withoutLogins(name), address}}, err
	case isPath(expanded):
		address := c.fileURL(expanded, dir)
		return []Channel{{name, address}}, checkRoot(address)
	}
	if several, ok := c.Multi[expanded]; ok {
		return c.several(several, dir, depth)
	}
	if expanded == "defaults" {
		if c.DefaultChannels != nil {
			return c.several(c.DefaultChannels, dir, depth)
		}
		return c.several(usualDefaults, dir, depth)
	}
	address, err := c.named(expanded, dir)
	return []Channel{{name, address}}, err
}

func (c *Config) several(names []string, dir string, depth int) ([]Channel, error) {
	var all []Channel
	for _, name := range names {
		found, err := c.channel(name, dir, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// named returns the address of a channel that is a word, such as conda-forge or conda-forge/label/rc.
func (c *Config) named(name, dir string) (string, error) {
	name = withoutSubdir(strings.Trim(name, "/"))
	if !channelName.MatchString(name) || strings.HasPrefix(name, "t/") { // a token needs the whole address
		return "", errors.New("it is not the name, the address or the path of a channel")
	}
	for part := name; part != "" && part != "."; part = parent(part) {
		at, ok := c.Custom[part]
		if !ok {
			continue
		}
		at, err := c.expand(at)
		if err != nil {
			return "", err
		}
		return c.placed(name, at, slices.Contains(everybodys, part), dir)
	}
	if strings.HasPrefix(name, "pkgs/") {
		return "https://repo.anaconda.com/" + name, nil
	}
	alias, err := c.expand(cmp.Or(c.Alias, usualAlias))
	if err != nil {
		return "", err
	}
	return c.placed(name, alias, true, dir)
}

// placed returns the address of the channel name below at. When others know it by its usual address, at is a mirror.
func (c *Config) placed(name, at string, isMirror bool, dir string) (string, error) {
	if isPath(at) {
		return c.fileURL(at, dir) + "/" + name, nil
	}
	address, err := c.address(strings.TrimRight(at, "/") + "/" + name)
	usual := usualAlias + "/" + name
	if err != nil || !isMirror || address == usual || !strings.HasPrefix(address, "http") {
		return address, err
	}
	if len(c.Mirrors[usual]) == 0 { // one that is configured as such goes before
		c.Mirrors[usual] = []string{address}
	}
	return usual, nil
}

// address returns an address as everybody may see it. The login in it is kept.
func (c *Config) address(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", errors.New("the address cannot be read")
	}
	if !slices.Contains(schemes, u.Scheme) {
		return "", fmt.Errorf("addresses of channels begin with %s://", strings.Join(schemes, "://, "))
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("the address has a query or a fragment")
	}
	if u.Scheme == "file" {
		address := (&url.URL{Scheme: "file", Path: channelPath(u.Path)}).String()
		return address, checkRoot(address)
	}
	if u.Host == "" {
		return "", errors.New("the address has no host")
	}
	u.Path, u.RawPath = path.Clean("/"+u.Path), ""
	if err := c.Logins.take(u); err != nil {
		return "", err
	}
	if tokenPath.MatchString(u.Path) {
		return "", errors.New("the address has two tokens")
	}
	u.Path, u.RawPath = channelPath(u.Path), ""
	return u.String(), nil
}

// checkRoot refuses the root directory, which has no address that could be told from others.
func checkRoot(address string) error {
	if !schemed.MatchString(address) {
		return errors.New("the root directory is not a channel")
	}
	return nil
}

// channelPath is the path of a channel in its shortest form.
func channelPath(p string) string {
	return strings.TrimRight(withoutSubdir(path.Clean("/"+p)), "/")
}

func isPath(name string) bool {
	return strings.HasPrefix(name, "/") || strings.HasPrefix(name, "~") || name == "." || name == ".." ||
		strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../")
}

func (c *Config) fileURL(place, dir string) string {
	if rest, ok := strings.CutPrefix(place, "~"); ok && (rest == "" || rest[0] == '/') {
		place = c.variable("HOME") + rest
	}
	if !filepath.IsAbs(place) {
		place = filepath.Join(dir, place)
	}
	if abs, err := filepath.Abs(place); err == nil {
		place = abs
	}
	return (&url.URL{Scheme: "file", Path: channelPath(place)}).String()
}

var subdirName = lazyregexp.New(`^(noarch|(linux|osx|win|freebsd|zos|emscripten|wasi)-[a-z0-9_]+)$`)

// withoutSubdir takes the platform from the end of a channel, which some write.
func withoutSubdir(path string) string {
	if before, last, ok := cutLast(path, "/"); ok && before != "" && subdirName.MatchString(last) {
		return before
	}
	return path
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func parent(name string) string {
	before, _, found := cutLast(name, "/")
	if !found {
		return ""
	}
	return before
}

var variableUse = lazyregexp.New(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

// expand puts in the values of variables, as conda does in channels and configuration files: $NAME and ${NAME}.
func (c *Config) expand(text string) (string, error) {
	var missing string
	text = variableUse.ReplaceAllStringFunc(text, func(use string) string {
		m := variableUse.FindStringSubmatch(use)
		name := m[1] + m[2]
		value, ok := c.lookup(name)
		if !ok || value == "" {
			missing = name
		}
		return value
	})
	if missing != "" {
		return "", fault.Hint(fmt.Errorf("it needs the variable %s, which is not set", missing), fmt.Sprintf("set it: export %s=…", quote.Word(missing)))
	}
	return text, nil
}

// mayShow refuses a channel that shows variables to a server which nothing of the user's own configuration names, or that is a directory
// which the recipe may not name: name may be a stranger's. The error has no variable in it.
func (c *Config) mayShow(name, expanded, dir string) error {
	if slices.Contains(c.Usual, name) {
		return nil
	}
	if isPath(expanded) || strings.HasPrefix(strings.ToLower(expanded), "file:") {
		if err := c.Reach.CheckAddress(expanded, dir); err != nil {
			return fault.Hint(errors.New("with its variables replaced, it is outside of what the recipe may read"),
				"if you trust the recipe, name the directory with --allow-path DIRECTORY, or in allow-paths of config.toml")
		}
		return nil
	}
	u, err := url.Parse(expanded)
	if err == nil && (u.Host == "" || c.names(u)) {
		return nil
	}
	host := "HOST"
	if u, err := url.Parse(name); err == nil && u.Host != "" && !strings.Contains(u.Host, "$") {
		host = u.Host
	}
	return fault.Hint(errors.New("its variables are not replaced: only the recipe names that host"),
		fmt.Sprintf("if the host may see them, add `--allow-login %s`, or logins = [%q] under [network] in config.toml", host, host))
}

// names reports whether the user's configuration names the server of an address.
func (c *Config) names(u *url.URL) bool {
	if _, ok := c.Logins.entries[u.Hostname()]; ok {
		return true
	}
	own := slices.Concat([]string{c.Alias}, c.Usual, c.DefaultChannels, slices.Collect(maps.Values(c.Custom)))
	for _, list := range slices.Concat(slices.Collect(maps.Values(c.Multi)), slices.Collect(maps.Values(c.Mirrors))) {
		own = append(own, list...)
	}
	for _, text := range own {
		if expanded, err := c.expand(text); err == nil {
			if at, err := url.Parse(expanded); err == nil && strings.EqualFold(at.Host, u.Host) {
				return true
			}
		}
	}
	return slices.ContainsFunc(c.Hosts, func(host string) bool {
		return strings.EqualFold(host, u.Hostname()) || strings.EqualFold(host, u.Host)
	})
}

// licensed are the hosts and channels whose packages are under Anaconda's terms of service (their "Platform terms", and the FAQ
// on commercial use).
func licensed(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	switch u.Hostname() {
	case "repo.anaconda.com", "repo.continuum.io":
		return true
	case "conda.anaconda.org", "api.anaconda.org":
		return slices.Contains([]string{"anaconda", "main", "r", "msys2", "free", "pro"}, first)
	}
	return false
}

// checkLicenses says what using Anaconda's own channels means. It is an error unless the user has accepted it.
func checkLicenses(channels []Channel, accepted bool) ([]Warning, error) {
	for _, c := range channels {
		if !licensed(c.URL) {
			continue
		}
		text := fmt.Sprintf("channel %s (%s): Anaconda's terms of service ask organisations of 200 people or more for a paid licence, with exceptions for teaching and research",
			c.Name, c.URL)
		if accepted {
			return []Warning{{Text: text}}, nil
		}
		return nil, &LicenseError{text}
	}
	return nil, nil
}

// LicenseError says that a channel has terms of use which the user has not accepted.
type LicenseError struct{ text string }

func (e *LicenseError) Error() string { return e.text }

// Hint says what to do about it, in a recipe.
func (e *LicenseError) Hint() string { return e.HintWith("accept-licenses = true under [conda]") }

// HintWith says what to do about it where this accepts the terms.
func (e *LicenseError) HintWith(accepts string) string {
	return "take conda-forge, which has nearly all of the same packages; or accept the terms: " + accepts
}
