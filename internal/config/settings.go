package config

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/pelletier/go-toml/v2"
)

// Setting is a key as a file has it.
type Setting struct {
	Key   string `json:"key"`   // "mirrors.debian"
	Value string `json:"value"` // as it is written, more or less: "\"gzip\""
	From  string `json:"from"`  // the file
}

// remember lists what a file says, in place of what earlier ones say of the same keys.
func (c *Config) remember(data []byte, path string) error {
	var said map[string]any
	if err := toml.Unmarshal(data, &said); err != nil {
		return err
	}
	for _, s := range flatten("", said) {
		s.From = path
		binding := s.Key == "check.require" || s.Key == "allow-paths" // which add to what is said already
		replaced := s.Key == "files.compression"
		c.Settings = slices.DeleteFunc(c.Settings, func(old Setting) bool {
			return old.Key == s.Key && !binding || replaced && old.Key == "files.level"
		})
		c.Settings = append(c.Settings, s)
	}
	return nil
}

// flatten lists the keys of a table, sorted.
func flatten(above string, table map[string]any) []Setting {
	var all []Setting
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if inner, ok := table[key].(map[string]any); ok {
			all = append(all, flatten(above+key+".", inner)...)
			continue
		}
		value, err := json.Marshal(table[key]) // strings, numbers and arrays look alike in TOML
		if err == nil {
			all = append(all, Setting{Key: above + key, Value: string(value)})
		}
	}
	return all
}
