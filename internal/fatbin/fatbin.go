// Package fatbin lists the GPU code that a file carries: each image of each CUDA fatbin region in ELF files (shared objects,
// executables, relocatable objects), static archives, and bare fatbin, cubin and PTX files, and the targets of ROCm's offload
// bundles. [Scan] reads headers only, [File.Coverage] tells which devices the code is for, [File.Verify] unpacks the images and
// compares them with their headers.
//
// # The format
//
// A region is a header of 16 bytes and entries, back to back. All numbers are little endian.
//
//	0  u32  0xBA55ED50      4  u16  version, 1      6  u16  size of this header, 16      8  u64  bytes of the entries
//
// An entry is a header of at least 64 bytes and a payload that is padded to a multiple of 8.
//
//	 0  u16  kind            2  u16  version, 0x0101   4  u32  size of this header, records included
//	 8  u64  padded payload  16  u32  compressed size, 0 when stored
//	20  u32  options record  24  u16  minor version   26  u16  major version (of PTX; 1 for cubins)
//	28  u32  arch, 90 for sm_90                       32  u32  identifier   36  u32  its length
//	40  u64  flags           48  u64  0, or a key     56  u64  uncompressed size, 0 when stored
//
// An options record is the offset and the length of a string, both u32 and counted from the start of the entry. Entries of kind
// [Concatenated] (fatbinary of CUDA 13, option --concat) have a list of entries in place of the string: u32 count, u32 size of the
// list, these 8 bytes included, and one header for each image. There the field of the header's size holds the image's place in
// the unpacked payload, and the header ends after its last record, on a multiple of 8.
//
// NVIDIA publishes the wrapper (fatbinary_section.h) and the outer magic, and no more. The rest was learnt from files, and is
// checked against cuobjdump in the tests. The cubin's ELF flags are in LLVM's BinaryFormat/ELF.h, PTX is in the PTX ISA.
package fatbin

import (
	"errors"
	"fmt"
	"io"
	"iter"
)

// File is the GPU code of one file.
type File struct {
	Format   Format
	Regions  []Region  // by offset within each section, archive members in their order
	Wrappers []Wrapper // of .nvFatBinSegment
	Bundles  []Bundle  // of ROCm
	Problems []Problem // where the file is not what the format says; at most 100

	// Linked is whether the host code was linked, false for relocatable objects and archives. It decides what the relocatable
	// regions are: input of a later link, or left over from the one that was.
	Linked bool

	r    io.ReaderAt
	size int64
}

// Format is what a file is.
type Format string

// The formats that hold GPU code.
const (
	ELF     Format = "elf"
	Archive Format = "archive"
	Fatbin  Format = "fatbin"
	Cubin   Format = "cubin"
	PTXText Format = "ptx"
	Offload Format = "offload-bundle" // of ROCm
)

// Place is where a region is.
type Place string

// The places of regions.
const (
	Executable  Place = "executable"  // .nv_fatbin: the program registers these
	Relocatable Place = "relocatable" // __nv_relfatbin: input of a device link (nvcc -rdc)
	Stray       Place = "stray"       // in other data, where the program loads it by its own means; found by its magic
	Bare        Place = "bare"        // the file itself
)

// Region is a set of images of the same code, of which the driver chooses one.
type Region struct {
	Member  string // of an archive
	Section string // of an ELF file
	Place   Place
	Offset  int64 // in the file
	Size    int64 // bytes, header included
	Wrapper int   // version of the wrapper that points here: 1, 2 for device-linked code, 0 when there is none

	// Headerless regions are a single cubin or PTX text without any fatbin header.
	Headerless bool
	Entries    []Entry
}

// Images yields the images that the region holds: its entries, and in place of concatenated ones their parts.
func (r *Region) Images() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for i := range r.Entries {
			e := &r.Entries[i]
			if e.Kind != Concatenated && !yield(e) {
				return
			}
			for j := range e.Parts {
				if !yield(&e.Parts[j]) {
					return
				}
			}
		}
	}
}

