package source

import (
	"context"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/searchpath"
)

// TarRoot is a root file system in an uncompressed tar, which can be read where it lies: nothing of it enters the store.
type TarRoot struct {
	Layer  layer.Source
	Config v1.ConfigFile
	Size   int64 // of the tar, in bytes

	file *os.File
}

// OpenTarRoot opens the root file system that a reference to a tar means. It returns nil for a tar that is compressed, where
// nothing can be looked up without decompressing all before it: such a one is imported. The caller closes it.
func OpenTarRoot(ctx context.Context, ref Ref, o Options) (*TarRoot, error) {
	if ref.Transport != Tar || ref.Digest != "" {
		return nil, nil
	}
	f, err := openRegular(ref.Value)
	if err != nil {
		return nil, err
	}
	t, err := openTarRoot(ctx, f, o)
	if t == nil {
		f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	return t, nil
}

func openTarRoot(ctx context.Context, f *os.File, o Options) (*TarRoot, error) {
	plain, err := isPlainTar(f)
	if err != nil || !plain {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	t := &TarRoot{Layer: layer.TarFile(o.Store, f), Size: st.Size(), file: f}
	ix, err := t.Layer.Index(ctx)
	if err != nil {
		return nil, err
	}
	tree, err := image.TreeOf([]*layer.Index{ix})
	if err != nil {
		return nil, err
	}
	platform, err := treePlatform(tree, o)
	if err != nil {
		return nil, err
	}
	t.Config = v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant,
		Config: v1.Config{Env: []string{"PATH=" + searchpath.Default}, Cmd: []string{"/bin/sh"}},
	}
	return t, nil
}

// Close closes the tar, which the layer reads from.
func (t *TarRoot) Close() error { return t.file.Close() }

// treePlatform is what a merged tree's programs run on. What the user says must agree with it, and is believed where there
// is no program to ask.
func treePlatform(tree *image.Tree, o Options) (v1.Platform, error) {
	have, err := detectPlatform(func(name string) (io.ReadCloser, error) { return openInTree(tree, name) })
	if err != nil {
		return v1.Platform{}, err
	}
	return choosePlatform(have, o)
}
