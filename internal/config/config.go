// Package config reads what a site and a user decide once, for every command: /etc/sconce/config.toml, and above it
// $XDG_CONFIG_HOME/sconce/config.toml (~/.config/sconce/config.toml). Flags and variables of the environment go before both.
//
// Nothing here changes what an image holds, nor its digest: these are decided by recipe and lock alone. What is decided here is where
// things are kept and come from, how files that hold an image are written, and what of an image is accepted.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/tomltext"
)

// Config is what the files say. The zero value of a field says nothing.
type Config struct {
	Store        string    // directory of the store
	SharedStores *[]string // directories of further stores, which are only read; nil: nothing is said
	StoreSize    *Size     // how much the store may hold
	Patience     string    // as --patience
	Progress     string    // as --progress
	HostConfig   *[]string // as --host-config; nil: nothing is said
	Unpack       string    // as sconce run's --unpack
	Images       string    // directory of a site's mirror of images
	Scratch      string    // directory on a local disk for what is unpacked and what steps write
	AllowPaths   []string  // what recipes may read besides their own directories, as --allow-path; each file adds to it

	Keys *[]attest.Trusted // public keys, as --key of commands that need one; nil: nothing is said

	LoginHosts []string // hosts that may see logins although only a recipe names them: HOST or HOST:PORT
	CacheRead  []string // registries and repositories, HOST or HOST/PATH, that are read where a recipe's [cache] names them
	CachePush  []string // likewise, those to which what is built is sent; they are read as well

	Mirrors map[string]string // addresses of mirrors by archive, one of mirrors
	UV      *UV               // the release of uv to use; nil: nothing is said
	Files   Files
	Check   Check

	Read     []string  // the files that were read, the later one wins
	Settings []Setting // what they say, that of the winning file for each key
}

// file is one file. Pointers tell "empty" from "not said".
type file struct {
	Store        *string   `toml:"store"`
	SharedStores *[]string `toml:"shared-stores"`
	StoreSize    *string   `toml:"store-size"`
	Patience     *string   `toml:"patience"`
	Progress     *string   `toml:"progress"`
	HostConfig   *[]string `toml:"host-config"`
	Unpack       *string   `toml:"unpack"`
	Images       *string   `toml:"images"`
	Scratch      *string   `toml:"scratch"`
	Keys         *[]any    `toml:"keys"` // strings, and tables as attest.Trusted has them
	AllowPaths   []string  `toml:"allow-paths"`

	Mirrors map[string]string `toml:"mirrors"`
	UV      *UV               `toml:"uv"`
	Files   files             `toml:"files"`
	Check   check             `toml:"check"`
	Network network           `toml:"network"`
	Cache   cache             `toml:"cache"`
}

// keys are those of a file.
var keys = []string{
	"store", "shared-stores", "store-size", "patience", "progress", "host-config", "unpack", "images", "scratch", "keys", "allow-paths",
	"mirrors", "uv", "files", "check", "network", "cache",
}

// innerKeys are those of its tables.
var innerKeys = []string{"mirrors", "uv.version", "uv.sha256", "files.compression", "files.level", "files.block-size", "check.allow", "check.require", "network.logins", "cache.read", "cache.push"}

// The values of the key unpack: when the layers of an image are unpacked that a command runs in.
const (
	UnpackBehind = "behind" // while the command runs, which begins at once
	UnpackFirst  = "first"  // before it
	UnpackNever  = "never"  // not at all
)

// UnpackModes are all of them, the default first.
var UnpackModes = []string{UnpackBehind, UnpackFirst, UnpackNever}

// mirrors are the archives whose mirrors can be named.
var mirrors = []string{"debian", "debian-security", "ubuntu", "ubuntu-security", "rocky", "alma", "fedora", "opensuse"}

// Site is the file of the machine's administrators.
const Site = "/etc/sconce/config.toml"

// maxFile bounds a file in bytes.
const maxFile = 64 << 10

// Load reads the files that exist. $SCONCE_CONFIG names the only one to read; set and empty, none is read. Errors are of exit
// code 2 and name file and line.
func Load() (Config, error) {
	var c Config
	for _, path := range places() {
		err := c.add(path)
		if err != nil && (!errors.Is(err, fs.ErrNotExist) || os.Getenv("SCONCE_CONFIG") != "") {
			return c, fault.Usage(fmt.Errorf("configuration %s: %w", path, err))
		}
	}
	return c, nil
}

func places() []string {
	if only, given := os.LookupEnv("SCONCE_CONFIG"); given {
		if only == "" {
			return nil
		}
		return []string{only}
	}
	all := []string{Site}
	if dir, err := os.UserConfigDir(); err == nil && filepath.IsAbs(dir) { // a relative one would be that of whoever's directory this is
		all = append(all, filepath.Join(dir, "sconce", "config.toml"))
	}
	return all
}

// Own is the file in which this user says something, whatever else is read before it.
func Own() string {
	all := places()
	if len(all) == 0 {
		return Site
	}
	return all[len(all)-1]
}

// add reads a file on top of what the ones before it say.
func (c *Config) add(path string) error {
	var f file
	data, err := read(path, &f, append(slices.Clone(keys), innerKeys...))
	if err != nil {
		return err
	}
	c.Read = append(c.Read, path)
	if f.UV != nil {
		f.UV.File = path
	}
	for _, part := range []func(file) error{c.addStores, c.addManners, c.addMirrors, c.addUV, c.addFiles, c.addRecipes} {
		if err := part(f); err != nil {
			return err
		}
	}
	return errors.Join(c.addCheck(f, path), c.remember(data, path))
}

