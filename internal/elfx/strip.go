package elfx

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Strip finds what can be taken out of an ELF program or shared library of size bytes without any change for those who
// run it, load it or link against it: the symbol table for debuggers (.symtab, not .dynsym) and DWARF, as binutils'
// strip --strip-unneeded does. It reads headers only.
//
// All that is loaded stays as it is and where it is: every byte up to the end of the last segment and the last allocated
// section, but for three fields of the ELF header that say where the table of sections is. What follows, sections that no
// program sees, is laid down again without those that go.
//
// In a file to which patchelf has appended what is loaded, nothing moves. What goes becomes zeros, which take next to nothing
// in a compressed layer or a squashfs, and its headers those of no section. The size stays, but for a new table of sections
// when the old one is itself loaded.
//
// Of a file that is in any way unlike what linkers write, nothing is taken: the error is then a [KeptError]. Errors also
// wrap [ErrNotELF], [ErrFormat] and what r returned.
func Strip(r io.ReaderAt, size int64) (*Stripped, error) {
	s := &stripper{r: r, size: size}
	for _, step := range []func() error{s.readHeader, s.readTables, s.readNames, s.findEnd, s.choose, s.checkRest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	out := s.lay()
	if out.Size-out.Zeroed >= size {
		return nil, keptf("nothing can be stripped")
	}
	return out, s.prove(out)
}

// KeptError is why nothing is taken out of a file.
type KeptError struct{ Reason string }

func (e *KeptError) Error() string { return e.Reason }

func keptf(format string, args ...any) error { return &KeptError{fmt.Sprintf(format, args...)} }

// The sizes of ELF-64, in bytes, and the fields of its header that strip changes (gABI, chapter 4).
const (
	header64  = 64
	segment64 = 56
	section64 = 64

	fieldSections     = 40 // e_shoff, u64
	fieldSectionCount = 60 // e_shnum, u16
	fieldSectionNames = 62 // e_shstrndx, u16
)

// Limits on what is read of a file.
const (
	maxStripSections = 0xff00 // SHN_LORESERVE: more are counted elsewhere
	maxSectionNames  = 16 << 20
	maxGap           = 64 << 10 // bytes between two sections that may be zeros for alignment
	maxStripAlign    = 64 << 10
)

// strippable are the machines whose files are known. Code for GPUs comes as ELF files too.
var strippable = []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64, elf.EM_RISCV}

var le64 = binary.LittleEndian

// stripper is the work on one file.
type stripper struct {
	r        io.ReaderAt
	size     int64
	head     []byte
	segments []byte
	sections []section
	loaded   []span
	end      int64 // of all that is loaded
	keep     []bool

	inPlace     bool // nothing moves
	tableLoaded bool // nor may the table of sections change where it is
}

// section is a section header as it stands in the file.
type section struct {
	name                    string
	nameAt                  uint32
	kind                    elf.SectionType
	flags, addr, off, size  uint64
	link, info              uint32
	align, entry            uint64
	bytes                   []byte // of the header
	allocated, takesNothing bool
}

func (s *section) end() int64 { return int64(s.off + s.size) }

func (s *stripper) read(off uint64, n int64) ([]byte, error) {
	if off > uint64(s.size) || n > s.size-int64(off) {
		return nil, formatError("%d bytes at %d, beyond the end of the file", n, off)
	}
	b := make([]byte, n)
	if got, err := s.r.ReadAt(b, int64(off)); int64(got) < n {
		return nil, fmt.Errorf("read %d bytes at %d: %w", n, off, unexpectedEnd(err))
	}
	return b, nil
}

