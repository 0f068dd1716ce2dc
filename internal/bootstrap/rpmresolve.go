package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/rpm"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// managerRPM is Pinned.Manager of a base from RPM packages.
const managerRPM = "rpm"

// essential are what every system of RPM packages has, where the repositories have it: names of packages, and what they provide. The
// release brings where the system's own packages come from. Of the packages of locales the smallest is taken.
var essential = []string{
	"filesystem", "setup", "basesystem", "glibc-minimal-langpack", "coreutils", "bash", "rpm", "system-release", "distribution-release",
}

// managers are package managers, of which the first that a distribution has is in a base.
var managers = []string{"dnf", "microdnf", "dnf5", "zypper"}

func resolveRPM(ctx context.Context, st *store.Store, f *fetch.Client, r Request) (*Pinned, error) {
	repositories, err := repositoriesOf(r)
	if err != nil {
		return nil, err
	}
	if rpmArchitectures[r.Architecture] == "" {
		return nil, fmt.Errorf("there are no packages of RPM for %s that are known here", r.Architecture)
	}
	x := &indices{store: st, fetch: f, r: r}
	if x.signs, err = x.rpmKeys(ctx); err != nil {
		return nil, err
	}
	u, repomds, err := x.rpmUniverse(ctx, repositories)
	if err != nil {
		return nil, err
	}
	wanted, err := askedRPM(u, r)
	if err != nil {
		return nil, err
	}
	packages, err := u.Close(wanted)
	if errors.Is(err, rpm.ErrFilesUnknown) {
		if err := x.fileLists(ctx, repositories, repomds, u); err != nil {
			return nil, err
		}
		packages, err = u.Close(wanted)
	}
	if err != nil {
		return nil, unresolvedRPM(err, u, r)
	}
	p := &Pinned{Manager: managerRPM, Suite: releaseOf(r, packages), Architecture: r.Architecture, Sources: configuration(r, repositories), Beside: r.Beside}
	for _, m := range repomds {
		if m.Date.After(p.Epoch) {
			p.Epoch = m.Date
		}
	}
	var unsigned []Package
	for _, pkg := range packages {
		repo := repositories[pkg.Repository]
		pin := Package{
			Name: pkg.Name, Version: pkg.Version.String(), Architecture: pkg.Arch, Size: pkg.Size, SHA256: store.Digest("sha256:" + pkg.SHA256),
			URL: repo.url + "/" + escape(pkg.Location),
		}
		p.Packages = append(p.Packages, pin)
		if !repo.signed && !r.Trusted {
			unsigned = append(unsigned, pin)
		}
	}
	if err := x.verifyPackages(ctx, unsigned); err != nil {
		return nil, err
	}
	if p.Sources != "" && !r.Trusted {
		p.Keys = x.signs.text()
	}
	return p, nil
}

// releaseOf is what people call what the packages are of: as the recipe does, else by the package that says which release it is.
func releaseOf(r Request, packages []*rpm.Package) string {
	if !isAddress(r.Dnf) {
		return r.Dnf
	}
	for _, pkg := range packages {
		for _, provided := range pkg.Provides {
			if provided.Name == "system-release" || provided.Name == "distribution-release" {
				return strings.TrimSuffix(pkg.Name, "-release") + ":" + pkg.Version.Version
			}
		}
	}
	return "RPM packages"
}

// askedRPM lists what is asked for: the variant, and r's own.
func askedRPM(u *rpm.Universe, r Request) ([]rpm.Relation, error) {
	names := essential
	switch r.Variant {
	case "", "minbase":
		names = append(names[:len(names):len(names)], "ca-certificates")
		for _, name := range managers {
			if u.Has(name) {
				names = append(names, name)
				break
			}
		}
	case "essential":
	default:
		return nil, fault.Usage(fault.Hint(fmt.Errorf("base.bootstrap.variant %q is one of Debian's", r.Variant),
			"for packages of RPM it is \"essential\", or \"minbase\" with a package manager"))
	}
	var all []rpm.Relation
	// What is asked for by name goes before what else would do.
	for _, name := range r.Packages {
		relation, err := rpm.ParseRelation(strings.Replace(name, "=", " = ", 1))
		if err != nil {
			return nil, fault.Usage(err)
		}
		all = append(all, relation)
	}
	for _, name := range names {
		if u.Has(name) || u.Provided(name) {
			all = append(all, rpm.Relation{Name: name})
		}
	}
	return all, nil
}

func unresolvedRPM(err error, u *rpm.Universe, r Request) error {
	err = fmt.Errorf("the base's packages for %s cannot be resolved: %w", r.Dnf, err)
	var unknown *rpm.UnknownPackageError
	if !errors.As(err, &unknown) {
		return fault.Hint(err, "check the names under [base] bootstrap.packages; base.bootstrap.sources names further repositories")
	}
	name := unknown.Asked.Name
	if u.Has(name) {
		return fault.Hint(err, fmt.Sprintf("the repositories have %s %s", name, strings.Join(u.Versions(name), ", ")))
	}
	if near := spelling.Nearest(name, u.Names()); near != "" {
		return fault.Hint(err, fmt.Sprintf("instead of %q, did you mean %q?", name, near))
	}
	return fault.Hint(err, "check the names under [base] bootstrap.packages; base.bootstrap.sources names further repositories")
}

// verifyPackages downloads the packages of repositories whose index nobody has signed, and asks for a signature of each, of the name
// and version that the index said.
func (x *indices) verifyPackages(ctx context.Context, packages []Package) error {
	if err := download(ctx, x.fetch, &Pinned{Packages: packages}); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, pkg := range packages {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := verifyPackage(x, pkg); err != nil {
				return explainRepository(fmt.Errorf("package %s %s is not to be believed: %w", pkg.Name, pkg.Version, err), err)
			}
			return nil
		})
	}
	return g.Wait()
}

func verifyPackage(x *indices, pkg Package) error {
	in, err := x.store.OpenBlob(pkg.SHA256)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := openPinned(in, pkg)
	if err != nil {
		return err
	}
	return x.signs.believe(func(k *debian.Keyring) error { return f.Verify(k, x.r.Now) })
}
