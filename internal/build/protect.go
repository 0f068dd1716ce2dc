package build

import (
	"context"
	"fmt"
	"io"
	"path"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
)

// checkProtected warns of wheels that want another version of what the base brings and protects. The resolver never saw
// these: to it, protected packages do not exist.
func (b *builder) checkProtected(ctx context.Context, p python.Interpreter, made []madeLayer) error {
	if len(b.opts.Protect) == 0 {
		return nil
	}
	env := python.EnvironmentOf(p).WithExtra("")
	for _, m := range made {
		metadata, err := b.readMetadata(ctx, m)
		if err != nil {
			return err
		}
		for _, d := range metadata {
			b.compareProtected(ctx, d, env)
		}
	}
	return nil
}

// maxMetadata bounds what is read of one package's metadata, in bytes.
const maxMetadata = 16 << 20

// readMetadata reads the METADATA of every package in a layer: the wheels themselves may be gone from the store.
func (b *builder) readMetadata(ctx context.Context, m madeLayer) ([]python.Metadata, error) {
	wanted := make(map[string]bool)
	for _, p := range m.manifest.Packages {
		wanted[p.DistInfo+"/METADATA"] = true
	}
	ix, err := layer.OpenIndex(ctx, b.opts.Store, m.layer)
	if err != nil {
		return nil, err
	}
	var all []python.Metadata
	for i, e := range ix.Entries {
		if e.Type != layer.Regular || !wanted[path.Join(path.Base(path.Dir(e.Path)), path.Base(e.Path))] {
			continue
		}
		r, err := ix.Open(i)
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(io.LimitReader(r, maxMetadata))
		r.Close()
		if err != nil {
			return nil, err
		}
		if d, err := python.ParseMetadata(data); err == nil {
			all = append(all, d)
		}
	}
	return all, nil
}

// compareProtected compares what a package requires with what the base has. What cannot be understood is passed over: the
// package is laid down as it is anyway.
func (b *builder) compareProtected(ctx context.Context, d python.Metadata, env python.MarkerEnvironment) {
	for _, text := range d.RequiresDist {
		requirement, err := python.ParseRequirement(text)
		if err != nil {
			continue
		}
		if requirement.Marker != nil {
			if ok, err := requirement.Marker.Evaluate(env); err != nil || !ok {
				continue
			}
		}
		for _, guard := range b.opts.Protect {
			if python.NormalizeName(requirement.Name) != guard.Name || guard.Fits(requirement) == lock.FullFit {
				continue
			}
			progress.Warn(ctx, fmt.Sprintf("%s %s requires %s, and the base has %s %s", d.Name, d.Version, requirement.Name+requirement.Specifiers.String(), guard.Name, guard.Version),
				"it is not replaced, since the base is built around it: choose another base or another version of "+d.Name+", or allow it with `protect = []` under [python]")
		}
	}
}
