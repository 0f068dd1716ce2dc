// Package elfx tells what a program or library needs at run time without running anything: the libraries, the versions of
// their symbols, the symbols themselves, and where the dynamic loader of an image would find them.
//
// [Open] reads one file, [Loader.Closure] does what ld.so does for it in a file system, and [Loader.Check] finds what
// would fail at the start. Files may be damaged or malicious: every table is read with a limit, nothing is believed about
// its size, and the answer to bad input is an error that wraps [ErrFormat].
//
// Sources: the System V ABI (gABI) chapters 4 and 5, the LSB core specification on symbol versions, the x86-64 psABI on
// program properties, and ld.so(8).
package elfx

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// File is what the headers and the dynamic section of an ELF file say.
type File struct {
	Arch        string // by Go's name, or by ELF's (EM_SPARCV9) where Go has none
	Machine     elf.Machine
	Class       elf.Class
	Kind        Kind
	Dynamic     bool // has a dynamic section; a static program has none
	Interpreter string
	Soname      string
	Needed      []string
	Rpath       string // as it stands there; without effect beside a Runpath
	Runpath     string
	Flags1      elf.DynFlag1  // DT_FLAGS_1, such as elf.DF_1_NODEFLIB
	ISALevel    int           // x86-64 level that the processor must have, 1 to 4; 0 when the file does not say
	Kernel      string        // oldest Linux that it runs on, such as "3.2.0"; "" when the file does not say
	Requires    []Requirement // versions of other files' symbols
	Provides    []string      // versions of its own symbols, without the base version that is the file's name

	hasRunpath bool
	image      image
	strings    region
	symbols    region
	versym     region
	versions   map[uint16]symbolVersion
}

// Requirement is what a file needs of one library.
type Requirement struct {
	Library  string // as in Needed
	Versions []Version
}

// Version is a version of symbols, such as GLIBC_2.34.
type Version struct {
	Name string
	Weak bool // the loader only warns when it is missing
}

// Kind is what a file is for.
type Kind int

// The kinds of ELF files.
const (
	Other      Kind = iota // an object file, a core dump
	Executable             // at a fixed address
	PIE                    // position-independent executable
	Shared                 // library
)

func (k Kind) String() string {
	switch k {
	case Executable:
		return "executable"
	case PIE:
		return "position-independent executable"
	case Shared:
		return "shared library"
	}
	return "other"
}

// Errors that are wrapped by those of [Open].
var (
	ErrNotELF = errors.New("not an ELF file")
	ErrFormat = errors.New("damaged ELF file")
)

func formatError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrFormat, fmt.Errorf(format, args...))
}

// IsELF says whether a file that begins with these bytes may be an ELF file. Four are enough.
func IsELF(beginning []byte) bool {
	return len(beginning) >= len(elf.ELFMAG) && string(beginning[:len(elf.ELFMAG)]) == elf.ELFMAG
}

// Open reads a file of size bytes. It reads the headers and the tables for the dynamic loader, some ten kilobytes, but no
// symbols. The file keeps r for [File.Symbols]. Errors wrap [ErrNotELF], [ErrFormat] or what r returned.
func Open(r io.ReaderAt, size int64) (*File, error) {
	f := &File{image: image{r: r, size: size}}
	p := &parser{File: f, window: window{image: &f.image}}
	for _, step := range []struct {
		what string
		read func() error
	}{
		{"the header", p.readHeader},
		{"the program headers", p.readSegments},
		{"the notes", p.readNotes},
		{"the dynamic section", p.readDynamic},
		{"the versions needed", p.readNeeds},
		{"the versions defined", p.readDefinitions},
		{"the place of the symbols", p.findSymbols},
	} {
		if err := step.read(); err != nil {
			if errors.Is(err, ErrNotELF) {
				return nil, err
			}
			return nil, fmt.Errorf("read %s: %w", step.what, err)
		}
	}
	f.Kind = p.kind()
	return f, nil
}
