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
// the configuration asks for is what users may have. A recipe may be somebody else's, and all but certificates may hold logins: of that
// it gets nothing that the user has not asked for.
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
		return func([]string) (*hostconfig.Config, []string, error) { return c, nil, nil }, nil
	}
	var usual []string
	if site.HostConfig != nil {
		usual = *site.HostConfig
	}
	return func(asked []string) (shown *hostconfig.Config, withheld []string, err error) {
		all, err := hostconfig.Load(asked, site.Mirrors)
		if err != nil {
			return nil, nil, err
		}
		kinds := slices.Clone(usual)
		for _, kind := range asked {
			switch {
			case kind == hostconfig.CA:
				kinds = append(kinds, kind)
			case all.Has(kind) && !slices.Contains(usual, kind):
				withheld = append(withheld, kind)
			}
		}
		shown, err = hostconfig.Load(kinds, site.Mirrors)
		return shown, withheld, err
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
