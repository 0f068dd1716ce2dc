package lock

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// Wheel is one package of the lock: what is laid down, and where to download it.
type Wheel struct {
	python.Item
	URL string
}

// read reads the PEP 751 lock of r and selects what is installed for the interpreter: of each package a wheel, or the source
// that one is built from.
func (p *Python) read(r *recipe.Recipe, text []byte) ([]python.Package, error) {
	path := p.pylock(r)
	pylock, err := python.ReadLock(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read lock %s: %w", path, err)
	}
	pylock.Dir = filepath.Dir(path)
	interpreter := p.Interpreter()
	fromSource := func(name string) bool { _, ok := r.Python.Compile[name]; return ok }
	packages, err := pylock.SelectSources(python.EnvironmentOf(interpreter), interpreter.Tags(), r.Python.Extras, r.Python.Groups, fromSource)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := reachPackages(r, packages); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return packages, nil
}

// choose returns the packages of the PEP 751 lock of r that have a wheel, without those that are built.
func (p *Python) choose(r *recipe.Recipe, text []byte) ([]Wheel, error) {
	packages, err := p.read(r, text)
	if err != nil {
		return nil, err
	}
	var wheels []Wheel
	for _, pkg := range packages {
		if pkg.Source == nil {
			wheels = append(wheels, p.wheel(pkg))
		}
	}
	return wheels, nil
}

// wheel is what is laid down of a package that has a wheel.
func (p *Python) wheel(pkg python.Package) Wheel {
	w := Wheel{
		Item: python.Item{
			Name: pkg.Name, Version: pkg.Version, File: pkg.Wheel.Name, Digest: pkg.Wheel.Digest, Size: pkg.Wheel.Size,
			Requested: slices.Contains(p.Requested, python.NormalizeName(pkg.Name)), DirectURL: pkg.DirectURL,
		},
		URL: cmp.Or(pkg.Wheel.URL, pkg.Wheel.Path),
	}
	if pkg.Wheel.URL == "" && pkg.DirectURL != nil {
		w.DirectURL = withoutDirectory(*pkg.DirectURL, pkg.Wheel.Name)
	}
	w.Size = cmp.Or(w.Size, p.Sizes[pkg.Wheel.Name])
	return w
}

// withoutDirectory leaves only the file's name of where a local wheel was: the directory of the machine that built is
// nothing to an image, which must be the same wherever it is built.
func withoutDirectory(d python.DirectURL, file string) *python.DirectURL {
	d.URL = (&url.URL{Scheme: "file", Path: "/" + file}).String()
	return &d
}

// askSizes notes the sizes of wheels that the package lock leaves out, as those of some indexes do: a wheel's size decides
// which layer it goes to, so it must not depend on what happens to be downloaded. What the earlier lock knows is not
// asked again.
func (k *locker) askSizes(ctx context.Context, wheels []Wheel) error {
	var known map[string]int64
	if k.old != nil && k.old.Python != nil {
		known = k.old.Python.Sizes
	}
	sizes := make([]int64, len(wheels))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(k.opts.Fetch.Jobs())
	for i, w := range wheels {
		if sizes[i] = known[w.File]; w.Size != 0 || sizes[i] != 0 {
			continue
		}
		g.Go(func() (err error) {
			sizes[i], err = k.opts.Fetch.Size(ctx, fetch.Request{URL: w.URL, Name: w.File, Header: k.logins.Header(w.URL), Login: LoginHint})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	k.python.Sizes = make(map[string]int64)
	for i, w := range wheels {
		if w.Size == 0 && sizes[i] != 0 {
			k.python.Sizes[w.File] = sizes[i]
		}
	}
	return nil
}

// LoginHint says where logins for package indexes are looked for.
const LoginHint = "logins for package indexes are looked for in netrc, in the index's address in uv's and pip's configuration, and in UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD"
