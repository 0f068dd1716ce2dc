package facts

import (
	"context"
	"io"

	"sconce.dev/sconce/internal/fatbin"
)

// Files are the files of an image: [Tree], [Outlined], [ClusterFile] or [Squashfs].
type Files interface {
	// Walk asks about every regular file of more than minSize bytes, once for all its names, and shows those that are
	// wanted. An error of visit ends the walk; other errors are those of the image, whose files cannot be read.
	Walk(ctx context.Context, wanted Filter, visit func(File) error) error
	// scan looks at all files for machine code of processors and GPUs, several side by side, but for those of which a store
	// knows what is in them. The result is in the order of the paths.
	scan(ctx context.Context) ([]scanned, error)
}

// Filter decides about a file by its path in the image and its first bytes, headSize of them.
type Filter func(name string, head []byte) bool

// File is a file of an image.
type File struct {
	Path    string      // in the image, without a slash in front
	Size    int64       // bytes
	Content io.ReaderAt // until visit returns
}

const (
	minSize  = fatbin.MinSize
	headSize = fatbin.HeadSize
)
