package facts

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"sconce.dev/sconce/internal/elfx"
)

// closure loads a file that others stand on, once for what is in memory before. It is nil for a file that is not there or
// cannot be loaded.
func (l *linker) closure(name string, before ...*elfx.Closure) (*elfx.Closure, error) {
	key := name
	for _, c := range before {
		key += fmt.Sprintf(" %p", c)
	}
	l.mu.Lock()
	c, ok := l.closures[key]
	l.mu.Unlock()
	if ok {
		return c, nil
	}
	if _, err := l.facts.Root.Resolve(rooted(name)); err == nil {
		c, err = l.loader.Closure(rooted(name), before...)
		if err != nil && !isUnusable(err) {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if first, ok := l.closures[key]; ok {
		return first, nil
	}
	l.closures[key] = c
	return c, nil
}

func isUnusable(err error) bool {
	return errors.Is(err, elfx.ErrFormat) || errors.Is(err, elfx.ErrNotELF)
}

// maxPreloads is how many times a package may have to load libraries for those that it loaded.
const maxPreloads = 4

// load loads a root as its program would: libraries that the loader does not find but packages of the same Python have are
// loaded by these before.
func (l *linker) load(r *linkRoot) error {
	if err := l.prepare(r); err != nil {
		return err
	}
	for range maxPreloads {
		c, err := l.loader.Closure(rooted(r.object.Path), r.before...)
		if isUnusable(err) {
			return nil
		}
		if err != nil {
			return err
		}
		r.closure = c
		more, err := l.preloads(r)
		if err != nil {
			return err
		}
		if len(more) == 0 {
			break
		}
		r.before = append(r.before, more...)
	}
	r.loaded = map[string]bool{}
	for _, c := range r.before {
		for _, o := range c.Objects {
			r.loaded[o.Real] = true
		}
	}
	return nil
}

// prepare finds out what is in memory before.
func (l *linker) prepare(r *linkRoot) error {
	if r.site == nil {
		return nil
	}
	python, err := l.interpreter(r.site)
	if err != nil {
		return err
	}
	r.before, r.global = python, python
	if !usesTorch(r.object) {
		return nil
	}
	if err := l.torchOf(r.site); err != nil {
		return err
	}
	if r.site.globals != nil {
		r.before = append(slices.Clone(r.before), r.site.globals)
		r.global = append(slices.Clone(r.global), r.site.globals)
	}
	if r.site.torch != nil && !within(r.object.Path, path.Dir(r.site.torchDir)) {
		r.before = append(slices.Clone(r.before), r.site.torch)
	}
	return nil
}

func (l *linker) preloads(r *linkRoot) ([]*elfx.Closure, error) {
	var more []*elfx.Closure
	if r.site == nil {
		return nil, nil
	}
	for _, link := range r.closure.Missing() {
		provider := r.site.provider(link.Name)
		if provider == "" || provider == r.object.Path || link.Err != nil {
			continue
		}
		c, err := l.closure(provider, r.before...)
		if err != nil {
			return nil, err
		}
		if c != nil {
			more = append(more, c)
		}
	}
	return more, nil
}
