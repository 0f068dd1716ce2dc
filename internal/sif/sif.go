// Package sif reads and writes SIF files, what Apptainer and Singularity run images from: a squashfs file system with a
// header in front, and beside it small objects that say how it was made.
//
// A file begins with a header of 128 bytes, which starts with the line that makes the file a program. A table of
// descriptors follows, one for each object: its kind, place and size. Object ids count from 1. All numbers are little
// endian. Source: the SIF specification in the format's own Go package, which decides here about every byte.
package sif

import (
	"errors"
	"fmt"
	"io"
)

// File is an open SIF file.
type File struct {
	Arch      string // that the file system is for, by Go's name; "" when the file does not say
	Deffile   []byte // the recipe it was built from; empty when there is none
	Metadata  []byte // inspect-metadata.json: labels and such, as Apptainer shows them
	Config    []byte // oci-config.json: the "config" of the OCI image that it was made from
	Partition Object // the squashfs file system of the image
	Objects   []Object

	r io.ReaderAt
}

// Object is one thing in a SIF file.
type Object struct {
	ID     uint32
	Kind   string // for people
	Name   string // as the file has it, which may be anything
	Offset int64  // from the beginning of the file, in bytes
	Size   int64  // in bytes
}

// Section returns the bytes of an object.
func (f *File) Section(o Object) *io.SectionReader {
	return io.NewSectionReader(f.r, o.Offset, o.Size)
}

// The names of objects that Apptainer gives and looks for.
const (
	metadataName = "inspect-metadata.json"
	configName   = "oci-config.json"
)

// Where the magic number is, so that a file can be recognised by its beginning.
const (
	Magic       = "SIF_MAGIC\x00"
	MagicOffset = 32 // after the line that starts the program
)

// ErrFormat is wrapped by errors about files that are no SIF, or a damaged one.
var ErrFormat = errors.New("not a valid SIF file")

func formatError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrFormat, fmt.Errorf(format, args...))
}

// UnsupportedError is the answer to a good SIF file without a file system that can be read here.
type UnsupportedError struct {
	What   string // about the file
	Remedy string // what the user can do
}

func (e *UnsupportedError) Error() string { return "SIF file: " + e.What }

// Hint returns what the user can do.
func (e *UnsupportedError) Hint() string { return e.Remedy }
