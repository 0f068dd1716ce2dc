package engine

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tomltext"
)

// Settings are what counts on this machine for every command: what a flag says, else the environment, else the configuration.
type Settings struct {
	Config config.Config
	Store  string // the directory that a flag names; "": none does
}

// variables stand in for keys of the configuration.
var variables = map[string]string{
	"store": "SCONCE_STORE", "shared-stores": "SCONCE_SHARED_STORES", "store-size": "SCONCE_STORE_SIZE",
	"scratch": "SCONCE_SCRATCH", "patience": "SCONCE_PATIENCE", "progress": "SCONCE_PROGRESS",
}

// variable is what stands in for a key. One that is empty says nothing, but that there are no shared stores.
func variable(key string) (value string, set bool) {
	value, set = os.LookupEnv(variables[key])
	return value, set && (value != "" || key == "shared-stores")
}

// List is what counts, without flags: what files say, and variables in place of them, each with who says so.
func (s Settings) List() []config.Setting {
	all := []config.Setting{} // [] rather than null
	for _, said := range s.Config.Settings {
		if _, set := variable(said.Key); !set {
			all = append(all, said)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(variables)) {
		if value, set := variable(key); set {
			all = append(all, config.Setting{Key: key, Value: tomltext.String(value), From: variables[key]})
		}
	}
	return all
}

// Dir is where the store is, which need not exist.
func (s Settings) Dir() (string, error) {
	if s.Store != "" {
		return s.Store, nil
	}
	if s.Config.Store != "" && os.Getenv("SCONCE_STORE") == "" {
		return s.Config.Store, nil
	}
	return store.DefaultDir()
}

// Shared are the directories of the stores that are asked for what the store lacks.
func (s Settings) Shared() []string {
	if _, given := os.LookupEnv("SCONCE_SHARED_STORES"); !given && s.Config.SharedStores != nil {
		return *s.Config.SharedStores
	}
	return store.SharedDirs()
}

// Scratch is the directory of a local disk that somebody has named for what is unpacked, and who that was; "" when nobody has.
func (s Settings) Scratch() (dir, by string) {
	if value, set := variable("scratch"); set {
		return value, variables["scratch"]
	}
	return s.Config.Scratch, "the configuration"
}

// usualSize is how much of its disk the store may hold when nobody says.
var usualSize = config.Size{Share: 0.5}

// Limits are how much the store may hold, and the policy that is in it. $SCONCE_STORE_SIZE goes before the policy, and that before the files.
func (s Settings) Limits(st *store.Store) (store.Limits, config.Policy, error) {
	p, err := config.LoadPolicy(st.Dir())
	if err != nil {
		return store.Limits{}, p, err
	}
	var l store.Limits
	if p.UserSize > 0 || len(p.Users) > 0 {
		l.OfUser = p.OfUser
	}
	size := *cmp.Or(p.MaxSize, s.Config.StoreSize, &usualSize)
	if text := os.Getenv("SCONCE_STORE_SIZE"); text != "" {
		if size, err = config.ParseSize(text); err != nil {
			return l, p, fault.Usage(fmt.Errorf("SCONCE_STORE_SIZE %q: %w", text, err))
		}
	}
	l.Bytes = size.Of(host.FileSystemOf(st.Dir()).Size)
	return l, p, nil
}
