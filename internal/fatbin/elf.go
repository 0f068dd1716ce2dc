package fatbin

import (
	"bytes"
	"strings"
)

// What of the ELF format is needed here (System V ABI, "Object Files"; the names are its).
const (
	elfHeaderSize      = 64
	sectionHeaderSize  = 64
	segmentHeaderSize  = 56
	maxSections        = 1 << 18
	maxSegments        = 1 << 12
	maxName            = 64 // bytes of a section's name that are looked at
	typeRelocatable    = 1  // ET_REL
	machineCUDA        = 190
	sectionProgbits    = 1
	sectionSymtab      = 2
	sectionRela        = 4
	sectionNote        = 7
	sectionNobits      = 8
	sectionDynsym      = 11
	flagAlloc          = 0x2
	flagExecinstr      = 0x4
	flagCompressed     = 0x800
	segmentLoad        = 1
	abiCUDA7, abiCUDA8 = 0x33, 0x41 // EI_OSABI of cubins
)

// isELF is whether a file begins as ELF of 64-bit little-endian machines does.
func isELF(head []byte) bool {
	return len(head) >= elfHeaderSize && bytes.HasPrefix(head, []byte("\x7fELF\x02\x01\x01"))
}

// object is an ELF file that fills [start, end) of the file.
type object struct {
	start, end int64
	kind       uint16 // e_type
	sections   []section
	segments   []segment
	names      section
}

type section struct {
	name       string
	nameOffset uint32
	kind       uint32
	flags      uint64
	addr       uint64
	off, size  int64 // in the file; all zero when the section is outside it
	link, info uint32
}

type segment struct {
	flags uint32
	addr  uint64
	off   int64
	size  int64
}

func (s section) isData() bool {
	return s.kind == sectionProgbits && s.flags&flagAlloc != 0 && s.flags&(flagExecinstr|flagCompressed) == 0
}

// openELF reads the tables of the ELF file in [start, end).
func (s *scanner) openELF(start, end int64) (*object, error) {
	head, err := s.bytes(start, elfHeaderSize)
	if err != nil {
		return nil, err
	}
	o := &object{start: start, end: end, kind: le.Uint16(head[16:])}
	phoff, shoff := le.Uint64(head[32:]), le.Uint64(head[40:])
	phentsize, phnum := le.Uint16(head[54:]), int64(le.Uint16(head[56:]))
	shentsize, shnum, shstrndx := le.Uint16(head[58:]), int64(le.Uint16(head[60:])), uint32(le.Uint16(head[62:]))
	if phnum > 0 {
		if phentsize != segmentHeaderSize || phnum > maxSegments || !o.holds(phoff, phnum*segmentHeaderSize) {
			return nil, badf(start, "%d program headers at byte %d", phnum, phoff)
		}
		if err := s.readSegments(o, start+int64(phoff), phnum); err != nil {
			return nil, err
		}
	}
	if shoff == 0 {
		return o, nil
	}
	if shentsize != sectionHeaderSize || !o.holds(shoff, sectionHeaderSize) {
		return nil, badf(start, "section headers of %d bytes at byte %d", shentsize, shoff)
	}
	return o, s.readSections(o, start+int64(shoff), shnum, shstrndx)
}

// holds is whether size bytes at off lie in the object.
func (o *object) holds(off uint64, size int64) bool {
	return off <= uint64(o.end-o.start) && within(int64(off), size, 0, o.end-o.start)
}

func (s *scanner) readSegments(o *object, off, n int64) error {
	for i := range n {
		b, err := s.bytes(off+i*segmentHeaderSize, segmentHeaderSize)
		if err != nil {
			return err
		}
		p := segment{flags: le.Uint32(b[4:]), addr: le.Uint64(b[16:])}
		fileOff, size := le.Uint64(b[8:]), le.Uint64(b[32:])
		if le.Uint32(b) != segmentLoad || size > uint64(o.end-o.start) || !o.holds(fileOff, int64(size)) {
			continue
		}
		p.off, p.size = o.start+int64(fileOff), int64(size)
		o.segments = append(o.segments, p)
	}
	return nil
}

