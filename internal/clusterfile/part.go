package clusterfile

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

// A plain file may hold a part of an image: a directory of it, with files added.

// inRoot reports whether a path lies below the directory that becomes the root.
func (w *writer) inRoot(path string) bool {
	return w.in.Root == "" || strings.HasPrefix(path, w.in.Root+"/")
}

// walk visits what lies below the directory that becomes the root.
func (w *writer) walk(tree *image.Tree, visit func(n *image.Node) error) error {
	return tree.Walk(func(n *image.Node) error {
		switch {
		case w.inRoot(n.Path):
			return visit(n)
		case n.Path == w.in.Root || strings.HasPrefix(w.in.Root, n.Path+"/") || n.Type != layer.Dir:
			return nil
		}
		return fs.SkipDir
	})
}

// addFiles puts the added files on top of the image.
func (w *writer) addFiles(indexes []*layer.Index) (*image.Tree, error) {
	d, err := w.filesLayer()
	if err != nil {
		return nil, fmt.Errorf("add files: %w", err)
	}
	top, err := layer.OpenIndex(w.ctx, w.own, d)
	if err != nil {
		return nil, err
	}
	w.in.Layers = append(slices.Clone(w.in.Layers), Layer{Name: "added files"})
	return image.TreeOf(append(indexes, top))
}

func (w *writer) filesLayer() (layer.Descriptor, error) {
	to, err := layer.NewWriter(w.ctx, w.own, layer.Options{Compression: layer.None, Workers: 1})
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer to.Abort()
	for _, name := range slices.Sorted(maps.Keys(w.in.Files)) {
		data := w.in.Files[name]
		e := layer.Entry{Path: name, Mode: 0o644, Size: int64(len(data)), ModTime: layer.DefaultModTime}
		if err := to.Add(e, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }); err != nil {
			return layer.Descriptor{}, err
		}
	}
	return to.Close()
}
