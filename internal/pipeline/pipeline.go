// Package pipeline is about all images of a team together: which recipes and variants there are, which stand on which, what each is
// called in registries, and how far it is.
//
// Nothing is kept about an image but what registries have. Its canonical reference is made of the key of its plan, so that it says by
// itself whether the image has been built.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/spelling"
)

// Pipeline is a pipeline file and the recipes that it leads to.
type Pipeline struct {
	*recipe.Pipeline
	At string // the branch that a person says is checked out; "": it is found out

	refs    []string // of all images: PATH or PATH:VARIANT, relative to Dir
	looked  sync.Once
	from    *engine.Origin // see origin
	read    sync.Once
	trust   []*attest.PublicKey // by which plans are built
	indexes map[string][]string // of those that join images of several platforms: which
}

// Image is one variant of one recipe of a pipeline.
type Image struct {
	Ref     string // the recipe and its variant as the pipeline names it: "images/pytorch:26.02-py3"
	Name    string // of the recipe
	Version string // the tag that users know, with the variant's name at its end
	Variant string // "" of a recipe without any
	Recipe  *engine.Recipe
	Base    *Image // the image of the pipeline that it is based on; nil: something else

	Parts  []*Image // of an index: its images, one for each platform; Recipe is that of the first
	PartOf string   // Image.Ref of the index that it is part of, and published as; "": none

	Key       plan.Key // of its plan; "" as long as it cannot be planned, see Problem
	Canonical string   // HOST/PATH:VERSION-KEY in the staging repository; "" without a key
	Stable    []string // HOST/PATH:VERSION, each of which users may take it from
	Mutable   bool     // whether its stable tags are written again
	Problem   error    // why it cannot be planned: most often, that its lock does not fit

	record *plan.Record // of its plan
}

// keyDigits is how much of a key is in a tag, in hexadecimal digits: 96 bits.
const keyDigits = 24

// maxTag is how long a tag may be, in characters (distribution-spec, "Pulling manifests").
const maxTag = 128

