package config

import (
	"fmt"

	"sconce.dev/sconce/internal/lazyregexp"
)

// What recipes, which may be other people's, do with what is this user's.

// network and cache are the tables.
type (
	network struct {
		Logins *[]string `toml:"logins"`
	}
	cache struct {
		Read *[]string `toml:"read"`
		Push *[]string `toml:"push"`
	}
)

// The forms of a host, and of a repository or what it begins with.
const (
	formHost       = `^[A-Za-z0-9._-]+(:[0-9]+)?$`
	formRepository = `^[A-Za-z0-9._-]+(:[0-9]+)?(/[a-z0-9._-]+)*$`
)

var (
	isHost       = lazyregexp.New(formHost)
	isRepository = lazyregexp.New(formRepository)
)

// CheckHost says what is wrong with the name of a host, with or without a port.
func CheckHost(host string) error {
	if !isHost.MatchString(host) {
		return fmt.Errorf("%q is not a host: write HOST or HOST:PORT", host)
	}
	return nil
}

// addRecipes takes what f lets recipes do.
func (c *Config) addRecipes(f file) error {
	if said := f.Network.Logins; said != nil {
		for _, host := range *said {
			if err := CheckHost(host); err != nil {
				return fmt.Errorf("network.logins: %w", err)
			}
		}
		c.LoginHosts = *said
	}
	if err := addRepositories(&c.CacheRead, "cache.read", f.Cache.Read); err != nil {
		return err
	}
	return addRepositories(&c.CachePush, "cache.push", f.Cache.Push)
}

// addRepositories takes what a file says under a key that lists registries and repositories.
func addRepositories(to *[]string, key string, said *[]string) error {
	if said == nil {
		return nil
	}
	for _, repository := range *said {
		if !isRepository.MatchString(repository) {
			return fmt.Errorf("%s: %q is not a registry or a repository: write HOST or HOST/PATH", key, repository)
		}
	}
	*to = *said
	return nil
}
