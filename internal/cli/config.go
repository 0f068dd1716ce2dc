package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tomltext"
	"sconce.dev/sconce/internal/units"
)

// defaultStoreSize is how much of its disk the store may hold when nobody says.
var defaultStoreSize = config.Size{Share: 0.5}

// configure reads what site and user decide for every command. What a flag or the environment says goes before it.
func (a *app) configure(cmd *cobra.Command) error {
	var err error
	if a.config, err = config.Load(); err != nil {
		return err
	}
	if a.flags.patience == "" {
		a.flags.patience = a.config.Patience
	}
	if a.config.Progress != "" && os.Getenv("SCONCE_PROGRESS") == "" && !cmd.Flags().Changed("progress") {
		a.flags.progress = a.config.Progress
	}
	configureFiles(cmd, a.config.Files)
	return nil
}

// variables stand in for keys of the configuration.
var variables = map[string]string{
	"store": "SCONCE_STORE", "shared-stores": "SCONCE_SHARED_STORES", "store-size": "SCONCE_STORE_SIZE",
	"scratch": "SCONCE_SCRATCH", "patience": "SCONCE_PATIENCE", "progress": "SCONCE_PROGRESS",
}

// settings lists what counts on this machine: what files say, and variables in place of them.
func (a *app) settings() []config.Setting {
	all := []config.Setting{} // [] rather than null
	for _, s := range a.config.Settings {
		if _, set := variable(s.Key); !set {
			all = append(all, s)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(variables)) {
		if value, set := variable(key); set {
			all = append(all, config.Setting{Key: key, Value: tomltext.String(value), From: variables[key]})
		}
	}
	return all
}

// variable is what stands in for a key. One that is empty says nothing, but that there are no shared stores.
func variable(key string) (value string, set bool) {
	value, set = os.LookupEnv(variables[key])
	return value, set && (value != "" || key == "shared-stores")
}

// scratchDir is the directory of a local disk that somebody has named for what is unpacked; "" when nobody has.
func (a *app) scratchDir() string {
	return cmp.Or(os.Getenv("SCONCE_SCRATCH"), a.config.Scratch)
}

// believed are the keys whose evidence counts, as flags or else the configuration has them.
func (a *app) believed(flags []string) []string {
	if len(flags) == 0 && a.config.Keys != nil {
		return *a.config.Keys
	}
	return flags
}

// storeDir is where the store is, which need not exist.
func (a *app) storeDir() (string, error) {
	if a.flags.store != "" {
		return a.flags.store, nil
	}
	if a.config.Store != "" && os.Getenv("SCONCE_STORE") == "" {
		return a.config.Store, nil
	}
	return store.DefaultDir()
}

// sharedDirs are the stores that are asked for what the store lacks.
func (a *app) sharedDirs() []string {
	if _, given := os.LookupEnv("SCONCE_SHARED_STORES"); !given && a.config.SharedStores != nil {
		return *a.config.SharedStores
	}
	return store.SharedDirs()
}

// storeLimits is how much the store may hold. $SCONCE_STORE_SIZE goes before the store's policy, and that before the files.
func (a *app) storeLimits(st *store.Store) (store.Limits, config.Policy, error) {
	p, err := config.LoadPolicy(st.Dir())
	if err != nil {
		return store.Limits{}, p, err
	}
	var l store.Limits
	if p.UserSize > 0 || len(p.Users) > 0 {
		l.OfUser = p.OfUser
	}
	l.Bytes, err = a.storeLimit(st.Dir(), p)
	return l, p, err
}

// storeLimit is how much the store in dir may hold, in bytes; 0 is no limit.
func (a *app) storeLimit(dir string, p config.Policy) (int64, error) {
	size := defaultStoreSize
	switch {
	case p.MaxSize != nil:
		size = *p.MaxSize
	case a.config.StoreSize != nil:
		size = *a.config.StoreSize
	}
	if text := os.Getenv("SCONCE_STORE_SIZE"); text != "" {
		var err error
		if size, err = config.ParseSize(text); err != nil {
			return 0, fault.Usage(fmt.Errorf("SCONCE_STORE_SIZE %q: %w", text, err))
		}
	}
	return size.Of(host.FileSystemOf(dir).Size), nil
}

// tidy keeps the store within its limit, now that the command is done. Its own trouble is a warning: what was asked for is there.
func (a *app) tidy(ctx context.Context, s *engine.Session) {
	if ctx.Err() != nil {
		return
	}
	ctx = progress.With(ctx, a.view)
	limits, _, err := a.storeLimits(s.Store)
	if err != nil {
		progress.Warn(ctx, err.Error(), "")
		return
	}
	r, _, err := s.Store.KeepWithin(ctx, limits)
	limit := limits.Bytes
	if len(r.Over) > 0 {
		limit = limits.OfUser(r.Over[0].UID)
		progress.Warn(ctx, fmt.Sprintf("what you have in the store %s is %s, above your limit of %s: named images need it", s.Store.Dir(), units.Size(r.Over[0].Bytes), units.Size(limit)),
			"`sconce images rm` takes names away; "+config.PolicyFile+" in the store sets the limit")
		return
	}
	switch {
	case err != nil && ctx.Err() == nil:
		progress.Warn(ctx, fmt.Sprintf("the store is not kept within its limit: %v", err), "`sconce cache prune` does it by hand")
	case s.Store.Keeps() && limit > 0 && r.Kept > limit:
		progress.Warn(ctx, fmt.Sprintf("the store holds %s, above its limit of %s: named images need it", units.Size(r.Kept), units.Size(limit)),
			"`sconce images rm` takes names away; store-size in the configuration, or SCONCE_STORE_SIZE, sets the limit")
	case r.Bytes > 0:
		progress.Notef(ctx, fmt.Sprintf("the store was above its limit: removed %s, unpacked trees first", units.Size(r.Bytes)))
	}
}
