package engine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/reach"
)

// ReadHost says what commands of builds may see of this machine's configuration. What flags ask for must be there, and is all; what
// the configuration and a recipe ask for is what users may have.
func ReadHost(flags []string, site config.Config) (HostFunc, error) {
	c, err := hostconfig.Load(flags, site.Mirrors)
	if err != nil {
		return nil, err
	}
	for _, kind := range flags {
		if !c.Has(kind) {
			return nil, fmt.Errorf("--host-config %s: this machine has no configuration of it for you", kind)
		}
	}
	if flags != nil {
		return func([]string) (*hostconfig.Config, error) { return c, nil }, nil
	}
	var usual []string
	if site.HostConfig != nil {
		usual = *site.HostConfig
	}
	return func(asked []string) (*hostconfig.Config, error) {
		return hostconfig.Load(slices.Concat(usual, asked), site.Mirrors)
	}, nil
}

// AllowPaths lets everything that is read from now on reach what the user has named: by flags, in a configuration, or as a mirror there.
func AllowPaths(flags []string, c config.Config) {
	allowed := slices.Concat(flags, c.AllowPaths)
	for _, address := range c.Mirrors {
		if strings.HasPrefix(address, "file://") {
			allowed = append(allowed, reach.Local(address, "/")...)
		}
	}
	reach.Allow(allowed)
}

// maxSecret bounds a secret in bytes, as BuildKit does.
const maxSecret = 500 << 10

// ReadSecret reads a secret from a variable, or else from a file.
func ReadSecret(file, variable string) ([]byte, error) {
	if variable == "" {
		return ctxio.ReadFile(file, maxSecret)
	}
	value, ok := os.LookupEnv(variable)
	if !ok {
		return nil, errors.New("the variable " + variable + " is not set")
	}
	return []byte(value), nil
}
