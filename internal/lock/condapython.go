package lock

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/tempdir"
)

// Python packages on top of a conda environment are resolved against what conda brings: uv sees each Python package of conda's as
// a wheel that it must take, and what it says of those is dropped (see [condalock.WriteStubs]). So there is no second torch.

// InstalledBy is a Python package that the conda environment brings.
type InstalledBy struct {
	Name    string `toml:"name"` // normalised
	Version string `toml:"version"`
	By      string `toml:"by"` // the archive of the conda package
}

// meetConda notes what the conda environment brings of Python packages and writes what uv is told of them. remove takes that away.
func (k *locker) meetConda(ctx context.Context, found python.Interpreter) (remove func(), err error) {
	if len(found.SitePackages) > 0 {
		k.python.SitePackages = found.SitePackages[0]
	}
	distributions, err := k.distributions(ctx)
	if err != nil {
		return nil, err
	}
	return k.writeStubs(distributions)
}

// writeStubs writes what uv is told of packages that are there already.
func (k *locker) writeStubs(distributions []condalock.Distribution) (remove func(), err error) {
	dir, remove, err := tempdir.Make("stubs")
	if err != nil {
		return nil, err
	}
	constraints, err := condalock.WriteStubs(dir, distributions)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, stubConstraints), []byte(strings.Join(constraints, "\n")+"\n"), 0o644)
	}
	if err != nil {
		remove()
		return nil, err
	}
	k.stubs = dir
	return remove, nil
}

// stubConstraints is the file, beside the stubs, that binds uv to them.
const stubConstraints = "constraints.txt"

// distributions reads which Python packages are in the conda packages, and brings these for it.
func (k *locker) distributions(ctx context.Context) ([]condalock.Distribution, error) {
	var packages []conda.Package
	for _, p := range k.condaPackages {
		if mayHavePython(p) {
			packages = append(packages, p)
		}
	}
	requests, err := CondaRequests(k.opts.Fetch, k.recipe, packages)
	if err != nil {
		return nil, err
	}
	found := make([][]conda.Distribution, len(packages))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(k.opts.Fetch.Jobs())
	for i, p := range packages {
		g.Go(func() (err error) {
			found[i], err = k.readDistributions(gctx, p, requests[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []condalock.Distribution
	k.python.Conda = nil
	for i, p := range packages {
		for _, d := range found[i] {
			all = append(all, condalock.Distribution{Name: d.Name, Version: d.Version, Metadata: d.Metadata, Package: p.Name})
			k.python.Conda = append(k.python.Conda, InstalledBy{python.NormalizeName(d.Name), d.Version, p.File})
		}
	}
	slices.SortFunc(k.python.Conda, func(a, b InstalledBy) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (k *locker) readDistributions(ctx context.Context, p conda.Package, r fetch.Request) ([]conda.Distribution, error) {
	if err := k.opts.Fetch.Blob(ctx, r); err != nil {
		return nil, err
	}
	f, err := k.opts.Store.OpenBlob(p.SHA256)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return conda.ReadDistributions(ctx, f, st.Size(), p.File)
}

// mayHavePython reports whether a package can have something for Python: one that neither is for any Python nor depends on one has
// nothing. Some locks do not say what packages depend on.
func mayHavePython(p conda.Package) bool {
	if p.Noarch == "python" || len(p.Depends) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Depends, func(d string) bool {
		name, _, _ := strings.Cut(strings.TrimSpace(d), " ")
		return name == "python" || name == "python_abi"
	})
}

// brings returns the Python package of conda's called name, which is normalised.
func (p *Python) brings(name string) (InstalledBy, bool) {
	i := slices.IndexFunc(p.Conda, func(x InstalledBy) bool { return x.Name == name })
	if i < 0 {
		return InstalledBy{}, false
	}
	return p.Conda[i], true
}

// stubArgs are uv's arguments by which it knows conda's packages. Directories that the user names in the environment would not
// count beside an argument.
func (k *locker) stubArgs() []string {
	if k.stubs == "" {
		return nil
	}
	args := []string{"--find-links", k.stubs, "--constraints", filepath.Join(k.stubs, stubConstraints)}
	for place := range strings.SplitSeq(os.Getenv("UV_FIND_LINKS"), ",") {
		if place = strings.TrimSpace(place); place != "" {
			if full, err := filepath.Abs(place); err == nil && !strings.Contains(place, "://") {
				place = full
			}
			args = append(args, "--find-links", place)
		}
	}
	return args
}

// checkTwice makes sure that a lock which was not made for this environment brings nothing that conda brings too.
func (k *locker) checkTwice(wheels []Wheel) error {
	for _, w := range wheels {
		if there, ok := k.python.brings(python.NormalizeName(w.Name)); ok {
			return fault.Hint(fmt.Errorf("%s has %s %s, which the conda package %s brings in version %s", k.python.File, w.Name, w.Version, there.By, there.Version),
				"take it out of one of the two")
		}
	}
	return nil
}

// buildAfter adds to what p is built against the packages that are built from the environment files before its own.
func (k *locker) buildAfter(c *Compiled, p python.Package, built []python.Package) {
	own, _, _ := listOf(k.recipe, p)
	if own < 0 || c.Isolation {
		return
	}
	for _, other := range built {
		name := python.NormalizeName(other.Name)
		if place, _, _ := listOf(k.recipe, other); place >= 0 && place < own && !slices.Contains(c.Against, name) {
			c.Against = append(c.Against, name)
		}
	}
	slices.Sort(c.Against)
}

// unisolated reports whether the environment file that asks for p says that its build sees what is installed before it.
func (k *locker) unisolated(p python.Package) bool {
	_, _, asked := listOf(k.recipe, p)
	return asked.Unisolated
}
