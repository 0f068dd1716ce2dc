package wheelbuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
)

// buildRoot is where the build requirements lie while a package is built, relative to the root: a virtual environment beside
// the image's, so that another version of a package there is neither replaced nor mixed with the image's.
const buildRoot = "opt/sconce-build"

// lookAround stacks up what the build is based on and finds out what the key needs to know of it.
func (s *site) lookAround(ctx context.Context) error {
	above, err := s.environment(ctx)
	if err != nil {
		return fmt.Errorf("build requirements of %s: %w", s.pkg.Name, err)
	}
	s.layers = append(slices.Clone(s.ground.Layers), above...)
	if s.tree, err = image.NewTree(ctx, s.builder.store(), s.layers); err != nil {
		return err
	}
	s.toolkit = s.findToolkit()
	if !s.pkg.Isolated {
		s.torchCUDA = s.findTorchCUDA()
	}
	s.libstdcxx = s.findLibstdcxx()
	s.ccache = isFile(s.tree, "usr/bin/ccache")
	if err := s.checkCUDA(); err != nil {
		return err
	}
	links, err := s.toolkitLinks(ctx)
	s.layers = append(s.layers, links...)
	return err
}

// environment makes the layers of the build requirements.
func (s *site) environment(ctx context.Context) ([]layer.Descriptor, error) {
	target := python.Target{Root: buildRoot, Python: s.ground.Python}
	o := s.builder.Runner.Layer
	env := python.Environment{Target: target, SystemSitePackages: s.ground.SystemSite && !s.pkg.Isolated, Prompt: "build"}
	var layers []layer.Descriptor
	if len(s.pkg.Requires) > 0 {
		group := python.Group{Name: "build requirements of " + s.pkg.Name}
		for _, w := range s.pkg.Requires {
			group.Items = append(group.Items, w.Item)
		}
		d, m, err := python.BuildLayer(ctx, s.builder.store(), group, target, nil, python.LayerOptions{Options: o})
		if err != nil {
			return nil, err
		}
		layers = append(layers, d)
		env.Items, env.Manifests = group.Items, []python.Manifest{m}
	}
	d, err := python.BuildEnvironment(ctx, s.builder.store(), env, o)
	if err != nil {
		return nil, err
	}
	layers = append(layers, d)
	if s.pkg.Isolated || s.ground.Root == "" {
		return layers, nil
	}
	// The image's packages come after the build requirements, with what their own .pth files say (docs of module site).
	bridge := fmt.Sprintf("import site; site.addsitedir(%q)\n", s.ground.sitePackages(s.ground.Root))
	d, err = s.files(ctx, []file{{Entry: layer.Entry{
		Path: strings.TrimPrefix(s.ground.sitePackages(buildRoot), "/") + "/sconce-image.pth", Type: layer.Regular, Mode: 0o644, Size: int64(len(bridge)),
	}, data: []byte(bridge)}})
	return append(layers, d), err
}

// file is an entry with its content.
type file struct {
	layer.Entry
	data []byte
}

// files makes a layer of a few files, with the directories above them.
func (s *site) files(ctx context.Context, files []file) (layer.Descriptor, error) {
	slices.SortFunc(files, func(a, b file) int { return layer.Compare(a.Path, b.Path) })
	w, err := layer.NewWriter(ctx, s.builder.store(), s.builder.Runner.Layer)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	made := make(map[string]bool)
	for _, f := range files {
		for _, dir := range layer.Parents(f.Path) {
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := w.Add(layer.Entry{Path: dir, Type: layer.Dir, Mode: 0o755}, nil); err != nil {
				return layer.Descriptor{}, err
			}
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(f.data)), nil }
		if f.Type != layer.Regular {
			open = nil
		}
		if err := w.Add(f.Entry, open); err != nil {
			return layer.Descriptor{}, err
		}
	}
	return w.Close()
}

// sharedLibrary is the name of a library with the version that programs ask for: libcudart.so.13.
var sharedLibrary = lazyregexp.New(`^(lib.+\.so)\.[0-9]+$`)

// toolkitLinks makes a toolkit that comes as packages look like an installed one. Each package has a part of it, those that
// torch brings in another environment than the compiler; packages hold no links, and compilers look for lib64 and libcudart.so.
func (s *site) toolkitLinks(ctx context.Context) ([]layer.Descriptor, error) {
	home := s.toolkit.home
	if !strings.Contains(home, "/site-packages/") {
		return nil, nil
	}
	links := links{tree: s.tree, to: make(map[string]string)}
	for _, part := range s.toolkit.parts {
		for _, dir := range []string{"include", "lib"} {
			links.fill(path.Join(home, dir), path.Join(part, dir), maxHeaderDepth)
		}
	}
	links.add(path.Join(home, "lib64"), "lib")
	links.addLibraries(path.Join(home, "lib"))
	if len(links.to) == 0 {
		return nil, nil
	}
	d, err := s.files(ctx, links.files())
	return []layer.Descriptor{d}, err
}

// maxHeaderDepth bounds how deep directories of headers are looked into.
const maxHeaderDepth = 16

// links are symbolic links to be added to a tree.
type links struct {
	tree *image.Tree
	to   map[string]string // by the link's absolute path
}

// add links name to a target unless there is something.
func (l links) add(name, target string) {
	if _, err := l.tree.Lstat(name); err != nil && l.to[name] == "" {
		l.to[name] = target
	}
}

// fill links what dir lacks of another directory.
func (l links) fill(dir, other string, depth int) {
	nodes, err := l.tree.ReadDir(other)
	if err != nil || depth == 0 {
		return // most packages have no such directory
	}
	if own, err := l.tree.Lookup(dir); err == nil && own.Type != layer.Dir {
		return
	}
	for _, n := range nodes {
		name, from := path.Join(dir, n.Name()), path.Join(other, n.Name())
		if strings.HasPrefix(n.Name(), "__") { // what makes a Python package of it
			continue
		}
		if n.Type == layer.Dir {
			l.fill(name, from, depth-1)
		} else {
			l.add(name, from)
		}
	}
}

// addLibraries links libNAME.so, which linkers look for, to the libNAME.so.VERSION that is there or linked.
func (l links) addLibraries(dir string) {
	var names []string
	if nodes, err := l.tree.ReadDir(dir); err == nil {
		for _, n := range nodes {
			names = append(names, n.Name())
		}
	}
	for name := range l.to {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if m := sharedLibrary.FindStringSubmatch(name); m != nil {
			l.add(path.Join(dir, m[1]), name)
		}
	}
}

func (l links) files() []file {
	var files []file
	for _, name := range slices.Sorted(maps.Keys(l.to)) {
		files = append(files, file{Entry: layer.Entry{Path: strings.TrimPrefix(name, "/"), Type: layer.Symlink, Mode: 0o777, Link: l.to[name]}})
	}
	return files
}

// findLibstdcxx returns the full name of the C++ library: what is compiled against a newer one does not load with an older.
func (s *site) findLibstdcxx() string {
	for _, dir := range []string{"usr/lib/" + s.ground.Python.Platform + "-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib"} {
		if n, err := s.tree.Lookup(dir + "/libstdc++.so.6"); err == nil {
			return n.Name()
		}
	}
	return ""
}
