package sif

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/sylabs/sif/v2/pkg/sif"
)

// Limits on what is read of a file.
const (
	maxObjects  = 4096    // Apptainer makes room for 48
	maxDocument = 8 << 20 // bytes of a recipe or JSON document
)

// Open reads the descriptors and the small objects of a SIF file of size bytes. Errors wrap [ErrFormat] when the file is
// damaged or no SIF, and are an [UnsupportedError] when it holds no file system that can be read.
func Open(r io.ReaderAt, size int64) (*File, error) {
	objects, arch, err := load(r, size)
	if err != nil {
		return nil, err
	}
	f := &File{Arch: arch, r: r}
	for _, d := range objects {
		if err := f.add(d, size); err != nil {
			return nil, err
		}
	}
	if f.Partition, err = f.choosePartition(objects); err != nil {
		return nil, err
	}
	return f, nil
}

// load reads the descriptors with the format's own package, after making sure that it will not be led to take more memory
// than the file is worth.
func load(r io.ReaderAt, size int64) (objects []sif.Descriptor, arch string, err error) {
	if err := checkHeader(r, size); err != nil {
		return nil, "", err
	}
	image, err := sif.LoadContainer(readOnly{r}, sif.OptLoadWithCloseOnUnload(false))
	if err != nil {
		return nil, "", fmt.Errorf("read the descriptors of a SIF file: %w", err)
	}
	image.WithDescriptors(func(d sif.Descriptor) bool {
		objects = append(objects, d)
		return false
	})
	return objects, knownArch(image.PrimaryArch()), nil
}

// header is what of the first 128 bytes says where the descriptors are.
type header struct {
	_       [MagicOffset]byte
	Magic   [len(Magic)]byte
	Version [3]byte
	_       [3 + 16 + 8 + 8]byte // architecture, id, times
	_       int64                // how many descriptors are free
	Total   int64                // descriptors
	Offset  int64                // of the descriptors
	Size    int64                // of the descriptors, in bytes
	_       [2 * 8]byte
}

const (
	version        = "01\x00" // of the format, the only one
	headerSize     = 128
	descriptorSize = 585
)

func checkHeader(r io.ReaderAt, size int64) error {
	var h header
	if err := binary.Read(io.NewSectionReader(r, 0, min(size, headerSize)), binary.LittleEndian, &h); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return formatError("it ends inside its header: %w", io.ErrUnexpectedEOF)
		}
		return fmt.Errorf("read the header of a SIF file: %w", err)
	}
	switch {
	case string(h.Magic[:]) != Magic:
		return formatError("its magic number is missing")
	case string(h.Version[:]) != version:
		return formatError("it is of version %q, which is not known", h.Version[:2])
	case h.Total < 0 || h.Total > maxObjects:
		return formatError("it has room for %d objects; at most %d are accepted", h.Total, maxObjects)
	case h.Size < h.Total*descriptorSize || h.Offset < headerSize:
		return formatError("its descriptors, %d bytes at %d, are too few for %d objects", h.Size, h.Offset, h.Total)
	case h.Size > size || h.Offset > size-h.Size:
		return formatError("it ends after %d bytes, inside its descriptors: %w", size, io.ErrUnexpectedEOF)
	}
	return nil
}

// add notes an object, and reads it if it is a document.
func (f *File) add(d sif.Descriptor, size int64) error {
	o := Object{ID: d.ID(), Kind: d.DataType().String(), Name: d.Name(), Offset: d.Offset(), Size: d.Size()}
	switch {
	case o.Offset < headerSize || o.Size < 0:
		return formatError("object %d (%s) has %d bytes at %d", o.ID, o.Kind, o.Size, o.Offset)
	case o.Size > size || o.Offset > size-o.Size:
		return formatError("it ends after %d bytes, before or inside object %d (%s), which has %d bytes at %d: it was cut off: %w",
			size, o.ID, o.Kind, o.Size, o.Offset, io.ErrUnexpectedEOF)
	}
	f.Objects = append(f.Objects, o)
	into := f.document(d)
	if into == nil || *into != nil { // of several the first counts
		return nil
	}
	if o.Size > maxDocument {
		return formatError("object %d (%s) has %d bytes; at most %d are accepted", o.ID, o.Kind, o.Size, maxDocument)
	}
	data := make([]byte, o.Size)
	if _, err := io.ReadFull(f.Section(o), data); err != nil {
		return fmt.Errorf("read object %d (%s) of a SIF file: %w", o.ID, o.Kind, err)
	}
	*into = data
	return nil
}

