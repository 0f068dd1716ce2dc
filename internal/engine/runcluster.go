package engine

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/jobstep"
	"sconce.dev/sconce/internal/sandbox"
)

// ofCluster puts what a cluster's profile says of containers below what the user gave: mounts that are not among the user's, and
// variables, of which one that is set here keeps its value. A profile in this directory counts when its file is named.
func ofCluster(ctx context.Context, name string, env []string, binds []sandbox.Bind) ([]string, []sandbox.Bind, error) {
	t, err := FindOwnTarget(name)
	if err != nil {
		return nil, nil, err
	}
	own := make([]string, 0, len(t.Env))
	for _, name := range slices.Sorted(maps.Keys(t.Env)) {
		value, set := os.LookupEnv(name)
		if !set {
			if value, err = ExpandHere(t.Env[name]); err != nil {
				return nil, nil, fmt.Errorf("env.%s of %s: %w", name, t.Name, err)
			}
		}
		own = append(own, name+"="+value)
	}
	var mounts []sandbox.Bind
	for _, spec := range t.Container.Mounts {
		text, err := ExpandHere(spec)
		if err != nil {
			return nil, nil, fmt.Errorf("container.mounts of %s: %w", t.Name, err)
		}
		b, err := parseBind(text)
		if err != nil {
			return nil, nil, fault.Usage(fmt.Errorf("container.mounts of %s: %s: %w", t.Name, text, err))
		}
		if !slices.ContainsFunc(binds, func(x sandbox.Bind) bool { return x.Target == b.Target }) {
			mounts = append(mounts, b)
		}
	}
	if _, inStep := jobstep.Find(os.Getenv); !inStep { // else all tasks would say so
		t.tellMounts(ctx)
	}
	return append(own, env...), append(mounts, binds...), nil
}
