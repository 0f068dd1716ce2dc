package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/nodejob"
)

// NodeCommand begins a command of sconce that runs on a node of a cluster, with the stores that count here. dir is that of a recipe, beside
// which profiles are looked for, "" for none. time is what the job may take, "" for what the profile allows.
func NodeCommand(ctx context.Context, cluster, time, dir string, set Settings) (nodejob.Command, error) {
	c := nodejob.Command{Env: attest.Environ()}
	target, err := FindTarget(cluster, dir)
	if err != nil {
		return c, err
	}
	target.Tell(ctx)
	c.Cluster = target.Profile
	if c.Time, err = job.ParseTime(time); err != nil {
		return c, fault.Usage(fmt.Errorf("--time: %w", err))
	}
	if c.Dir, err = os.Getwd(); err != nil {
		return c, err
	}
	root, err := set.Dir()
	if err != nil {
		return c, err
	}
	if root, err = filepath.Abs(root); err != nil {
		return c, err
	}
	c.Places = []string{root}
	c.Args = []string{"--progress", "json", "--store", root}
	if shared := set.Shared(); len(shared) > 0 {
		c.Env = append(c.Env, "SCONCE_SHARED_STORES="+strings.Join(shared, string(filepath.ListSeparator)))
	}
	return c, nil
}
