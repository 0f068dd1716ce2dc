// Package runtimefiles makes one root file system start under Apptainer and under enroot, with pyxis on top of it or not.
//
// Neither runtime reads an OCI image's configuration. Apptainer finds entrypoint, environment and labels in scripts below
// /.singularity.d, enroot in /etc/rc, /etc/environment and /etc/fstab. This package writes both, as one small layer on top
// of an image, and reads them back from files that somebody else made.
//
//	runtimefiles.go the layer and what is in it      record.go    the image's own configuration, kept in the file
//	place.go        where in the image a path leads  recover.go   a configuration from whatever a root file system has
//	apptainer.go    /.singularity.d                  warnings.go  what an image has that a runtime will not show
//	enroot.go       /etc/rc and its friends          metadata.go  what a SIF says beside its file system
//	facts.go        the configuration, checked       quote.go     words for a shell
//
// The facts about the runtimes are those of enroot 4.1, pyxis 0.24 and Apptainer 1.6; the scripts are our own.
package runtimefiles

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Image is what the files say of an image. The same Image and tree give the same bytes.
type Image struct {
	Config     v1.ConfigFile
	ConfigFile []byte       // the configuration as its publisher wrote it; nil: Config, encoded
	Digest     store.Digest // of the manifest; "" when there is none
	Name       string       // that the image goes by, without a tag; "" when it has none
	Start      store.Digest // of the list of files that are written in the order of a start; "" when there is none
	Reference  string       // where it came from, for people; may be empty
}

// file is one that a runtime reads.
type file struct {
	path string
	mode uint32
	text func(f *facts) (string, error)

	absent func(f *facts) bool // whether this image has no use for it; nil: no image is without

	// scripts of Apptainer or enroot that the image brought along stay, when its entrypoint leads to them
	kept func(f *facts) bool
}

func files() []file { return append(apptainerFiles(), append(enrootFiles(), recordFile())...) }

// Paths returns every file that [Layer] may write, absolute, in no special order. Symlinks in an image may lead to other places.
func Paths() []string {
	var paths []string
	for _, f := range files() {
		paths = append(paths, "/"+f.path)
	}
	return paths
}

// Layer stores a layer that makes an image with these layers below it start under Apptainer and enroot. tree is the image's.
//
// All is owned by root and has the time [layer.DefaultModTime]. Where a directory on the way is a symlink in the image,
// the file is put where it leads. It is an error when something in the image makes that impossible.
func Layer(ctx context.Context, st *store.Store, im Image, tree *image.Tree) (layer.Descriptor, error) {
	d, err := makeLayer(ctx, st, im, tree)
	if err != nil {
		return d, fmt.Errorf("add the files of Apptainer and enroot: %w", err)
	}
	return d, nil
}

func makeLayer(ctx context.Context, st *store.Store, im Image, tree *image.Tree) (layer.Descriptor, error) {
	items, err := contents(im, tree)
	if err != nil {
		return layer.Descriptor{}, err
	}
	// Uncompressed: nobody sends this layer anywhere, and a new version of a compressor must not change its digest.
	w, err := layer.NewWriter(ctx, st, layer.Options{Compression: layer.None, Workers: 1})
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	for _, i := range items {
		err := w.Add(i.Entry, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(i.data)), nil })
		if err != nil {
			return layer.Descriptor{}, err
		}
	}
	return w.Close()
}

// contents lists what the layer holds, in the order of a layer.
func contents(im Image, tree *image.Tree) ([]item, error) {
	f, err := factsOf(im)
	if err != nil {
		return nil, err
	}
	f.look(tree)
	b := newBuilder(tree)
	for _, d := range baseDirs {
		if err := b.baseDir(d.path, d.mode); err != nil {
			return nil, err
		}
	}
	if _, err := b.enter(f.workDir); err != nil {
		return nil, fmt.Errorf("working directory %q: %w", f.workDir, err)
	}
	for _, v := range f.volumes() {
		// enroot would make it, and with no rights for anybody (x-create=dir of enroot 4.1), so that nothing could be written there.
		if err := b.baseDir(v, 0o755); err != nil {
			return nil, fmt.Errorf("volume %q: %w", v, err)
		}
	}
	for _, l := range apptainerLinks {
		if err := b.link(l.path, l.to); err != nil {
			return nil, err
		}
	}
	if err := keepHistory(b, f); err != nil {
		return nil, err
	}
	for _, file := range files() {
		if err := b.generate(file, f); err != nil {
			return nil, err
		}
	}
	return b.sorted(), nil
}

// generate adds a file unless the image's own is to be kept.
func (b *builder) generate(file file, f *facts) error {
	if file.absent != nil && file.absent(f) || file.kept != nil && file.kept(f) && b.has(file.path) {
		return nil
	}
	text, err := file.text(f)
	if err != nil {
		return err
	}
	return b.file(file.path, file.mode, []byte(text))
}

func (b *builder) sorted() []item {
	items := make([]item, 0, len(b.items))
	for _, i := range b.items {
		items = append(items, i)
	}
	slices.SortFunc(items, func(a, b item) int { return layer.Compare(a.Path, b.Path) })
	return items
}
