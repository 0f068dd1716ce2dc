// Package transfer copies files into an image.
//
// What COPY, ADD and WORKDIR of a Containerfile do, and what a recipe's copy and patch do, becomes one layer each. Nothing of the
// image runs: the layer follows from the files and from the image's merged tree.
package transfer

import (
	"context"
	"errors"
	"io"

	_ "github.com/bluekeyes/go-gitdiff/gitdiff"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Files is where files come from: a build context or the tree of an image.
type Files interface {
	files()
}

// Context is a directory of the build machine, without what its ignore file excludes.
type Context struct{}

func (c *Context) files() {}

// OpenContext opens the build context in dir. ignoreFile is the file of patterns; when it is empty, .containerignore or
// .dockerignore in dir is used, if there is one.
func OpenContext(dir, ignoreFile string) (*Context, error) { return nil, errors.ErrUnsupported }

// Layer makes a layer of the whole context.
func (c *Context) Layer(ctx context.Context, st *store.Store, o layer.Options) (layer.Descriptor, error) {
	return layer.Descriptor{}, errors.ErrUnsupported
}

// Digest returns the digest of the whole context.
func (c *Context) Digest(ctx context.Context) (store.Digest, error) { return "", errors.ErrUnsupported }

// FromTree returns the files of an image.
func FromTree(t *image.Tree) Files { return nil }

// InlineFile is a file whose content stands in the Containerfile itself (a heredoc).
type InlineFile struct {
	Name    string
	Content []byte
}

// URL is a remote source of ADD.
type URL struct {
	Address string
	Digest  store.Digest // what the bytes must have; "" when not given
}

// Copy is one COPY or ADD.
type Copy struct {
	Sources []string     // patterns, relative to the root of the Files
	Inline  []InlineFile // heredocs
	URLs    []URL        // of ADD
	Dest    string       // absolute; ends in "/" or "/." when a directory is meant
	Chown   string       // USER[:GROUP], names of the image or numbers; "" is root, or the owner in the image that it comes from
	Chmod   string       // octal or symbolic
	Parents bool
	Exclude []string
	Link    bool
	Extract bool // archives among the sources are unpacked
}

// Digest returns the digest of what would be copied.
func (c Copy) Digest(ctx context.Context, from Files) (store.Digest, error) {
	return "", errors.ErrUnsupported
}

// Open opens a remote source and says what name its file has.
type Open = func(ctx context.Context, u URL) (content io.ReadCloser, name string, err error)

// Layer copies files of from into the image onto.
func (c Copy) Layer(ctx context.Context, st *store.Store, from Files, onto *image.Tree, o layer.Options, open Open) (layer.Descriptor, error) {
	return layer.Descriptor{}, errors.ErrUnsupported
}

// MakeDir makes the directory dir of the image onto, if it has none.
func MakeDir(ctx context.Context, st *store.Store, dir, owner string, onto *image.Tree, o layer.Options) (d layer.Descriptor, made bool, err error) {
	return layer.Descriptor{}, false, errors.ErrUnsupported
}

// Patch is a unified diff.
type Patch struct {
	Text  []byte
	Dir   string
	Strip int
}

// Layer applies the patch to the image onto.
func (p Patch) Layer(ctx context.Context, st *store.Store, onto *image.Tree, o layer.Options) (layer.Descriptor, error) {
	return layer.Descriptor{}, errors.ErrUnsupported
}