// Open reads the pipeline of a directory or the nearest one above it, and finds its recipes. The error wraps fs.ErrNotExist when there
// is no pipeline.
func Open(dir string) (*Pipeline, error) {
	file, err := recipe.FindPipeline(dir)
	if err != nil {
		return nil, fault.Usage(err)
	}
	read, err := recipe.LoadPipeline(file)
	if err != nil {
		return nil, err
	}
	engine.WithholdKey(read.Sign)
	p := &Pipeline{Pipeline: read, indexes: make(map[string][]string)}
	paths, err := read.Paths()
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		variants, err := recipe.Variants(filepath.Join(p.Dir, path))
		if err != nil {
			return nil, err
		}
		if len(variants) == 0 {
			p.refs = append(p.refs, path)
		}
		for _, v := range variants {
			p.refs = append(p.refs, path+":"+v)
		}
		if err := p.findIndexes(path, variants); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Refs lists the images as Image.Ref has them, in the order of the file.
func (p *Pipeline) Refs() []string { return slices.Clone(p.refs) }

// Images plans all images of the pipeline, those first that others stand on. One that cannot be planned, whose lock does not fit, is
// among them with its Problem.
func (p *Pipeline) Images(ctx context.Context, s *engine.Session) ([]*Image, error) {
	return p.images(ctx, s, p.refs)
}

// Recipes loads the recipes of all images, or of those that are named as for [Pipeline.Image], each once, those first that others stand on.
// Nothing is planned.
func (p *Pipeline) Recipes(names []string) ([]*engine.Recipe, error) {
	refs := p.refs
	if len(names) > 0 {
		refs = nil
		for _, name := range names {
			ref, err := p.find(name)
			if err != nil {
				return nil, err
			}
			refs = append(refs, ref)
		}
	}
	var all []*engine.Recipe
	seen := make(map[string]bool)
	var add func(ref string) error
	add = func(ref string) error {
		if seen[ref] {
			return nil
		}
		seen[ref] = true
		for _, part := range p.indexes[ref] {
			if err := add(part); err != nil {
				return err
			}
		}
		if p.indexes[ref] != nil {
			return nil
		}
		r, err := p.load(ref)
		if err != nil {
			return err
		}
		if r.Below != nil {
			if below, ok := p.Contains(r.Below.Ref()); ok {
				if err := add(below); err != nil {
					return err
				}
			}
		}
		all = append(all, r)
		return nil
	}
	for _, ref := range refs {
		if err := add(ref); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Image plans one image, which is named as in Refs, by its path on this machine, or by its NAME, NAME:VARIANT or NAME:VERSION.
func (p *Pipeline) Image(ctx context.Context, s *engine.Session, name string) (*Image, error) {
	ref, err := p.find(name)
	if err != nil {
		return nil, err
	}
	all, err := p.images(ctx, s, []string{ref})
	if err != nil {
		return nil, err
	}
	return all[len(all)-1], nil
}

// Contains returns the reference of a recipe that is named by its path on this machine, PATH[:VARIANT]. found is false when it is none
// of the pipeline.
func (p *Pipeline) Contains(name string) (ref string, found bool) {
	path, variant := recipe.SplitVariant(name)
	path, err := filepath.Abs(path)
	if err != nil {
		return "", false
	}
	rel, err := filepath.Rel(p.Dir, path)
	if err != nil {
		return "", false
	}
	if filepath.Base(rel) == recipe.FileName {
		rel = filepath.Dir(rel)
	}
	return p.only(func(r string) bool {
		at, v := splitRef(r)
		return at == rel && v == variant
	}, func(r string) bool {
		at, _ := splitRef(r)
		return at == rel && variant == ""
	})
}

// only returns the one reference that fits, or, if none does, the one that fits otherwise.
func (p *Pipeline) only(fits, otherwise func(ref string) bool) (string, bool) {
	for _, fits := range []func(string) bool{fits, otherwise} {
		i := slices.IndexFunc(p.refs, fits)
		if i >= 0 {
			return p.refs[i], !slices.ContainsFunc(p.refs[i+1:], fits)
		}
	}
	return "", false
}

func splitRef(ref string) (path, variant string) {
	if i := strings.LastIndexByte(ref, ':'); i >= 0 {
		return ref[:i], ref[i+1:]
	}
	return ref, ""
}

// find returns the reference that a user means by name.
func (p *Pipeline) find(name string) (string, error) {
	if slices.Contains(p.refs, name) {
		return name, nil
	}
	if ref, ok := p.Contains(name); ok {
		return ref, nil
	}
	wanted, variant := splitRef(name)
	var fits []string
	for _, ref := range p.refs {
		path, v := splitRef(ref)
		at := ref
		if p.indexes[ref] != nil {
			at = p.indexes[ref][0]
		}
		r, err := recipe.Load(filepath.Join(p.Dir, path) + strings.TrimPrefix(at, path))
		if err != nil {
			return "", err
		}
		if at != ref {
			if r.Name == wanted && variant == v {
				return ref, nil
			}
			continue
		}
		if (r.Name == wanted || path == wanted) && (variant == "" || variant == v || variant == r.Version) {
			fits = append(fits, ref)
		}
	}
	switch {
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return "", fault.Usage(fault.Hint(fmt.Errorf("%q are several images of %s", name, p.Path), "name one: "+strings.Join(fits, ", ")))
	}
	hint := "its images are " + strings.Join(p.refs, ", ")
	if near := spelling.Nearest(name, p.refs); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return "", fault.Usage(fault.Hint(fmt.Errorf("%s has no image %q", p.Path, name), hint))
}

// images plans some images, and before each those that it is based on.
func (p *Pipeline) images(ctx context.Context, s *engine.Session, refs []string) ([]*Image, error) {
	b := &planner{Pipeline: p, session: s, known: make(map[string]*Image)}
	for _, ref := range refs {
		if _, err := b.addRef(ctx, ref); err != nil {
			return nil, err
		}
	}
	return b.all, b.checkNames()
}

// load loads the recipe of a reference.
func (p *Pipeline) load(ref string) (*engine.Recipe, error) {
	path, variant := splitRef(ref)
	full := filepath.Join(p.Dir, path)
	if variant != "" {
		full += ":" + variant
	}
	return engine.LoadRecipe(full, engine.Changes{})
}

// planner plans images, each once.
type planner struct {
	*Pipeline
	session *engine.Session
	all     []*Image
	known   map[string]*Image // by Ref
}

func (b *planner) addRef(ctx context.Context, ref string) (*Image, error) {
	if b.indexes[ref] != nil {
		return b.addIndex(ctx, ref)
	}
	r, err := b.load(ref)
	if err != nil {
		return nil, err
	}
	return b.add(ctx, r)
}

func (b *planner) add(ctx context.Context, r *engine.Recipe) (*Image, error) {
	ref, ok := b.Contains(r.Ref())
	if !ok {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("%s is not among the recipes of %s", r.Ref(), b.Path), "add its directory to recipes"))
	}
	if known := b.known[ref]; known != nil {
		return known, nil
	}
	i := &Image{Ref: ref, Name: r.Name, Version: r.Version, Variant: r.Variant, Recipe: r, PartOf: b.indexWith(ref), Mutable: b.isMutable(r.Version)}
	if i.PartOf == "" {
		i.Stable = b.stableOf(r, r.Version)
	}
	if r.Below != nil {
		var err error
		if i.Base, err = b.add(ctx, r.Below); err != nil {
			return nil, err
		}
	}
	if err := b.plan(ctx, i); err != nil {
		return nil, err
	}
	b.known[ref] = i
	b.all = append(b.all, i)
	return i, nil
}

// isMutable reports whether a version's stable tags are written again.
func (p *Pipeline) isMutable(version string) bool {
	return slices.ContainsFunc(p.Mutable, func(pattern string) bool {
		match, err := filepath.Match(pattern, version)
		return match && err == nil
	})
}

// plan finds out the image's key. That its lock does not fit is its Problem.
func (b *planner) plan(ctx context.Context, i *Image) error {
	if len(i.Version)+1+keyDigits > maxTag {
		return fault.Usage(fmt.Errorf("%s: the version %q is too long for a tag that has a key in it", i.Ref, i.Version))
	}
	if i.Base != nil && i.Base.Problem != nil {
		i.Problem = fmt.Errorf("%s, which it is based on, cannot be planned", i.Base.Ref)
		return nil
	}
	planned, err := b.Plan(ctx, b.session, i.Recipe)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, context.Canceled) {
			return err
		}
		i.Problem = err
		return nil
	}
	defer planned.Close()
	i.Key, i.Canonical, i.record = planned.Image.Key, planned.Canonical, planned.Record()
	return nil
}

