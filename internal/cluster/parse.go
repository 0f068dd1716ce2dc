package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/tomltext"
)

// parse reads a profile. Keys that it does not know are errors, and so are values that nothing could be judged by.
func parse(data []byte) (Profile, error) {
	var f file
	known := make([]string, len(keys))
	for i, k := range keys {
		known[i] = k.Name
	}
	meant := func(key string) string { return nearest(key, slices.Concat(known, tables())) }
	if err := tomltext.Decode(data, &f, known, meant); err != nil {
		return Profile{}, err
	}
	if err := f.readEnv(); err != nil {
		return Profile{}, err
	}
	err := f.Normalize()
	return f.Profile, err
}

// file is a profile as a file has it, in which [env] holds variables and the table [env.uenv].
type file struct {
	Profile
	Env map[string]any `toml:"env"`
}

// readEnv takes the variables of [env] and those of [env.uenv] apart.
func (f *file) readEnv() error {
	uenv, _ := f.Env["uenv"].(map[string]any)
	if uenv != nil {
		delete(f.Env, "uenv")
	}
	var err error
	if f.Profile.Env, err = texts("env", f.Env); err == nil {
		f.EnvUenv, err = texts(envUenv, uenv)
	}
	return err
}

// texts wants all values of a table to be strings.
func texts(table string, values map[string]any) (map[string]string, error) {
	if len(values) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch value := values[name].(type) {
		case string:
			out[name] = value
		case map[string]any:
			return nil, fault.Hint(fmt.Errorf("unknown table [%s.%s]", table, name), "the only table in [env] is [env.uenv]")
		default:
			return nil, fault.Hint(fmt.Errorf("%s.%s must be a string", table, name), fmt.Sprintf("write %s = \"%v\"", name, value))
		}
	}
	return out, nil
}

// tables are the names of the tables in a profile.
func tables() []string {
	var names []string
	for _, k := range keys {
		if in, _, ok := strings.Cut(k.Name, "."); ok && !slices.Contains(names, in) {
			names = append(names, in)
		}
	}
	return names
}

// nearest is the key that an unknown one was meant for: one that is spelt alike, or one of the same name in a table.
func nearest(key string, known []string) string {
	if near := spelling.Nearest(key, known); near != "" {
		return near
	}
	name := key[strings.LastIndex(key, ".")+1:]
	i := slices.IndexFunc(known, func(k string) bool { return k[strings.LastIndex(k, ".")+1:] == name })
	if i < 0 {
		return ""
	}
	return known[i]
}

// Normalize writes the GPUs as "9.0", and says which field holds something that nothing could be judged by. Fields are named as
// in a file.
func (p *Profile) Normalize() error {
	if len(p.GPU) > 0 {
		gpus, err := fatbin.ParseGPUs(p.GPU)
		if err != nil {
			return fmt.Errorf("gpu: %w", err)
		}
		p.GPU = nil
		for _, sm := range gpus {
			p.GPU = append(p.GPU, fatbin.Capability(sm))
		}
	}
	var all []error
	for _, k := range keys {
		all = append(all, k.check(p))
	}
	return errors.Join(all...)
}
