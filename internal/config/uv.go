package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// UV is the release of uv to use in place of the one on PATH or the one that comes by itself.
type UV struct {
	Version string            `toml:"version"`
	SHA256  map[string]string `toml:"sha256"` // of its wheels for musl, in hexadecimal, by architecture as Go names it

	File string `toml:"-"` // that says so
}

// uvArchitectures are those that sconce is made for.
var uvArchitectures = []string{"amd64", "arm64"}

// The forms of what [uv] says.
const (
	formVersion = `^[0-9]+([.][0-9]+)*((a|b|rc|[.]post|[.]dev)[0-9]+)?$`
	formSHA256  = `^[0-9a-f]{64}$`
)

var (
	isVersion = lazyregexp.New(formVersion)
	isSHA256  = lazyregexp.New(formSHA256)
)

// addUV takes the release of f, which replaces one that is known with all its hashes.
func (c *Config) addUV(f file) error {
	if f.UV == nil {
		return nil
	}
	if err := f.UV.check(); err != nil {
		return fmt.Errorf("uv: %w", err)
	}
	c.UV = f.UV
	return nil
}

func (u *UV) check() error {
	if !isVersion.MatchString(u.Version) {
		return fmt.Errorf(`version = %q is not a release, as "0.13.8" is`, u.Version)
	}
	if len(u.SHA256) == 0 {
		return errors.New(`sha256 is missing: sha256 = { amd64 = "…" }, the hash of the wheel for musl that the index has`)
	}
	for _, arch := range slices.Sorted(maps.Keys(u.SHA256)) {
		if !slices.Contains(uvArchitectures, arch) {
			return fmt.Errorf("sha256: there is no architecture %q: they are %s", arch, strings.Join(uvArchitectures, ", "))
		}
		if !isSHA256.MatchString(u.SHA256[arch]) {
			return fmt.Errorf("sha256: %s = %q is not a hash of 64 hexadecimal digits", arch, u.SHA256[arch])
		}
	}
	return nil
}