// checkNames refuses two images of one name and version: their stable tags would be one.
func (b *planner) checkNames() error {
	seen := make(map[string]string)
	for _, i := range b.all {
		name := i.Name + ":" + i.Version
		if before, ok := seen[name]; ok {
			return fault.Usage(fmt.Errorf("%s: %s and %s are both called %s", b.Path, before, i.Ref, name))
		}
		seen[name] = i.Ref
	}
	return nil
}

// Plan plans the image of a recipe of the pipeline as every machine plans it, from its lock. The caller closes the plan.
func (p *Pipeline) Plan(ctx context.Context, s *engine.Session, r *engine.Recipe) (*engine.Plan, error) {
	p.read.Do(func() { p.trust, _ = p.judges(nil) }) // without a key, nothing is built
	return s.Plan(ctx, r, engine.PlanOptions{Locked: true, Anywhere: true, Canonical: p.CanonicalOf, Trust: p.trust})
}

// CanonicalOf is where the image of a recipe is that has been built, by the key of its plan.
func (p *Pipeline) CanonicalOf(r *engine.Recipe, key plan.Key) string {
	return p.canonicalOf(r.Name, r.Version, key)
}

func (p *Pipeline) canonicalOf(name, version string, key plan.Key) string {
	return p.Staging + "/" + name + ":" + version + "-" + string(key)[:keyDigits]
}

// stableOf lists the references that users take the image of a recipe from: its own repository, if it names one, else those of the
// pipeline.
func (p *Pipeline) stableOf(r *engine.Recipe, version string) []string {
	if r.Publish.Repository != "" {
		return []string{r.Publish.Repository + ":" + version}
	}
	var all []string
	for _, repository := range p.Stable {
		all = append(all, repository+"/"+r.Name+":"+version)
	}
	return all
}

// Below lists the images that there must be before this one: what it is based on, or its parts.
func (i *Image) Below() []*Image {
	if i.Base != nil {
		return []*Image{i.Base}
	}
	return i.Parts
}