func (s *stripper) readHeader() error {
	if s.size < header64 {
		return ErrNotELF
	}
	var err error
	if s.head, err = s.read(0, header64); err != nil {
		return err
	}
	if !IsELF(s.head) {
		return ErrNotELF
	}
	if elf.Class(s.head[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(s.head[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return keptf("it is not for a 64-bit little-endian processor")
	}
	if m := elf.Machine(le64.Uint16(s.head[18:])); !slices.Contains(strippable, m) {
		return keptf("it is for a machine whose files are not known well enough (%s)", m)
	}
	switch kind := elf.Type(le64.Uint16(s.head[16:])); kind {
	case elf.ET_EXEC, elf.ET_DYN:
	case elf.ET_REL:
		return keptf("an object file or a kernel module is linked by its symbols")
	default:
		return keptf("it is neither a program nor a library (%s)", kind)
	}
	return nil
}

func (s *stripper) readTables() error {
	count, names := le64.Uint16(s.head[fieldSectionCount:]), le64.Uint16(s.head[fieldSectionNames:])
	segments := le64.Uint16(s.head[56:])
	switch {
	case le64.Uint16(s.head[52:]) != header64 || le64.Uint16(s.head[54:]) != segment64 || segments == 0 || segments == math.MaxUint16:
		return keptf("its header is unusual")
	case count == 0:
		return keptf("it has no table of sections")
	case le64.Uint16(s.head[58:]) != section64 || count >= maxStripSections || names == 0 || names >= count:
		return keptf("its header is unusual")
	}
	var err error
	if s.segments, err = s.read(le64.Uint64(s.head[32:]), int64(segments)*segment64); err != nil {
		return err
	}
	table, err := s.read(le64.Uint64(s.head[fieldSections:]), int64(count)*section64)
	if err != nil {
		return err
	}
	for b := range slices.Chunk(table, section64) {
		sec := section{
			nameAt: le64.Uint32(b), kind: elf.SectionType(le64.Uint32(b[4:])), flags: le64.Uint64(b[8:]), addr: le64.Uint64(b[16:]),
			off: le64.Uint64(b[24:]), size: le64.Uint64(b[32:]), link: le64.Uint32(b[40:]), info: le64.Uint32(b[44:]),
			align: le64.Uint64(b[48:]), entry: le64.Uint64(b[56:]), bytes: b,
		}
		sec.allocated = elf.SectionFlag(sec.flags)&elf.SHF_ALLOC != 0
		sec.takesNothing = sec.kind == elf.SHT_NOBITS || sec.kind == elf.SHT_NULL || sec.size == 0
		if !sec.takesNothing && (sec.off > uint64(s.size) || sec.size > uint64(s.size)-sec.off) {
			return keptf("it is a file of symbols for debuggers, or was cut off: a section lies beyond its end")
		}
		if sec.link >= uint32(count) {
			return keptf("its table of sections is damaged")
		}
		s.sections = append(s.sections, sec)
	}
	return nil
}

func (s *stripper) readNames() error {
	table := &s.sections[le64.Uint16(s.head[fieldSectionNames:])]
	if table.kind != elf.SHT_STRTAB || table.allocated || table.size > maxSectionNames {
		return keptf("its header is unusual")
	}
	names, err := s.read(table.off, int64(table.size))
	if err != nil {
		return err
	}
	for i := range s.sections {
		sec := &s.sections[i]
		if uint64(sec.nameAt) >= uint64(len(names)) {
			return keptf("its table of sections is damaged")
		}
		name, _, ok := bytes.Cut(names[sec.nameAt:], []byte{0})
		if !ok {
			return keptf("its table of sections is damaged")
		}
		sec.name = string(name)
		if strings.Contains(sec.name, "signature") || sec.name == ".sig" || strings.HasSuffix(sec.name, "_sig") {
			return keptf("it is signed (section %s)", sec.name)
		}
	}
	return nil
}

// findEnd finds where all that is loaded ends.
func (s *stripper) findEnd() error {
	grow := func(off, size uint64) error {
		if off > uint64(s.size) || size > uint64(s.size)-off {
			return keptf("it is a file of symbols for debuggers, or was cut off: a segment goes beyond its end")
		}
		s.end = max(s.end, int64(off+size))
		s.loaded = append(s.loaded, span{int64(off), int64(off + size)})
		return nil
	}
	if err := cmp.Or(grow(0, header64), grow(le64.Uint64(s.head[32:]), uint64(len(s.segments)))); err != nil {
		return err
	}
	for b := range slices.Chunk(s.segments, segment64) {
		if size := le64.Uint64(b[32:]); size > 0 {
			if err := grow(le64.Uint64(b[8:]), size); err != nil {
				return err
			}
		}
	}
	for i := range s.sections {
		sec := &s.sections[i]
		if !sec.allocated {
			continue
		}
		if sec.kind == elf.SHT_NOBITS && elf.SectionFlag(sec.flags)&elf.SHF_WRITE == 0 && sec.size > 0 {
			return keptf("it is a file of symbols for debuggers: %s has no content", sec.name)
		}
		if !sec.takesNothing {
			if err := grow(sec.off, sec.size); err != nil {
				return err
			}
		}
	}
	s.inPlace = le64.Uint64(s.head[fieldSections:]) < uint64(s.end)
	return nil
}

// choose decides about every section.
func (s *stripper) choose() error {
	s.keep = make([]bool, len(s.sections))
	s.keep[0] = true
	goes := make([]bool, len(s.sections))
	for i := 1; i < len(s.sections); i++ {
		switch sec := &s.sections[i]; {
		case sec.allocated:
			s.keep[i] = true
		case sec.kind == elf.SHT_SYMTAB:
			goes[i] = true
			if names := &s.sections[sec.link]; names.kind == elf.SHT_STRTAB && !names.allocated {
				goes[sec.link] = true
			}
		case sec.kind == elf.SHT_SYMTAB_SHNDX, isDebug(sec.name):
			goes[i] = true
		}
	}
	goes[le64.Uint16(s.head[fieldSectionNames:])] = false
	first, last := slices.Index(goes, true), 0
	if first < 0 {
		return keptf("nothing can be stripped")
	}
	for i := 1; i < len(s.sections); i++ {
		sec := &s.sections[i]
		switch {
		case sec.allocated:
			last = i
		case goes[i]:
			s.inPlace = s.inPlace || !sec.takesNothing && int64(sec.off) < s.end
		default:
			if err := s.mayMove(i); err != nil {
				return err
			}
			s.keep[i] = true
		}
	}
	// Symbols for the loader name loaded sections by their numbers.
	s.inPlace = s.inPlace || first < last
	return s.checkLinks(goes)
}

// isDebug reports whether a section is for debuggers only, by the names that compilers give (DWARF 5, appendix; stabs; split DWARF).
func isDebug(name string) bool {
	switch name {
	case ".debug", ".line", ".stab", ".stabstr", ".gdb_index":
		return true
	}
	for _, prefix := range []string{".debug_", ".zdebug_", ".stab.", ".gnu.debuglto_", ".gnu.linkonce.wi."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
