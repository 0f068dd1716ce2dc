package facts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// OfImage gathers the facts of an image in a store. name is what the user calls it. The caller closes the facts.
func OfImage(ctx context.Context, st *store.Store, im *image.Image, name string) (*Facts, error) {
	l := newLayered(ctx, st, im, name)
	var err error
	if l.root.tree, err = im.Tree(ctx, st); err != nil {
		return nil, errors.Join(err, l.facts.Close())
	}
	return l.gatherTree(ctx, st)
}

// OfOutline is OfImage for an image whose layers need not be in the store, and come only when something in them is wanted that
// the store does not know.
func OfOutline(ctx context.Context, st *store.Store, o *image.Outline, name string) (*Facts, error) {
	return newLayered(ctx, st, o.Image, name).ofOutline(ctx, st, o)
}

func (l *layered) ofOutline(ctx context.Context, st *store.Store, o *image.Outline) (*Facts, error) {
	l.facts.missing = o.Err
	l.root.pages.far = true
	var err error
	if l.root.tree, err = l.passing.tree(ctx, o); err != nil {
		return nil, errors.Join(err, l.facts.Close())
	}
	return l.gatherTree(ctx, st)
}

// layered gathers the facts of an image that has layers.
type layered struct {
	gatherer
	root    *treeRoot
	passing *passing
}

func newLayered(ctx context.Context, st *store.Store, im *image.Image, name string) *layered {
	ids := []string{"layers"}
	for _, d := range im.Layers {
		ids = append(ids, string(d.DiffID))
	}
	root := &treeRoot{ctx: ctx, copies: newCopies(st, copiesRoom), pages: newPages()}
	l := &layered{gatherer{cache: cache{st}, made: ids}, root, newPassing(st, im, root.copies, root.pages)}
	var kept pageRecord
	key := l.cache.key(ids...)
	if l.cache.get(store.KindAuditPages, key, &kept) {
		root.pages.load(kept)
	}
	l.facts = &Facts{
		Image: name, Digest: string(im.Digest), Platform: platformName(im.Platform()), Created: im.Config.Created.Time, Config: im.Config.Config, Root: root,
		close: func() error {
			defer root.copies.Close()
			if !root.pages.add(&kept) {
				return nil
			}
			return l.cache.put(store.KindAuditPages, key, kept)
		},
	}
	return l
}

func (l *layered) gatherTree(ctx context.Context, st *store.Store) (*Facts, error) {
	l.facts.Hidden = l.root.tree.Hidden()
	f, err := l.gather(ctx, func(ctx context.Context) ([]scanned, error) {
		return scanTree(ctx, treeFiles{l.root.tree, st}, l.passing)
	})
	l.root.pages.gathered()
	return f, err
}

// OfClusterFile gathers the facts of a squashfs or SIF file, which stays open as long as they are used. They are kept in the
// store, unless that is nil. The caller closes the facts, then the file.
func OfClusterFile(ctx context.Context, st *store.Store, c *source.ClusterFile, name string) (*Facts, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	digest, err := clusterfile.Digest(c.FS)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		digest = "" // what it says of itself is of no use
	}
	files, err := clusterFiles(c, st)
	if err != nil {
		return nil, err
	}
	f := &Facts{
		Image: name, Digest: string(digest), Platform: platformName(*config.Platform()), Created: config.Created.Time, Config: config.Config, Root: files.root,
	}
	g := gatherer{facts: f, cache: files.cache, made: []string{"tables", string(files.id)}}
	return g.gather(ctx, files.scan)
}

// OfRoot gathers the facts of a file system of which nothing is kept, such as a directory of a test. platform is "linux/amd64".
func OfRoot(ctx context.Context, root Root, name, platform string, config v1.Config) (*Facts, error) {
	g := gatherer{facts: &Facts{Image: name, Platform: platform, Config: config, Root: root}}
	return g.gather(ctx, (&rootFiles{root: root}).scan)
}

func platformName(p v1.Platform) string {
	if p.Architecture == "" {
		return ""
	}
	return strings.TrimSuffix(p.OS+"/"+p.Architecture+"/"+p.Variant, "/")
}

// Close gives up the temporary files that Root reads from.
func (f *Facts) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

var _ io.Closer = (*Facts)(nil)

// FindPackages adds which Python and conda packages there are. A sketch has none before. Only packages are looked for: which of their files
// have placeholders is found when all facts are gathered.
func (f *Facts) FindPackages(ctx context.Context) error {
	_, err := f.findPackages(ctx)
	return err
}

func (f *Facts) findPackages(ctx context.Context) (files []held, err error) {
	if f.Pythons, err = findPythons(ctx, f); err == nil {
		f.Conda, files, err = findConda(ctx, f)
	}
	return files, err
}

// Missing returns why a part of the image could not be brought. Files there were taken for damaged ones.
func (f *Facts) Missing() error {
	if f.missing == nil {
		return nil
	}
	return f.missing()
}

// gatherer fills in the facts of an image whose Root is there.
type gatherer struct {
	facts *Facts
	cache cache
	made  []string // what names the files of the image
}

func (g *gatherer) gather(ctx context.Context, scan func(context.Context) ([]scanned, error)) (*Facts, error) {
	if err := g.fill(ctx, scan); err != nil {
		return nil, errors.Join(fmt.Errorf("audit %s: %w", g.facts.Image, err), g.facts.Close())
	}
	return g.facts, nil
}

func (g *gatherer) fill(ctx context.Context, scan func(context.Context) ([]scanned, error)) error {
	f := g.facts
	err := f.Root.All(func(i Info) error {
		f.Paths = append(f.Paths, i)
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	found, err := scan(ctx)
	if err != nil {
		return err
	}
	f.GPU = gpuReport(found)
	f.addObjects(found)
	return cmp.Or(g.together(ctx), f.Missing())
}

func (f *Facts) addObjects(found []scanned) {
	damaged := 0
	for i := range found {
		s := &found[i]
		if s.Object != nil {
			f.Objects = append(f.Objects, *s.Object)
		}
		for _, d := range s.Damage {
			if damaged++; damaged <= maxWarnings {
				f.Warnings = append(f.Warnings, s.path+": "+d)
			}
		}
	}
	if more := damaged - maxWarnings; more > 0 {
		f.Warnings = append(f.Warnings, fmt.Sprintf("%d more warnings", more))
	}
}

// togetherKey is what [gatherer.together] finds is kept under.
func (g *gatherer) togetherKey() string {
	config, err := json.Marshal(g.facts.Config)
	if err != nil {
		panic(err) // it came from JSON
	}
	return g.cache.key(append([]string{g.facts.Platform, string(config)}, g.made...)...)
}

// together finds what shows only when all files are looked at: it depends on the configuration, too.
func (g *gatherer) together(ctx context.Context) error {
	f := g.facts
	key := g.togetherKey()
	var known imageFacts
	if g.cache.get(store.KindAuditImage, key, &known) {
		f.Links, f.Pythons, f.Conda = known.Links, known.Pythons, known.Conda
		return nil
	}
	task := progress.Begin(ctx, "scan", "Python packages and linked libraries", 0)
	files, err := f.findPackages(ctx)
	if err == nil {
		err = g.findPlaceholders(ctx, files)
	}
	if err == nil {
		f.Links, err = findLinks(ctx, f)
	}
	if missing := f.Missing(); missing != nil {
		err = missing
	}
	if task.End(err) != nil {
		return err
	}
	if err := g.cache.put(store.KindAuditImage, key, imageFacts{f.Links, f.Pythons, f.Conda}); err != nil {
		return fmt.Errorf("keep what was found: %w", err)
	}
	return nil
}
