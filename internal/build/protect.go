package build

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"path"
	"slices"

	"sconce.dev/sconce/internal/image"
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

// warnOverwritten warns of packages that are added to the base's environment and bring a file that is there with another content.
func (r *stageRun) warnOverwritten(ctx context.Context, t python.Target) error {
	if !t.Added {
		return nil
	}
	tree, err := image.NewTree(ctx, r.opts.Store, r.ground.layers())
	if err != nil {
		return err
	}
	for _, w := range r.made.wheels {
		for _, p := range w.manifest.Packages {
			i := slices.IndexFunc(p.Files, func(f python.ManifestFile) bool { return isOther(tree, path.Join(t.Root, f.Path), f) })
			if i >= 0 {
				progress.Warn(ctx, fmt.Sprintf("%s replaces %s of the base", p.Name, path.Join("/", t.Root, p.Files[i].Path)),
					"the package of the base that had the file sees another one: take one of the two out")
			}
		}
	}
	return nil
}

// isOther reports whether a base has a file of this name with another content. What cannot be read is another.
func isOther(tree *image.Tree, name string, f python.ManifestFile) bool {
	n, err := tree.Lookup(name)
	if err != nil {
		return false
	}
	if n.Type != layer.Regular || n.Size != f.Size {
		return true
	}
	r, err := tree.Open(n)
	if err != nil {
		return true
	}
	defer r.Close()
	h := sha256.New()
	_, err = io.Copy(h, r)
	return err != nil || base64.RawURLEncoding.EncodeToString(h.Sum(nil)) != f.SHA256
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
