package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/squashfs"
)

// CondaExport is an environment in a form that others read.
type CondaExport struct {
	*condalock.Lock          // of one platform
	Left            []string // Python packages of the recipe that the lock cannot have: those that are compiled, or of this machine
}

// CondaLock says what the conda environment of a recipe is made of, as its lock pins it. locked refuses to make a lock for it.
func (s *Session) CondaLock(ctx context.Context, r *Recipe, locked bool) (*CondaExport, error) {
	below, err := s.planBelow(ctx, r, PlanOptions{Locked: locked})
	if err != nil {
		return nil, err
	}
	if below != nil {
		defer below.Close()
	}
	l, err := s.fittingLock(ctx, r, below, locked)
	if err != nil {
		return nil, err
	}
	if l.Lock.Conda == nil {
		return nil, fault.Hint(fmt.Errorf("%s has no conda environment", r.Path), "it is asked for under [conda]")
	}
	out := &CondaExport{Lock: l.condaLock(r)}
	part := &out.Platforms[0]
	for _, w := range l.Wheels {
		if !strings.HasPrefix(w.URL, "https://") && !strings.HasPrefix(w.URL, "http://") {
			out.Left = append(out.Left, w.Name+" "+w.Version)
			continue
		}
		part.Wheels = append(part.Wheels, condalock.Wheel{Name: w.Name, Version: w.Version, URL: w.URL, SHA256: w.Digest})
	}
	for _, c := range l.Compiles {
		out.Left = append(out.Left, c.Label())
	}
	return out, nil
}

// condaLock is the lock of the conda packages, as others read it.
func (l *Locked) condaLock(r *Recipe) *condalock.Lock {
	return &condalock.Lock{
		Channels: l.Lock.Conda.Channels, Sources: r.Conda.Environment,
		Platforms: []condalock.Platform{{Name: l.Lock.Conda.Platform, Packages: l.Conda.Packages}},
	}
}

// maxCondaRecord bounds the record of an installed package, in bytes: it lists every file.
const maxCondaRecord = 64 << 20

// CondaLock says which conda packages the image has in a prefix; "" is the active environment's, or that of the only one. What pip
// installed there is not in it.
func (s *Subject) CondaLock(ctx context.Context, prefix string) (*CondaExport, error) {
	config, records, read, err := s.condaRecords(ctx)
	if err != nil {
		return nil, err
	}
	if prefix, err = pickPrefix(s.Name, prefix, config, slices.Sorted(maps.Keys(records))); err != nil {
		return nil, err
	}
	var packages []conda.Package
	var problems []error
	for _, file := range records[prefix] {
		data, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("%s: read %s: %w", s.Name, file, err)
		}
		p, err := condalock.ParseInstalled(data)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: /%s: %w", s.Name, file, err))
		}
		packages = append(packages, p)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fault.Hint(err, "a lock names each package by its address; what was built on the spot has none")
	}
	platform := condalock.Subdir(config.OS + "/" + config.Architecture)
	if i := slices.IndexFunc(packages, func(p conda.Package) bool { return p.Subdir != "noarch" }); i >= 0 {
		platform = packages[i].Subdir
	}
	out := &CondaExport{Lock: &condalock.Lock{}}
	return out, out.Add(platform, packages...)
}

// pickPrefix chooses one of the environments of an image.
func pickPrefix(name, wanted string, config *v1.ConfigFile, there []string) (string, error) {
	if len(there) == 0 {
		return "", fmt.Errorf("%s has no conda environment: no conda-meta has records of packages", name)
	}
	if wanted == "" {
		for _, kv := range config.Config.Env {
			if value, ok := strings.CutPrefix(kv, "CONDA_PREFIX="); ok && slices.Contains(there, strings.Trim(value, "/")) {
				wanted = value
			}
		}
	}
	if wanted == "" && len(there) == 1 {
		return there[0], nil
	}
	if at := strings.Trim(wanted, "/"); slices.Contains(there, at) {
		return at, nil
	}
	list := "/" + strings.Join(there, ", /")
	if wanted == "" {
		return "", fault.Hint(fault.Usage(fmt.Errorf("%s has several conda environments: %s", name, list)), "--prefix says which one")
	}
	return "", fault.Usage(fmt.Errorf("%s has no conda environment in %s, only in %s", name, wanted, list))
}

// condaRecords lists the records of conda packages in the image, by prefix, and gives what reads them.
func (s *Subject) condaRecords(ctx context.Context) (*v1.ConfigFile, map[string][]string, func(string) ([]byte, error), error) {
	records := map[string][]string{}
	note := func(at string) {
		dir, name := path.Split(at)
		if dir = path.Clean(dir); path.Base(dir) == "conda-meta" && path.Ext(name) == ".json" {
			prefix := strings.Trim(path.Dir("/"+dir), "/")
			records[prefix] = append(records[prefix], at)
		}
	}
	if s.IsClusterFile() {
		c, err := s.ClusterFile()
		if err != nil {
			return nil, nil, nil, err
		}
		config, err := c.Config()
		if err != nil {
			return nil, nil, nil, err
		}
		err = c.FS.Walk(func(at string, f *squashfs.File) error {
			if f.Type == squashfs.Regular {
				note(at)
			}
			return ctx.Err()
		})
		return &config, records, func(at string) ([]byte, error) { return readSquashed(c.FS, at) }, err
	}
	o, err := s.Outline(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	tree, err := o.Tree(ctx, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	err = tree.Walk(func(n *image.Node) error {
		if n.Type == layer.Regular {
			note(n.Path)
		}
		return nil
	})
	return &o.Image.Config, records, func(at string) ([]byte, error) { return tree.ReadFile(at, maxCondaRecord) }, err
}

func readSquashed(r *squashfs.Reader, at string) ([]byte, error) {
	f, err := r.Lookup(at, false)
	if err != nil {
		return nil, err
	}
	if f.Size > maxCondaRecord {
		return nil, fmt.Errorf("its %d bytes are more than a record has", f.Size)
	}
	return io.ReadAll(io.LimitReader(f.Content(), maxCondaRecord))
}