// addStores takes what f says of directories and sizes.
func (c *Config) addStores(f file) error {
	var err error
	if f.Store != nil {
		if c.Store, err = directory("store", *f.Store); err != nil {
			return err
		}
	}
	if f.SharedStores != nil {
		if c.SharedStores, err = paths("shared-stores", *f.SharedStores); err != nil {
			return err
		}
	}
	if f.Keys != nil {
		if c.Keys, err = trusted(*f.Keys); err != nil {
			return err
		}
	}
	allowed, err := paths("allow-paths", f.AllowPaths)
	if err != nil {
		return err
	}
	c.AllowPaths = append(c.AllowPaths, *allowed...)
	if f.Scratch != nil {
		if c.Scratch, err = directory("scratch", *f.Scratch); err != nil {
			return err
		}
	}
	if f.StoreSize != nil {
		size, err := ParseSize(*f.StoreSize)
		if err != nil {
			return fmt.Errorf("store-size: %w", err)
		}
		c.StoreSize = &size
	}
	if f.Images != nil {
		c.Images, err = directory("images", *f.Images)
	}
	return err
}

// addManners takes what f says of how commands go about their work.
func (c *Config) addManners(f file) error {
	if f.Patience != nil {
		if d, err := time.ParseDuration(*f.Patience); err != nil || d <= 0 {
			return fmt.Errorf("patience %q: it is a time like 90s, 20m or 1h", *f.Patience)
		}
		c.Patience = *f.Patience
	}
	if f.HostConfig != nil {
		if err := hostconfig.Check(*f.HostConfig); err != nil {
			return err
		}
		c.HostConfig = f.HostConfig
	}
	if f.Progress != nil {
		c.Progress = *f.Progress
	}
	if f.Unpack != nil {
		if !slices.Contains(UnpackModes, *f.Unpack) {
			return fmt.Errorf("unpack %q: it is one of %s", *f.Unpack, strings.Join(UnpackModes, ", "))
		}
		c.Unpack = *f.Unpack
	}
	return nil
}

// paths is directory for each of several.
func paths(key string, said []string) (*[]string, error) {
	all := make([]string, len(said))
	for i, path := range said {
		var err error
		if all[i], err = directory(key, path); err != nil {
			return nil, err
		}
	}
	return &all, nil
}

// trusted reads the list of public keys: each is a file, or a table that names one and says how long it counts.
func trusted(said []any) (*[]attest.Trusted, error) {
	all := make([]attest.Trusted, len(said))
	for i, one := range said {
		if path, ok := one.(string); ok {
			one = map[string]any{"key": path}
		}
		table, ok := one.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("keys: entry %d is neither a path nor a table", i+1)
		}
		for key := range table {
			if !slices.Contains(trustKeys, key) {
				hint := "the keys are " + strings.Join(trustKeys, ", ")
				if near := spelling.Nearest(key, trustKeys); near != "" {
					hint = fmt.Sprintf("did you mean %q?", near)
				}
				return nil, fault.Hint(fmt.Errorf("keys: entry %d: unknown key %q", i+1, key), hint)
			}
		}
		t := &all[i]
		data, err := toml.Marshal(table)
		if err == nil {
			err = toml.Unmarshal(data, t)
		}
		if err != nil {
			return nil, fmt.Errorf("keys: entry %d: since, until, key and comment are strings, and revoked is true or false", i+1)
		}
		if !strings.Contains(t.Key, "-----BEGIN ") && !strings.HasPrefix(t.Key, "env:") {
			if t.Key, err = directory("keys", t.Key); err != nil {
				return nil, err
			}
		}
		if err := t.CheckDays(); err != nil {
			return nil, fmt.Errorf("keys: %s: %w", t.Name(), err)
		}
	}
	return &all, nil
}

// trustKeys are those of an entry of keys.
var trustKeys = []string{"key", "since", "until", "revoked", "comment"}

// read reads a file of some keys into the struct into, and returns its text as well.
func read(path string, into any, keys []string) ([]byte, error) {
	data, err := ctxio.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	return data, tomltext.Decode(data, into, keys, func(key string) string { return spelling.Nearest(key, keys) })
}

// directory replaces variables, as $USER, and a leading ~. An administrator's file speaks of directories of whoever reads it, so
// a variable that is not set is an error and not an empty word.
func directory(key, path string) (string, error) {
	var missing string
	out := os.Expand(path, func(name string) string {
		value, ok := os.LookupEnv(name)
		if !ok || value == "" {
			missing = name
		}
		return value
	})
	if missing != "" {
		return "", fmt.Errorf("%s = %q: the variable %s is not set", key, path, missing)
	}
	if rest, ok := strings.CutPrefix(out, "~"); ok && (rest == "" || rest[0] == '/') {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%s = %q: %w", key, path, err)
		}
		out = home + rest
	}
	if !filepath.IsAbs(out) {
		return "", fmt.Errorf("%s = %q: it must be an absolute path, or begin with ~ or a variable", key, path)
	}
	return filepath.Clean(out), nil
}

// addMirrors puts mirrors above those that are known.
func (c *Config) addMirrors(f file) error {
	for _, archive := range slices.Sorted(maps.Keys(f.Mirrors)) {
		address := f.Mirrors[archive]
		if !slices.Contains(mirrors, archive) {
			return fmt.Errorf("mirrors: there is no archive %q: they are %s", archive, strings.Join(mirrors, ", "))
		}
		u, err := url.Parse(address)
		if err != nil || !slices.Contains([]string{"http", "https", "file"}, u.Scheme) || u.User != nil || strings.ContainsAny(address, " \t\n") {
			return fmt.Errorf("mirrors: %s = %q is not the address of a mirror: http://…, https://… or file://…, without user and password", archive, address)
		}
		if c.Mirrors == nil {
			c.Mirrors = map[string]string{}
		}
		c.Mirrors[archive] = address
	}
	return nil
}
