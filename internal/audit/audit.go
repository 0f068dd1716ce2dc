// Package audit looks into the files of an image and says what they need of the machine that will run them.
//
// [GPU] lists the device code: for which GPUs each library has any, and how much room it takes.
package audit

import (
	"context"
	"io"

	"sconce.dev/sconce/internal/fatbin"
)

// Files are the files of an image.
type Files interface {
	// Walk asks about every regular file of more than minSize bytes, once for all its names, and shows those that are
	// wanted. An error of visit ends the walk; other errors are those of the image, whose files cannot be read.
	Walk(ctx context.Context, wanted Filter, visit func(File) error) error
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
