package elfx

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math"
)

// Limits on what is read of a file. Those on text are in bytes.
const (
	maxSegments   = 2048 // the kernel takes some thousand
	maxDynamic    = 64 << 10
	maxNeeded     = 4096
	maxPath       = 4096 // PATH_MAX
	maxSearchPath = 64 << 10
	maxVersions   = 32 << 10 // numbers of versions have 15 bits
	maxVersion    = 1024     // of the name of a version
	maxNote       = 8 << 10
	maxNotes      = 256
)

// parser fills a File.
type parser struct {
	*File
	window window

	class    elf.Type
	sections table // as the header has it
	segments table
	dynamic  region
	notes    []note
	tags     map[elf.DynTag]uint64 // of those that say a single thing; the last counts, as for ld.so
}

// table is an array in the file.
type table struct {
	region
	entry int64 // size of one, in bytes
	count int64
}

func (p *parser) readHeader() error {
	ident := make([]byte, elf.EI_NIDENT)
	if p.image.size < int64(len(ident)) {
		return ErrNotELF
	}
	if err := p.image.readAt(ident, 0); err != nil {
		return err
	}
	if !IsELF(ident) {
		return ErrNotELF
	}
	p.Class = elf.Class(ident[elf.EI_CLASS])
	switch p.Class {
	case elf.ELFCLASS32:
	case elf.ELFCLASS64:
		p.image.wide = true
	default:
		return formatError("class %d", ident[elf.EI_CLASS])
	}
	switch elf.Data(ident[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
		p.image.order = binary.LittleEndian
	case elf.ELFDATA2MSB:
		p.image.order = binary.BigEndian
	default:
		return formatError("byte order %d", ident[elf.EI_DATA])
	}
	return p.readHeaderFields()
}

func (p *parser) readHeaderFields() error {
	im := &p.image
	h, err := p.window.at(0, im.choose(52, 64))
	if err != nil {
		return err
	}
	p.class = elf.Type(im.order.Uint16(h[16:]))
	p.Machine = elf.Machine(im.order.Uint16(h[18:]))
	p.Arch = archName(p.Machine, im.wide, im.order)
	word := im.choose(4, 8)
	segments, sections := im.word(h[24+word:]), im.word(h[24+2*word:])
	h = h[24+3*word+4+2:] // e_phentsize and what follows
	number := func(i int) int64 { return int64(im.order.Uint16(h[2*i:])) }
	p.segments = im.table(segments, number(0), number(1))
	p.sections = im.table(sections, number(2), number(3))
	return nil
}

func (im *image) table(offset uint64, entry, count int64) table {
	return table{im.region(offset, uint64(entry*count)), entry, count}
}

// readSegments reads where things are in memory and in the file.
func (p *parser) readSegments() error {
	im := &p.image
	if p.segments.count == 0 {
		return nil // an object file
	}
	size := im.choose(32, 56)
	if p.segments.entry != size {
		return formatError("program headers of %d bytes, not %d", p.segments.entry, size)
	}
	if p.segments.count > maxSegments {
		return formatError("%d program headers", p.segments.count)
	}
	for i := range p.segments.count {
		h, err := p.window.in(p.segments.region, i*size, size)
		if err != nil {
			return err
		}
		if err := p.addSegment(h); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) addSegment(h []byte) error {
	im := &p.image
	kind := elf.ProgType(im.order.Uint32(h))
	fields := h[im.choose(4, 8):]
	field := func(i int) uint64 { return im.word(fields[int64(i)*im.choose(4, 8):]) }
	const offset, address, size = 0, 1, 3
	at := im.region(field(offset), field(size))
	switch kind {
	case elf.PT_LOAD:
		im.loads = append(im.loads, segment{field(address), at})
	case elf.PT_DYNAMIC:
		p.dynamic = at
	case elf.PT_INTERP:
		if at.size == 0 {
			return nil // a file of debugging information keeps the headers only
		}
		text, err := p.window.text(at, 0, maxPath)
		if err != nil {
			return fmt.Errorf("the interpreter: %w", err)
		}
		p.Interpreter = text
	case elf.PT_NOTE, elf.PT_GNU_PROPERTY:
		align := int64(4)
		if im.wide && im.word(h[48:]) == 8 {
			align = 8
		}
		p.notes = append(p.notes, note{at, align})
	}
	return nil
}

// readDynamic reads the dynamic section (gABI, chapter 5).
func (p *parser) readDynamic() error {
	im := &p.image
	p.tags = map[elf.DynTag]uint64{}
	size := im.choose(8, 16)
	var needed []uint64
	for at := int64(0); at+size <= p.dynamic.size; at += size {
		if at/size == maxDynamic {
			return formatError("more than %d entries", maxDynamic)
		}
		e, err := p.window.in(p.dynamic, at, size)
		if err != nil {
			return err
		}
		tag, value := elf.DynTag(im.word(e)), im.word(e[size/2:])
		if tag == elf.DT_NULL {
			break
		}
		if tag != elf.DT_NEEDED {
			p.setTag(tag, value)
		} else if needed = append(needed, value); len(needed) > maxNeeded {
			return formatError("more than %d libraries needed", maxNeeded)
		}
	}
	p.Dynamic = p.dynamic.size > 0
	if address, ok := p.tags[elf.DT_STRTAB]; ok {
		p.strings = im.mapped(address, p.tags[elf.DT_STRSZ])
	}
	p.Flags1 = elf.DynFlag1(p.tags[elf.DT_FLAGS_1])
	return p.readNames(needed)
}

// setTag keeps those that are used, so that a file cannot fill the memory with others.
func (p *parser) setTag(tag elf.DynTag, value uint64) {
	switch tag {
	case elf.DT_STRTAB, elf.DT_STRSZ, elf.DT_SYMTAB, elf.DT_SONAME, elf.DT_RPATH, elf.DT_RUNPATH, elf.DT_FLAGS_1, elf.DT_HASH, elf.DT_GNU_HASH,
		elf.DT_VERSYM, elf.DT_VERNEED, elf.DT_VERNEEDNUM, elf.DT_VERDEF, elf.DT_VERDEFNUM:
		p.tags[tag] = value
	}
}

func (p *parser) readNames(needed []uint64) error {
	for _, offset := range needed {
		name, err := p.window.text(p.strings, offset, maxPath)
		if err != nil {
			return fmt.Errorf("the name of a library: %w", err)
		}
		p.Needed = append(p.Needed, name)
	}
	_, p.hasRunpath = p.tags[elf.DT_RUNPATH]
	for _, text := range []struct {
		tag   elf.DynTag
		to    *string
		limit int
	}{
		{elf.DT_SONAME, &p.Soname, maxPath},
		{elf.DT_RPATH, &p.Rpath, maxSearchPath},
		{elf.DT_RUNPATH, &p.Runpath, maxSearchPath},
	} {
		offset, ok := p.tags[text.tag]
		if !ok {
			continue
		}
		var err error
		if *text.to, err = p.window.text(p.strings, offset, text.limit); err != nil {
			return fmt.Errorf("%v: %w", text.tag, err)
		}
	}
	return nil
}

// kind tells programs from libraries. Linkers before binutils 2.26 did not mark position-independent programs; those have
// an interpreter and no name to be needed by. libc.so.6 has an interpreter too, but a name.
func (p *parser) kind() Kind {
	switch {
	case p.class == elf.ET_EXEC:
		return Executable
	case p.class != elf.ET_DYN:
		return Other
	case p.Flags1&elf.DF_1_PIE != 0, p.Interpreter != "" && p.Soname == "":
		return PIE
	}
	return Shared
}

// symbolVersion is what a number in the table of the symbols' versions means.
type symbolVersion struct {
	name    string
	library string // that it is needed of; empty for the file's own versions
}

const (
	baseVersion    = 1 // VER_FLG_BASE
	weakVersion    = 2 // VER_FLG_WEAK
	versionMask    = 0x7fff
	hiddenVersion  = 0x8000 // a definition that is not the default one
	versionGlobal  = 1      // the number of symbols without a version
	needSize       = 16     // Elf32_Verneed, Elf64_Verneed
	needAuxSize    = 16
	definitionSize = 20
	definitionAux  = 8
)

// chained visits the entries of a list of versions, each of which says how far the next one is (LSB core, symbol versioning).
func (p *parser) chained(address, number elf.DynTag, size int64, visit func(table region, at int64, e []byte) (next uint32, err error)) error {
	where, ok := p.tags[address]
	if !ok {
		return nil
	}
	table := p.image.mapped(where, math.MaxInt64)
	if table.size == 0 {
		return formatError("it is not in the file")
	}
	at := int64(0)
	for i := uint64(0); i < p.tags[number]; i++ {
		if i == maxVersions {
			return formatError("more than %d entries", maxVersions)
		}
		e, err := p.window.in(table, at, size)
		if err != nil {
			return err
		}
		next, err := visit(table, at, e)
		if err != nil {
			return err
		}
		if next == 0 {
			break
		}
		at += int64(next)
	}
	return nil
}

func (p *parser) setVersion(number uint16, v symbolVersion) {
	if p.versions == nil {
		p.versions = map[uint16]symbolVersion{}
	}
	p.versions[number&versionMask] = v
}

func (p *parser) readNeeds() error {
	total := 0
	return p.chained(elf.DT_VERNEED, elf.DT_VERNEEDNUM, needSize, func(table region, at int64, e []byte) (uint32, error) {
		order := p.image.order
		count, file, aux, next := order.Uint16(e[2:]), order.Uint32(e[4:]), order.Uint32(e[8:]), order.Uint32(e[12:])
		if total += int(count); total > maxVersions || len(p.Requires) == maxNeeded {
			return 0, formatError("more than %d versions of %d libraries", maxVersions, maxNeeded)
		}
		library, err := p.window.text(p.strings, uint64(file), maxPath)
		if err != nil {
			return 0, err
		}
		versions, err := p.readNeedsOf(library, table, at+int64(aux), count)
		p.Requires = append(p.Requires, Requirement{library, versions})
		return next, err
	})
}

// readNeedsOf reads the versions needed of one library.
func (p *parser) readNeedsOf(library string, table region, at int64, count uint16) ([]Version, error) {
	var versions []Version
	for range count {
		e, err := p.window.in(table, at, needAuxSize)
		if err != nil {
			return nil, err
		}
		order := p.image.order
		flags, number, name, next := order.Uint16(e[4:]), order.Uint16(e[6:]), order.Uint32(e[8:]), order.Uint32(e[12:])
		v := Version{Weak: flags&weakVersion != 0}
		if v.Name, err = p.window.text(p.strings, uint64(name), maxVersion); err != nil {
			return nil, err
		}
		versions = append(versions, v)
		p.setVersion(number, symbolVersion{v.Name, library})
		if next == 0 {
			break
		}
		at += int64(next)
	}
	return versions, nil
}

func (p *parser) readDefinitions() error {
	return p.chained(elf.DT_VERDEF, elf.DT_VERDEFNUM, definitionSize, func(table region, at int64, e []byte) (uint32, error) {
		order := p.image.order
		flags, number, aux, next := order.Uint16(e[2:]), order.Uint16(e[4:]), order.Uint32(e[12:]), order.Uint32(e[16:])
		if flags&baseVersion != 0 {
			return next, nil // the name of the file, which no symbol is looked up by
		}
		e, err := p.window.in(table, at+int64(aux), definitionAux)
		if err != nil {
			return 0, err
		}
		name, err := p.window.text(p.strings, uint64(order.Uint32(e)), maxVersion)
		if err != nil {
			return 0, err
		}
		p.Provides = append(p.Provides, name)
		p.setVersion(number, symbolVersion{name: name})
		return next, nil
	})
}