func (s *scanner) readSections(o *object, off, n int64, names uint32) error {
	first, err := s.sectionHeader(o, off)
	if err != nil {
		return err
	}
	if n == 0 { // more than fit: the numbers are in the first section
		b, err := s.bytes(off, sectionHeaderSize)
		if err != nil {
			return err
		}
		if n = int64(min(le.Uint64(b[32:]), maxSections+1)); n == 0 {
			return nil
		}
	}
	if names == 0xFFFF {
		names = first.link
	}
	if n > maxSections || !within(off, n*sectionHeaderSize, o.start, o.end) {
		return badf(off, "%d section headers", n)
	}
	o.sections = make([]section, n)
	for i := range n {
		if o.sections[i], err = s.sectionHeader(o, off+i*sectionHeaderSize); err != nil {
			return err
		}
	}
	if int64(names) < n {
		o.names = o.sections[names]
	}
	return s.nameSections(o)
}

func (s *scanner) sectionHeader(o *object, off int64) (section, error) {
	b, err := s.bytes(off, sectionHeaderSize)
	if err != nil {
		return section{}, err
	}
	sec := section{
		nameOffset: le.Uint32(b), kind: le.Uint32(b[4:]), flags: le.Uint64(b[8:]), addr: le.Uint64(b[16:]),
		link: le.Uint32(b[40:]), info: le.Uint32(b[44:]),
	}
	fileOff, size := le.Uint64(b[24:]), le.Uint64(b[32:])
	if sec.kind != sectionNobits && size <= uint64(o.end-o.start) && o.holds(fileOff, int64(size)) {
		sec.off, sec.size = o.start+int64(fileOff), int64(size)
	}
	return sec, nil
}

// nameSections reads the names of the sections that may matter.
func (s *scanner) nameSections(o *object) error {
	for i := range o.sections {
		sec := &o.sections[i]
		if sec.kind != sectionProgbits && sec.kind != sectionNote || int64(sec.nameOffset) >= o.names.size {
			continue
		}
		off := o.names.off + int64(sec.nameOffset)
		b, err := s.bytes(off, min(maxName, o.names.off+o.names.size-off))
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(string(b), "\x00")
		sec.name = name
	}
	return nil
}

// fileOffset turns an address of a linked object into an offset of the file, or -1.
func (o *object) fileOffset(addr uint64) int64 {
	for _, p := range o.segments {
		if addr >= p.addr && addr-p.addr < uint64(p.size) {
			return p.off + int64(addr-p.addr)
		}
	}
	return -1
}

// The sections that hold regions, wrappers and bundles (fatbinary_section.h; clang/lib/CodeGen/CGCUDANV.cpp).
const (
	executableSection  = ".nv_fatbin"
	relocatableSection = "__nv_relfatbin"
	wrapperSection     = ".nvFatBinSegment"
	hipSection         = ".hip_fatbin"
)

// elf reads an ELF file for the host.
func (s *scanner) elf(start, end int64) error {
	o, err := s.openELF(start, end)
	if err != nil {
		return s.note(err)
	}
	s.file.Linked = s.file.Linked || o.kind != typeRelocatable
	first := len(s.file.Regions)
	for _, sec := range o.sections {
		if err := s.gpuSection(sec); err != nil {
			return err
		}
	}
	if !s.options.SectionsOnly {
		if err := s.strays(o); err != nil {
			return err
		}
	}
	return s.wrappers(o, first)
}

func (s *scanner) gpuSection(sec section) error {
	if sec.kind != sectionProgbits || sec.size == 0 {
		return nil
	}
	place := Executable
	switch sec.name {
	case hipSection:
		return s.bundles(sec.off, sec.off+sec.size, sec.name)
	case relocatableSection:
		place = Relocatable
	case executableSection:
	default:
		return nil
	}
	if sec.flags&flagCompressed != 0 {
		s.problem(sec.off, "the section %s is compressed as a whole, which is not read", sec.name)
		return nil
	}
	return s.regions(sec.off, sec.off+sec.size, Region{Section: sec.name, Place: place})
}
