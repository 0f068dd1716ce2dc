package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Check says how images are judged on this machine, whatever their recipes say.
type Check struct {
	Allow   map[string]string // by the id of a rule, why what it finds is no error here; a recipe's own reasons go before
	Require map[string]string // by the id of a rule that nobody may allow, the file that says so
}

// check is the table.
type check struct {
	Allow   map[string]string `toml:"allow"`
	Require []string          `toml:"require"`
}

// addCheck takes what f says of checks. What one file requires, no other takes back; whether the rules exist is for others to say.
func (c *Config) addCheck(f file, path string) error {
	for _, rule := range slices.Sorted(maps.Keys(f.Check.Allow)) {
		reason := f.Check.Allow[rule]
		if strings.TrimSpace(reason) == "" {
			return fmt.Errorf("check.allow: %s: the reason is missing", rule)
		}
		if c.Check.Allow == nil {
			c.Check.Allow = map[string]string{}
		}
		c.Check.Allow[rule] = reason
	}
	for _, rule := range f.Check.Require {
		if c.Check.Require == nil {
			c.Check.Require = map[string]string{}
		}
		if c.Check.Require[rule] == "" {
			c.Check.Require[rule] = path
		}
	}
	return nil
}