// Entry is one image.
type Entry struct {
	Kind         Kind
	Arch         Arch
	Major, Minor int // the PTX version of PTX; of cubins 1 and the version of their ELF ABI
	Flags        Flags
	Compression  Compression

	Offset           int64 // of the header in the file; of a part: of its payload within the unpacked payload
	HeaderSize       int64 // bytes; 0 for parts and headerless images
	PaddedSize       int64 // bytes that the payload takes
	PayloadSize      int64 // bytes of it that count; as PaddedSize when stored, because nothing tells
	UncompressedSize int64 // bytes; as PayloadSize when stored

	Parts []Entry // of a concatenated entry, with the sizes they have in the unpacked payload
}

// End is the offset of the first byte after the entry, in the file.
func (e *Entry) End() int64 { return e.Offset + e.HeaderSize + e.PaddedSize }

// Kind is what an image is.
type Kind uint16

// The kinds of images.
const (
	PTX            Kind = 0x01
	ELFImage       Kind = 0x02 // a cubin
	LTOIR          Kind = 0x08 // NVVM IR for link-time optimization
	AlternativeELF Kind = 0x10
	RelocatablePTX Kind = 0x40
	Concatenated   Kind = 0x100 // several images, compressed as one
)

func (k Kind) String() string {
	switch k {
	case PTX:
		return "ptx"
	case ELFImage:
		return "elf"
	case LTOIR:
		return "lto-ir"
	case AlternativeELF:
		return "alternative-elf"
	case RelocatablePTX:
		return "relocatable-ptx"
	case Concatenated:
		return "concatenated"
	}
	return fmt.Sprintf("kind-%d", uint16(k))
}

// known tells the kinds of this package's constants from all others.
func (k Kind) known() bool {
	switch k {
	case PTX, ELFImage, LTOIR, AlternativeELF, RelocatablePTX, Concatenated:
		return true
	}
	return false
}

// Flags of an entry, as the header has them.
type Flags uint64

// The flags whose meaning is known.
const (
	Flag64Bit    Flags = 0x1
	FlagDebug    Flags = 0x2
	FlagLinux    Flags = 0x10
	FlagOldPack  Flags = 0x1000 // a compression of the past
	FlagLZ4      Flags = 0x2000
	FlagZstd     Flags = 0x8000
	FlagScramble Flags = 0x10000  // LTO-IR under a key that bytes 48 to 55 hold
	FlagArchOnly Flags = 0x100000 // the "a" of sm_90a
	FlagFamily   Flags = 0x200000 // the "f" of sm_100f
)

// Compression is how a payload is packed.
type Compression string

// The compressions.
const (
	Stored      Compression = "none"
	LZ4         Compression = "lz4" // a bare block, without the frame
	Zstd        Compression = "zstd"
	UnknownPack Compression = "unknown"
)

// Problem is a place where a file departs from the format.
type Problem struct {
	Member string // of an archive
	Offset int64  // in the file
	Text   string
}

func (p Problem) String() string {
	if p.Member != "" {
		return fmt.Sprintf("%s, byte %d: %s", p.Member, p.Offset, p.Text)
	}
	return fmt.Sprintf("byte %d: %s", p.Offset, p.Text)
}

// Options of [Scan]. The zero value looks everywhere.
type Options struct {
	SectionsOnly bool // do not search other data for stray regions, which reads all of it
}

// ErrFormat is what Scan's errors wrap when a file cannot hold GPU code.
var ErrFormat = errors.New("no file that can hold GPU code")

// Scan lists the GPU code in the size bytes of r, which must stay readable while the File is used. It reads headers and, unless
// o says otherwise, the data sections of ELF files; payloads it skips. Damage is told in File.Problems, beside what could be
// read. Errors wrap [ErrFormat], or are those of r.
func Scan(r io.ReaderAt, size int64, o Options) (*File, error) {
	s := &scanner{source: newSource(r, size), file: &File{r: r, size: size}, options: o}
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("scan for GPU code: %w", err)
	}
	return s.file, nil
}