// document returns where the bytes of an object go; nil when they are not read.
func (f *File) document(d sif.Descriptor) *[]byte {
	switch {
	case d.DataType() == sif.DataDeffile:
		return &f.Deffile
	case d.DataType() == sif.DataGenericJSON && d.Name() == metadataName:
		return &f.Metadata
	case d.DataType() == sif.DataGenericJSON && d.Name() == configName:
		return &f.Config
	}
	return nil
}

// choosePartition finds the one file system that the image is.
func (f *File) choosePartition(objects []sif.Descriptor) (Object, error) {
	var primary []int
	oci := false
	for i, d := range objects {
		oci = oci || d.DataType() == sif.DataOCIRootIndex
		if d.DataType() != sif.DataPartition {
			continue
		}
		switch _, use, _, err := d.PartitionMetadata(); {
		case err != nil:
			return Object{}, formatError("object %d: %w", d.ID(), err)
		case use == sif.PartPrimSys:
			primary = append(primary, i)
		case use == sif.PartOverlay:
			return Object{}, overlaid(d.ID())
		}
	}
	switch {
	case len(primary) > 1:
		return Object{}, formatError("it has %d primary partitions, objects %d and %d; one says what the image is",
			len(primary), objects[primary[0]].ID(), objects[primary[1]].ID())
	case len(primary) == 0 && oci:
		return Object{}, &UnsupportedError{"it holds OCI blobs instead of a file system", "use the image that it was pulled from: docker://HOST/NAME:TAG"}
	case len(primary) == 0:
		return Object{}, &UnsupportedError{"it has no primary partition, so there is no file system in it", "`apptainer sif list FILE` shows what it holds"}
	}
	d := objects[primary[0]]
	kind, _, arch, err := d.PartitionMetadata()
	if err != nil {
		return Object{}, formatError("object %d: %w", d.ID(), err)
	}
	if arch = knownArch(arch); arch != "" { // the header's is a copy
		f.Arch = arch
	}
	return f.Objects[primary[0]], checkKind(kind)
}

func overlaid(id uint32) error {
	return &UnsupportedError{
		fmt.Sprintf("object %d is a writable overlay, whose changes would be lost", id),
		fmt.Sprintf("remove it with `apptainer sif del %d FILE` if they are not wanted", id),
	}
}

// fsGocryptfs is Apptainer's kind of encrypted file system, which the format's package has no name for.
const fsGocryptfs sif.FSType = 6

// checkKind refuses partitions that are no plain squashfs.
func checkKind(kind sif.FSType) error {
	switch kind {
	case sif.FsSquash:
		return nil
	case sif.FsEncryptedSquashfs, fsGocryptfs:
		return &UnsupportedError{"its file system is encrypted", "build it again without --encrypt"}
	case sif.FsExt3:
		return &UnsupportedError{"its file system is ext3, not squashfs", "build it again with `apptainer build NEW.sif FILE`"}
	}
	return &UnsupportedError{fmt.Sprintf("its file system is of kind %d (%s), not squashfs", kind, kind), "build it again with `apptainer build NEW.sif FILE`"}
}

// knownArch turns the package's "unknown" into nothing.
func knownArch(arch string) string {
	if arch == "unknown" {
		return ""
	}
	return arch
}

// Recognise reports whether a file that begins with head is a SIF. 42 bytes are enough.
func Recognise(head []byte) bool {
	return len(head) >= MagicOffset && bytes.HasPrefix(head[MagicOffset:], []byte(Magic))
}

// readOnly is a file that the format's package cannot change.
type readOnly struct{ io.ReaderAt }

var errReadOnly = errors.New("the SIF file is only read")

func (readOnly) Write([]byte) (int, error)      { return 0, errReadOnly }
func (readOnly) Seek(int64, int) (int64, error) { return 0, errReadOnly }
func (readOnly) Truncate(int64) error           { return errReadOnly }
