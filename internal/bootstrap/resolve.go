package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// Resolve asks the distribution's archives which packages r needs today. What their indices were is kept in the store, so that asking
// again costs little.
func Resolve(ctx context.Context, st *store.Store, f *fetch.Client, r Request) (*Pinned, error) {
	with, name := resolve, r.Suite
	if r.Dnf != "" {
		with, name = resolveRPM, r.Dnf
	}
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	task := progress.Begin(ctx, "resolve", name+" packages", 0)
	p, err := with(ctx, st, f, r)
	return p, task.End(err)
}

func resolve(ctx context.Context, st *store.Store, f *fetch.Client, r Request) (*Pinned, error) {
	archives, err := archivesOf(r)
	if err != nil {
		return nil, err
	}
	x := &indices{store: st, fetch: f, r: r}
	if x.keys, err = x.keyring(ctx); err != nil {
		return nil, err
	}
	u, epoch, err := x.universe(ctx, archives)
	if err != nil {
		return nil, err
	}
	packages, err := u.Close(asked(u, r))
	if err != nil {
		return nil, unresolved(err, u, r)
	}
	p := &Pinned{Suite: r.Suite, Architecture: r.Architecture, Epoch: epoch}
	for _, a := range archives {
		p.Sources += a.line()
	}
	for _, pkg := range packages {
		p.Packages = append(p.Packages, Package{
			Name: pkg.Name, Version: pkg.Version, Architecture: pkg.Architecture, Size: pkg.Size, SHA256: store.Digest("sha256:" + pkg.SHA256),
			URL: archives[pkg.Archive].url + "/" + escape(pkg.Filename),
		})
	}
	return p, nil
}

// universe reads the indices of the archives, and the date of the newest.
func (x *indices) universe(ctx context.Context, archives []archive) (*debian.Universe, time.Time, error) {
	releases := make([]*debian.Release, len(archives))
	g, fetching := errgroup.WithContext(ctx)
	for i, a := range archives {
		g.Go(func() (err error) {
			releases[i], err = x.release(fetching, a)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, time.Time{}, err
	}
	var epoch time.Time
	u := debian.NewUniverse(x.r.Architecture)
	for i, a := range archives {
		if releases[i].Date.After(epoch) {
			epoch = releases[i].Date
		}
		if err := x.packages(ctx, a, releases[i], i, u); err != nil {
			return nil, time.Time{}, err
		}
	}
	return u, epoch, nil
}

// priorities are those of the packages that a variant has beside the essential ones (Debian Policy 2.5).
var priorities = map[string][]string{
	"":          {"required"},
	"minbase":   {"required"},
	"required":  {"required"},
	"buildd":    {"required"},
	"important": {"required", "important"},
	"standard":  {"required", "important", "standard"},
}

// asked lists what is asked for: the variant, the package manager, without which a base could not be added to, and r's own.
//
// usr-is-merged, where a suite has it, goes before usrmerge, which brings all of perl: the directories are merged from the beginning.
func asked(u *debian.Universe, r Request) []string {
	all := u.Where(func(p *debian.Package) bool { return p.Essential || slices.Contains(priorities[r.Variant], p.Priority) })
	all = append(all, "apt")
	if u.Has("usr-is-merged") {
		all = append(all, "usr-is-merged")
	}
	if r.Variant == "buildd" {
		all = append(all, "build-essential")
	}
	// Those of a version last: it is the one that counts.
	return append(all, r.Packages...)
}

func unresolved(err error, u *debian.Universe, r Request) error {
	err = fmt.Errorf("the base's packages for %s cannot be resolved: %w", r.Suite, err)
	var unknown *debian.UnknownPackageError
	if !errors.As(err, &unknown) {
		return fault.Hint(err, "check the names under [base] bootstrap.packages")
	}
	if unknown.Version != "" && u.Has(unknown.Name) {
		return fault.Hint(err, fmt.Sprintf("the archives have %s %s", unknown.Name, strings.Join(u.Versions(unknown.Name), ", ")))
	}
	if near := spelling.Nearest(unknown.Name, u.Names()); near != "" {
		return fault.Hint(err, fmt.Sprintf("instead of %q, did you mean %q?", unknown.Name, near))
	}
	return fault.Hint(err, "check the names under [base] bootstrap.packages, and base.bootstrap.components")
}

// escape makes a path a part of an address. A plus sign means a blank to some servers.
func escape(p string) string {
	return escaper().Replace(p)
}

var escaper = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer("%", "%25", "+", "%2b", " ", "%20", "#", "%23", "?", "%3f")
})
